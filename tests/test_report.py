"""The report: from run directories to numbers, tables and files."""

import csv
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from scipy import stats
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

from cvexp.config import UsageError
from cvexp.report import load, records, table
from cvexp.report.analysis import analyse
from cvexp.report.records import find
from tests.conftest import ROOT, TOY, Outcome
from tests.sweeps import grid, made, runs, write, write_run

FREEZE = {"freeze": ["last", "most", "full"]}
BOTH = {**FREEZE, "precision": ["32-true", "bf16-mixed"]}
GOLDEN = Path(__file__).parent / "golden" / "report.md"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a sweep of 3 x 2 cells and 5 seeds, with all that may become of a run."""
    ended = {("most", "32-true", 4): "diverged", ("most", "32-true", 3): "failed"}
    every, missing = [], []
    for levels, seed, value in grid(BOTH):
        key = (*levels.values(), seed)
        if key == ("last", "bf16-mixed", 2):
            missing.append((levels, seed))
            continue
        every.append(made(levels, seed, value, ended.get(key, "completed")))
        if every[-1]["status"] == "failed":
            every[-1]["reason"] = "out of memory: 2 GiB"
    return write(tmp_path_factory.mktemp("multirun") / "sweep", every, missing)


def report(folder: Path, **options: Any) -> dict[str, Any]:
    return analyse(find([folder]), ["sweep"], **options)


def cell(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [cell for cell in document["cells"] if cell["name"] == name]
    return found


def test_nothing_is_dropped_silently(sweep: Path) -> None:
    document = report(sweep)
    lacking = {c["name"]: c["complete"] for c in document["cells"] if c["n"] < 5}
    assert lacking == {
        "freeze=last, precision=bf16-mixed": "4/5 (1 missing)",
        "freeze=most, precision=32-true": "3/5 (1 out of memory, 1 diverged)",
    }
    seeds = {at["seed"]: at["status"] for at in cell(document, [*lacking][1])["by_seed"]}
    assert seeds == {0: "ok", 1: "ok", 2: "ok", 3: "out of memory", 4: "diverged"}
    assert len(document["runs"]) == 30
    for words in lacking.items():
        assert " ".join(words) in document["paragraph"]
    assert "without 2, 3, 4" in document["effects_note"]
    text = table.markdown(document, {})
    for line in text.splitlines():  # wherever its mean stands
        if "0.8503" in line and "each seed" not in line:
            assert "3/5 (1 out of memory, 1 diverged)" in line
    assert "0.8503" in text


def test_numbers_are_those_of_scipy(sweep: Path) -> None:
    document, frame = report(sweep), load(sweep)
    ok = frame[frame.status == "ok"].set_index(["freeze", "precision", "seed"])["test/accuracy"]
    ok = ok.sort_index()
    base = ok["full", "32-true"]
    raw, family = [], [*document["cells"], *document["effects"]]
    for found in document["cells"]:
        values = ok[tuple(found["levels"].values())]
        assert found["mean"] == pytest.approx(values.mean(), rel=1e-12)
        assert found["sd"] == pytest.approx(values.std(ddof=1), rel=1e-12)
        low, high = stats.ttest_1samp(values, 0).confidence_interval()
        assert (found["low"], found["high"]) == pytest.approx((low, high), rel=1e-12)
        contrast = found["contrast"]
        if contrast is None:
            assert found["name"] == document["baseline"] == "freeze=full, precision=32-true"
            continue
        shared = values.index.intersection(base.index)
        tested = stats.ttest_rel(values[shared], base[shared])
        assert contrast["p"] == pytest.approx(tested.pvalue, rel=1e-12)
        assert (contrast["low"], contrast["high"]) == pytest.approx(tested.confidence_interval())
        welch = stats.ttest_ind(values, base, equal_var=False).confidence_interval()
        assert (contrast["welch_low"], contrast["welch_high"]) == pytest.approx(welch, rel=1e-12)
        assert contrast["wins"] == sum(values[shared] > base[shared])
        raw.append(contrast["p"])
    complete = ok.unstack(["freeze", "precision"]).dropna()
    for effect in document["effects"]:
        if effect["name"] == "precision: bf16-mixed against 32-true":
            by = complete.T.groupby("precision").mean().T
            tested = stats.ttest_rel(by["bf16-mixed"], by["32-true"])
            assert effect["p"] == pytest.approx(tested.pvalue, rel=1e-12)
        if effect["name"] == "freeze=last with precision=bf16-mixed":
            moved = complete.xs("bf16-mixed", axis=1, level=1) - complete.xs(
                "32-true", axis=1, level=1
            )
            tested = stats.ttest_rel(moved["last"], moved["full"])
            assert effect["p"] == pytest.approx(tested.pvalue, rel=1e-12)
        raw.append(effect["p"])
    from statsmodels.stats.multitest import multipletests

    said = [c["contrast"]["p_holm"] for c in document["cells"] if c["contrast"]]
    said += [effect["p_holm"] for effect in document["effects"]]
    assert said == pytest.approx(multipletests(raw, method="holm")[1], rel=1e-12)
    assert len(family) == 6 + 5


def test_effects_are_those_of_a_repeated_measures_anova() -> None:
    from statsmodels.stats.anova import AnovaRM

    two = {"ema": ["none", "weights"], "mix": ["none", "mixup"]}
    draws = np.random.default_rng(1)
    values = {at: list(draws.normal(0.9, 0.02, 6)) for at in product(*two.values())}
    document = analyse(runs(two, values), [], baseline="ema=none,mix=none")
    rows = [
        {"ema": a, "mix": b, "seed": seed, "value": value}
        for (a, b), of in values.items()
        for seed, value in enumerate(of)
    ]
    anova = (
        AnovaRM(pandas.DataFrame(rows), "value", "seed", within=["ema", "mix"]).fit().anova_table
    )
    by_name = {tuple(effect["factors"]): effect["p"] for effect in document["effects"]}
    assert by_name["ema",] == pytest.approx(anova["Pr > F"]["ema"], rel=1e-9)
    assert by_name["mix",] == pytest.approx(anova["Pr > F"]["mix"], rel=1e-9)
    assert by_name["ema", "mix"] == pytest.approx(anova["Pr > F"]["ema:mix"], rel=1e-9)


def test_a_thousand_sweeps_in_which_nothing_helps() -> None:
    """At most one in twenty says better; intervals hold the truth 95 times in 100."""
    false, covered, intervals = 0, 0, 0
    draws = np.random.default_rng(0)
    cells = list(product(*BOTH.values()))
    for _ in range(1000):
        shared = draws.normal(0, 0.01, 5)  # what a seed does to every cell
        values = {at: list(0.9 + shared + draws.normal(0, 0.01, 5)) for at in cells}
        document = analyse(runs(BOTH, values), [])
        contrasts = [c["contrast"] for c in document["cells"] if c["contrast"]]
        verdicts = [of["verdict"] for of in (*contrasts, *document["effects"])]
        false += bool({"better", "above the sum of both"} & set(verdicts))
        covered += sum(of["low"] <= 0 <= of["high"] for of in contrasts)
        intervals += len(contrasts)
        assert len(verdicts) == 10
    assert false <= 50
    assert covered / intervals == pytest.approx(0.95, abs=0.015)


def test_the_order_of_files_changes_nothing(sweep: Path, tmp_path: Path) -> None:
    found = find([sweep])
    shuffled = [*found]
    random.Random(0).shuffle(shuffled)
    levels = {key: [run.level(key) for run in found] for key in BOTH}
    one, other = (
        report(sweep),
        analyse(shuffled, ["sweep"], baseline="freeze=full,precision=32-true"),
    )
    for left in one["cells"]:
        right = cell(other, ", ".join(f"{k}={left['levels'][k]}" for k in other["factors"]))
        for key in ("n", "mean", "low", "high", "complete", "cost", "separates", "pareto"):
            assert left[key] == right[key]
        if left["contrast"]:
            for key in ("mean", "p", "p_holm", "verdict", "wins"):
                assert left["contrast"][key] == right["contrast"][key]
    assert levels["freeze"][0] == "last"


@pytest.mark.parametrize("shift", [-0.5, 0.25, 1000.0])
def test_a_constant_shift_moves_means_and_no_difference(shift: float) -> None:
    draws = np.random.default_rng(2)
    values = {(level,): list(np.round(draws.normal(0.8, 0.05, 5), 6)) for level in FREEZE["freeze"]}
    moved = {at: [value + shift for value in of] for at, of in values.items()}
    for here, there in zip(
        analyse(runs(FREEZE, values), [])["cells"],
        analyse(runs(FREEZE, moved), [])["cells"],
        strict=True,
    ):
        assert there["mean"] == pytest.approx(here["mean"] + shift)
        if here["contrast"]:
            for key in ("mean", "sd", "low", "high", "p_holm", "detectable"):
                assert there["contrast"][key] == pytest.approx(here["contrast"][key], rel=1e-6)
            assert there["contrast"]["verdict"] == here["contrast"]["verdict"]


def test_a_metric_to_minimise_is_judged_the_other_way() -> None:
    values = {("last",): [0.5, 0.51, 0.5, 0.52, 0.5], ("full",): [0.9, 0.91, 0.92, 0.9, 0.93]}
    two = {"freeze": ["last", "full"]}
    up = analyse(runs(two, values), [], metric="test/accuracy")
    down = analyse(runs(two, values), [], metric="test/loss")
    assert up["cells"][0]["contrast"]["verdict"] == "worse"
    assert down["cells"][0]["contrast"]["verdict"] == "better"
    assert down["cells"][0]["contrast"]["wins"] == 5
    assert [c["separates"] for c in up["cells"]] == [False, True]
    assert [c["separates"] for c in down["cells"]] == [True, False]
    assert "lower is better" in down["paragraph"]
    assert down["recommendation"]["cell"] == "freeze=last"


@pytest.mark.parametrize(
    ("seeds", "verdict"),
    [
        (1, "descriptive only"),
        (2, "descriptive only"),
        (4, "too few seeds for a verdict"),
        (5, "worse"),
    ],
)
def test_no_more_is_said_than_the_seeds_show(seeds: int, verdict: str) -> None:
    draws = np.random.default_rng(3)
    values = {("last",): list(0.1 + draws.normal(0, 1e-4, seeds)), ("full",): [0.9] * seeds}
    document = analyse(runs({"freeze": ["last", "full"]}, values), [])
    first = document["cells"][0]
    assert first["contrast"]["verdict"].startswith(verdict)
    assert document["cells"][1]["separates"] == (seeds == 5)
    assert ("no uncertainty" in table.markdown(document, {})) == (seeds == 1)
    if seeds < 5:
        assert "better:" not in document["paragraph"].lower()
        assert "worse:" not in document["paragraph"].lower()
        assert "cannot be said" in document["paragraph"]


def test_advice_is_of_what_could_be_judged() -> None:
    def advice(last: list[float], most: list[float], full: list[float]) -> dict[str, Any]:
        values = {("last",): last, ("most",): most, ("full",): full}
        advice: dict[str, Any] = analyse(runs(FREEZE, values), [])["recommendation"]
        return advice

    draws = np.random.default_rng(5)
    good, also = (list(0.9 + draws.normal(0, 0.01, 5)) for _ in range(2))
    few = advice([0.95, 0.95, 0.9], also, good)
    assert few["best"] != "freeze=last"  # three seeds are luck
    assert "Not judged: freeze=last (0.9333, 10 s), 3 seeds in common" in few["sentence"]
    lower = [value - 0.25 for value in good]
    constant = advice(lower, also, good)
    assert constant["cell"] != "freeze=last"  # no test can say it, and none has to
    none = advice(good[:3], also[:2], good)
    assert none["cell"] is None
    assert "too little in common with the others" in none["sentence"]


def test_times_of_other_hardware_are_said_to_be(tmp_path: Path) -> None:
    grid = [(level, seed) for level in ("last", "full") for seed in range(5)]
    every = [made({"freeze": level}, seed, 0.9 + seed % 3 / 99) for level, seed in grid]
    for record in every[:5]:
        record["environment"]["hardware"]["cpu"] = "another"
    document = report(write(tmp_path / "s", every))
    assert "of different hardware" in document["recommendation"]["sentence"]


def test_cells_without_a_seed_in_common_and_cells_without_a_value() -> None:
    two = {"freeze": ["last", "full"]}
    apart = runs(two, {("last",): [0.5, 0.6], ("full",): [0.8, 0.9, 0.85]})
    for run in apart[:2]:
        run.factors = {**run.factors, "seed": run.seed + 10}
    document = analyse(apart, [])
    low, high = stats.ttest_ind([0.5, 0.6], [0.8, 0.9, 0.85], equal_var=False).confidence_interval()
    assert "No seed in common with the baseline: freeze=last (0.5500)" in document["paragraph"]
    assert f"Welch's interval {low:+.4f} to {high:+.4f}" in document["paragraph"]
    assert "no seed in common" in table.markdown(document, {})
    draws = np.random.default_rng(6)
    best = list(0.9 + draws.normal(0, 0.001, 5))
    values = {
        ("last",): list(0.5 + draws.normal(0, 0.001, 5)),
        ("most",): best,
        ("full",): [None] * 5,
    }
    document = analyse(runs(FREEZE, values), [])
    assert document["baseline"] == "freeze=last"  # the default has no value yet
    assert [c["separates"] for c in document["cells"]] == [False, True, False]


def test_a_baseline_is_typed_as_an_override_is() -> None:
    factors = {"optimizer.lr": [0.001, 0.01], "data.crop": ["[0.1, 0.2]", "[0.5, 1]"]}
    values = {at: [0.5] for at in product(*factors.values())}
    typed = "optimizer.lr=1e-2, data.crop=[0.5,1]"
    assert analyse(runs(factors, values), [], baseline=typed)["baseline"] == (
        "optimizer.lr=0.01, data.crop=[0.5, 1]"
    )


def test_an_interaction_is_no_better_and_no_worse() -> None:
    two = {"ema": ["none", "weights"], "mix": ["none", "mixup"]}
    draws = np.random.default_rng(7)
    values = {at: list(0.5 + draws.normal(0, 1e-3, 5)) for at in product(*two.values())}
    values["weights", "mixup"] = list(0.9 + draws.normal(0, 1e-3, 5))
    document = analyse(runs(two, values), [])
    (crossed,) = [effect for effect in document["effects"] if effect["kind"] == "interaction"]
    assert crossed["verdict"] == "above the sum of both"
    assert "do not simply add up: ema=weights with mix=mixup is above" in document["paragraph"]


def test_identical_runs_and_equal_differences_are_no_evidence() -> None:
    values = {("last",): [0.8] * 5, ("most",): [0.7] * 5, ("full",): [0.8] * 5}
    last, most, full = analyse(runs(FREEZE, values), [])["cells"]
    assert last["contrast"]["verdict"] == "identical"
    assert most["contrast"]["verdict"] == "the same difference in every seed"
    assert not any(c["separates"] for c in (last, most, full))


def test_equivalence_needs_a_declared_margin() -> None:
    draws = np.random.default_rng(4)
    two = {"precision": ["32-true", "bf16-mixed"]}
    values = {(p,): list(0.9 + draws.normal(0, 0.001, 5)) for p in two["precision"]}
    assert (
        "no clear difference" in analyse(runs(two, values), [])["cells"][1]["contrast"]["verdict"]
    )
    close = analyse(runs(two, values), [], margin=0.01)["cells"][1]["contrast"]
    assert close["verdict"] == "equivalent within 0.01"
    assert close["p_equivalent"] < 0.05
    narrow = analyse(runs(two, values), [], margin=1e-5)["cells"][1]["contrast"]
    assert "no clear difference" in narrow["verdict"]


def test_what_differs_besides_the_factors_is_flagged(tmp_path: Path) -> None:
    every = [made({"freeze": level}, seed, 0.9) for level in ("last", "full") for seed in (0, 1)]
    for record in every[:2]:
        record["effective"]["optimizer_steps"] = 60
        record["effective"]["frozen_modules"] = ["a"]  # the factor's own doing
        record["data"]["sha256"] = "0" * 64
        record["environment"]["versions"]["torch"] = "1.0"
    steps = every[2]["effective"]["optimizer_steps"]
    write(tmp_path / "s", every)
    path = tmp_path / "s" / "freeze-last_seed-0" / ".hydra" / "config.yaml"
    path.write_text(path.read_text().replace("lr: 0.002", "lr: 0.5"))
    last, full = report(tmp_path / "s")["cells"]
    assert full["flags"] == []
    said = " | ".join(last["flags"])
    assert f"differs also in optimizer_steps: {steps} / 60" in said
    assert "differs also in data: " in said
    assert "differs also in versions.torch: " in said
    assert "differs also in optimizer.lr: 0.002 / 0.5" in said
    assert "frozen_modules" not in said
    assert said in " | ".join(table.below(report(tmp_path / "s"))).replace(
        ". | freeze=last ", " | "
    ).replace("freeze=last ", "")


def test_equal_runs_that_differ_are_non_determinism(tmp_path: Path) -> None:
    one = made({"freeze": "last"}, 0, 0.9)
    again, other = made({"freeze": "last"}, 0, 0.9), made({"freeze": "last"}, 0, 0.91)
    for name, record in (("a", one), ("b", again), ("c", other)):
        write_run(tmp_path / name, record)
    write_run(tmp_path / "d", made({"freeze": "last"}, 1, None, "diverged"))
    write_run(tmp_path / "e", made({"freeze": "last"}, 1, 0.9))
    document = report(tmp_path)
    assert document["cells"][0]["complete"] == "2/2 (1 diverged besides, 2 duplicate)"
    assert document["cells"][0]["mean"] == 0.9
    first, second = document["notes"]
    assert first.startswith("non-determinism:")
    assert str(tmp_path / "c") in first
    assert str(tmp_path / "b") not in first
    assert str(tmp_path / "d") in second
    moved = {**other, "environment": {**other["environment"], "git_commit": "abc"}}
    (tmp_path / "c" / "run.json").write_text(json.dumps(moved))
    (first, _) = report(tmp_path)["notes"]
    assert "non-determinism" not in first
    assert f"git_commit ({one['environment']['git_commit']} / abc)" in first


def test_runs_of_a_cell_are_compared_too(tmp_path: Path) -> None:
    every = [made({"freeze": "last"}, seed, 0.9) for seed in range(5)]
    every[3]["effective"]["optimizer_steps"] = 60
    steps = every[0]["effective"]["optimizer_steps"]
    for record in every:
        write_run(tmp_path / str(record["factors"]["seed"]), record)
    document = report(tmp_path)
    said = f"optimizer_steps: {steps} / 60"
    assert document["cells"][0]["flags"] == [f"runs differ in {said} (1 of 5 runs)"]
    assert [run["flags"] for run in document["runs"]] == [[], [], [], [said], []]


def test_only_the_factor_that_moved_explains_a_difference(tmp_path: Path) -> None:
    levels = [("digits", 1), ("digits", 2), ("folder", 1)]
    every = [made({"data": d, "trainer.max_epochs": e}, 0, 0.9) for d, e in levels]
    every[1]["effective"] |= {"optimizer_steps": 60, "device": "other"}
    every[2]["effective"] |= {"optimizer_steps": 60}
    every[2]["data"]["sha256"] = "0" * 64
    flags = [c["flags"] for c in report(write(tmp_path / "s", every))["cells"]]
    steps = every[0]["effective"]["optimizer_steps"]
    assert flags[0] == []
    assert flags[1] == ["differs also in device: cpu / other"]
    assert flags[2] == [f"differs also in optimizer_steps: {steps} / 60"]


def test_times_of_shared_devices_and_of_parts_are_left_out(tmp_path: Path) -> None:
    every = [made({"freeze": level}, seed, 0.9) for level in ("last", "full") for seed in (0, 1)]
    every[0]["cost"] |= {"contended": True, "train_s": 1.0}
    every[1]["resumed"] = [{"at": "", "optimizer_steps": 3, "from": "last.ckpt"}]
    last, full = report(write(tmp_path / "s", every))["cells"]
    assert last["contended"] == 1
    assert last["cost"]["train_s"] is last["cost"]["images_per_s"] is last["time"] is None
    assert last["cost"]["peak_bytes"]["n"] == 2
    assert not last["pareto"]
    assert full["cost"]["train_s"]["n"] == 2
    notes = " ".join(report(tmp_path / "s")["notes"])
    assert "1 run shared a device" in notes
    assert "1 run went on after a cut" in notes


def test_cells_that_were_left_out_are_no_missing_runs_and_pairs_are_one_axis(
    tmp_path: Path,
) -> None:
    paired = [("last", 0.1), ("full", 0.2)]
    levels = [
        {"freeze": f, "optimizer.lr": lr, "ema": e} for f, lr in paired for e in ("none", "weights")
    ]
    every = [
        made(of, seed, 0.5 + 0.1 * n + 0.001 * seed**2)
        for n, of in enumerate(levels)
        for seed in range(5)
    ]
    document = report(write(tmp_path / "pair", every))
    assert len(document["cells"]) == 4
    assert all(c["complete"] == "5/5" for c in document["cells"])
    assert [e["factors"] for e in document["effects"]] == [
        ["freeze, optimizer.lr"],
        ["ema"],
        ["freeze, optimizer.lr", "ema"],
    ]
    less = report(
        write(
            tmp_path / "less",
            [r for r in every if r["factors"]["ema"] == "none" or r["factors"]["freeze"] == "last"],
        )
    )
    assert less["effects"] == []
    assert "leaves out cells" in less["effects_note"]
    assert "missing" not in less["paragraph"]


def test_hand_picked_runs_with_levels_that_nobody_typed(tmp_path: Path) -> None:
    """The default option is the baseline; a key that was not typed has its composed value."""
    plain, other = made({}, 0, 0.8), made({"freeze": "last", "optimizer.lr": 0.5}, 0, 0.9)
    one, two = write_run(tmp_path / "x", plain), write_run(tmp_path / "y", other)
    document = analyse(find([one, two]), [])
    assert document["factors"] == {"freeze": ["full", "last"], "optimizer.lr": [0.002, 0.5]}
    assert document["baseline"] == "freeze=full, optimizer.lr=0.002"
    assert records.Run(one, "ok", record={"choices": {"model": "resnet50"}}).level("model") == (
        "resnet50"
    )
    assert document["runs"][1]["difference"] == {
        "freeze": ["full", "last"],
        "optimizer.lr": [0.002, 0.5],
    }


def test_what_a_plan_leaves_to_the_config_is_that_of_its_sweep(tmp_path: Path) -> None:
    """One sweep over seeds alone, one over freeze: a run that is missing has the default."""
    write(tmp_path / "a", [made({}, 0, 0.9)], [({}, 1)])
    write(tmp_path / "b", [made({"freeze": "last"}, seed, 0.8) for seed in (0, 1)])
    document = analyse(find([tmp_path / "a", tmp_path / "b"]), [])
    assert {c["name"]: c["complete"] for c in document["cells"]} == {
        "freeze=full": "1/2 (1 missing)",
        "freeze=last": "2/2",
    }


def test_an_average_is_compared_with_the_weights_of_a_run_without_one(tmp_path: Path) -> None:
    every = [made({"ema": ema}, 0, 0.8) for ema in ("none", "weights")]
    every[1]["metrics"]["test/ema_accuracy"] = 0.9
    folder = write(tmp_path / "s", every)
    means = [c["mean"] for c in report(folder, metric="test/ema_accuracy")["cells"]]
    assert means == [0.8, 0.9]
    assert "--metric test/ema_accuracy is of their average" in " ".join(report(folder)["notes"])


def test_the_best_epoch_is_read_where_it_is_asked_for(tmp_path: Path) -> None:
    every = [made({"freeze": "last"}, seed, 0.9) for seed in (0, 1)]
    for record in every:
        record["metrics_best"] |= {"test/accuracy": 0.95, "val/accuracy": 0.97}
    folder = write(tmp_path / "s", every)
    assert report(folder)["cells"][0]["mean"] == 0.9
    best = report(folder, select="best")
    assert best["cells"][0]["mean"] == 0.95
    assert "validation chose" in best["metric"]["note"]
    assert "Optimistic" in report(folder, select="best", metric="val/accuracy")["metric"]["note"]


def test_three_hundred_runs_take_a_moment_and_no_torch(tmp_path: Path) -> None:
    many = {"optimizer.lr": [0.1 * n for n in range(1, 11)], "ema": ["none", "weights"]}
    every = [made(levels, seed, value) for levels, seed, value in grid(many, 15)]
    folder = write(tmp_path / "s", every)
    code = (
        "import sys; from pathlib import Path; from cvexp.report import analysis, records, table\n"
        f"document = analysis.analyse(records.find([Path({str(folder)!r})]), [])\n"
        "table.show(document)\n"
        "assert len(document['runs']) == 300 and len(document['cells']) == 20\n"
        "assert not {'torch', 'lightning', 'pandas', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_verb_writes_what_it_shows(cvexp: Callable[..., Outcome], sweep: Path) -> None:
    outcome = cvexp("report", str(sweep), "--out", "here", "--margin", "0.5")
    assert outcome.code == 0, outcome.err
    assert "equivalent within 0.5" in outcome.out
    there = {path.name for path in Path("here").iterdir()}
    assert {
        "report.json",
        "report.md",
        "report.csv",
        "report.html",
        "runs.png",
        "runs.svg",
    } <= there
    document = json.loads(Path("here/report.json").read_text())
    rows = list(csv.DictReader(Path("here/report.csv").read_text().splitlines()))
    assert len(rows) == len(document["runs"]) == 30
    by_directory = {row["directory"]: row for row in rows}
    for found in document["cells"]:
        for item in found["values"]:
            assert float(by_directory[item["directory"]]["test/accuracy"]) == item["value"]
    assert " ".join(document["paragraph"].split()) in " ".join(outcome.out.split())


def test_help_names_each_option(cvexp: Callable[..., Outcome]) -> None:
    shown = cvexp("report", "--help")
    assert shown.code == 0
    for option in ("--metric", "--baseline", "--margin", "--select", "--out"):
        assert shown.out.count(option) >= 1
    assert "levels of the cell to compare with" in shown.out


def test_each_column_has_its_heading(sweep: Path) -> None:
    document = report(sweep, margin=0.5)
    every = [*table.sheets(document), table.values(document), table.costs(document)]
    for sheet in [*every, table.tests(document)]:
        assert {len(row) for row in sheet.rows} == {len(sheet.header)}
    first = dict(zip(sheet.header, sheet.rows[0], strict=True))
    contrast = document["cells"][0]["contrast"]
    assert first["Holm p"] == table.probability(contrast["p_holm"])
    assert first["equivalence p"] == table.probability(contrast["p_equivalent"])


def test_the_markdown_is_the_one_on_file(sweep: Path) -> None:
    """To renew it after a change on purpose: remove the file and run this test twice."""
    text = table.markdown(report(sweep), {"runs": "Every run."})
    if not GOLDEN.exists():
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
        pytest.fail(f"{GOLDEN} was written; read it")
    assert text == GOLDEN.read_text()


def test_a_strangers_text_is_shown_and_not_obeyed(
    cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    evil = "=1+1<script>alert(1)</script>[red]|x|\x1b[2J"
    every = [made({"model.name": name}, 0, 0.5) for name in (evil, "plain")]
    every[0] |= {"status": "failed", "reason": evil, "metrics": {}}
    for name, record in zip("ab", every, strict=True):
        write_run(tmp_path / "s" / name, record)
    outcome = cvexp("report", "s")
    assert outcome.code == 0, outcome.err
    assert "\x1b" not in outcome.out
    assert "[red]" in outcome.out
    markdown = Path("s/report/report.md").read_text()
    assert "<script>" not in markdown
    assert "\\|x\\|" in markdown
    rows = list(csv.DictReader(Path("s/report/report.csv").read_text().splitlines()))
    assert rows[0]["reason"].startswith("'=")
    assert "<script>alert" not in Path("s/report/report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "report takes folders"),
        (["nowhere"], "no such folder"),
        (["empty"], "no run there"),
        (["s", "--metric", "test/acuracy"], "did you mean test/accuracy"),
        (["s", "--metric", "epoch", "--select", "best"], "no run has it"),
        (["s", "--baseline", "freeze"], "no cell is that"),
        (["s", "--baseline", "freeze=lost"], "there are: freeze=last; freeze=full"),
        (["s", "--baseline", "ema=none"], "no cell is that"),
        (["s", "--margin", "-1"], "--margin -1"),
        (["s", "--margin", "x"], "--margin"),
        (["s", "--select", "first"], "--select"),
        (["bad"], "bad/sweep.json is no design of a sweep"),
        (["worse"], "worse/sweep.json is no design of a sweep"),
    ],
)
def test_a_bad_request_is_one_line(
    arguments: list[str], message: str, cvexp: Callable[..., Outcome], tmp_path: Path
) -> None:
    write(tmp_path / "s", [made({"freeze": level}, 0, 0.9) for level in ("last", "full")])
    (tmp_path / "empty").mkdir()
    shutil.copytree(tmp_path / "s", tmp_path / "bad")
    (tmp_path / "bad" / "sweep.json").write_text("[1]")
    shutil.copytree(tmp_path / "s", tmp_path / "worse")
    design = {"cells": [{"directory": "x", "overrides": ["a=[1,"]}]}
    (tmp_path / "worse" / "sweep.json").write_text(json.dumps(design))
    outcome = cvexp("report", *arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert not list(tmp_path.glob("*/report"))


def test_records_that_cannot_be_read_and_values_that_are_none(tmp_path: Path) -> None:
    every = [made({"freeze": level}, seed, 0.9) for level in ("last", "full") for seed in (0, 1)]
    del every[0]["metrics"]["test/accuracy"]
    folder = write(tmp_path / "s", every)
    (folder / "freeze-full_seed-1" / "run.json").write_text("{")
    document = report(folder)
    last, full = document["cells"]
    assert (last["n"], last["complete"]) == (1, "2/2")
    assert full["complete"] == "1/2 (1 failed)"
    assert "freeze-full_seed-1/run.json cannot be read" in document["runs"][3]["reason"]
    assert "1 completed run without test/accuracy" in " ".join(document["notes"])
    (folder / "sweep.json").unlink()  # nobody planned it
    document = report(folder)
    assert cell(document, "freeze=full")["complete"] == "1/1"
    assert "run.json cannot be read" in " ".join(document["notes"])


def test_whatever_a_file_holds_there_is_a_report(tmp_path: Path) -> None:
    """Every part of a record in turn is something else, as a stranger's may be."""
    plain = made({"freeze": "last"}, 0, 0.9)
    folder = write(tmp_path / "s", [plain, made({"freeze": "full"}, 0, 0.9)])
    path = folder / "freeze-last_seed-0" / "run.json"
    refused = 0
    for where in paths(plain):
        for junk in (None, [], {}, "x", -1, True, float("nan"), [1]):
            record = json.loads(json.dumps(plain))
            node = record
            for key in where[:-1]:
                node = node[key]
            node[where[-1]] = junk
            path.write_text(json.dumps(record))
            document = report(folder)
            json.dumps(document, allow_nan=False)
            table.markdown(document, {})
            records.rows(find([folder]))
            refused += any("no record" in str(run["reason"]) for run in document["runs"])
    assert refused > 100
    path.write_text(json.dumps(plain))
    for name in (".hydra/config.yaml", "metrics.jsonl"):
        for content in (
            "",
            "[",
            "- 1",
            "1: 2",
            "a: .nan",
            '{"val/loss": NaN, "epoch": []}',
            "data: [1]",
        ):
            (path.parent / name).write_text(content)
            json.dumps(report(folder), allow_nan=False)


def paths(node: Any) -> Iterator[list[Any]]:
    for key, value in node.items() if isinstance(node, dict) else ():
        yield [key]
        yield from ([key, *rest] for rest in paths(value))


def test_a_sweep_that_goes_on_says_what_is_missing(tmp_path: Path) -> None:
    going = made({"freeze": "last"}, 0, 0.9, "running")
    document = report(write(tmp_path / "s", [going], [({"freeze": "full"}, 0)]))
    assert [c["complete"] for c in document["cells"]] == ["0/1 (1 lost)", "0/1 (1 missing)"]
    assert "nothing is compared" in document["paragraph"]
    assert records.STATUSES[0] == "ok"


def test_a_sweep_ends_with_its_report_and_tensorboard_knows_its_factors(
    cvexp: Callable[..., Outcome],
) -> None:
    small = [*TOY, "trainer.limit_train_batches=2"]
    outcome = cvexp("-m", *small, "freeze=last,full", "tags=[a]", "sweep=s")
    assert outcome.code == 0, outcome.err
    document = json.loads(Path("multirun/s/report/report.json").read_text())
    assert document["factors"] == {"freeze": ["last", "full"]}
    assert " ".join(document["paragraph"].split()) in " ".join(outcome.out.split())
    values = {c["levels"]["freeze"]: c["mean"] for c in document["cells"]}
    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory("multirun/s")
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, "multirun/s")
    view = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    every = api_pb2.ListSessionGroupsRequest(slice_size=9, allowed_statuses=[1, 2, 3])
    groups = list_session_groups.Handler(RequestContext(), view, "", every).run().session_groups
    shown = {
        group.hparams["freeze"].string_value: metric.value
        for group in groups
        for metric in group.metric_values
        if metric.name.tag == "test/accuracy"
    }
    assert shown == pytest.approx(values)
    assert {group.hparams["optimizer"].string_value for group in groups} == {"adamw"}


def test_frame_has_a_row_a_run(sweep: Path) -> None:
    frame = load(sweep)
    assert list(frame.columns[:3]) == ["directory", "status", "reason"]
    assert len(frame) == 30
    assert set(frame.status) == {"ok", "diverged", "out of memory", "missing"}
    assert frame[frame.status == "ok"]["train_s"].notna().all()
    assert frame.groupby(["freeze", "precision"]).seed.apply(sorted).tolist() == [[*range(5)]] * 6
    with pytest.raises(UsageError, match="no such folder"):
        load(sweep / "nowhere")
