"""The report's page in a browser: its numbers, its tables, its manners, and strangers' text."""

import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from cvexp.report.page import page as make_page

pytestmark = pytest.mark.browser

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><rect {}/></svg>'
FIGURES = {
    name: (SVG.format('width="40"').encode(), SVG.format('onload="alert(1)"').encode())
    for name in ("runs", "pareto")
}
ALTERNATIVES = {"runs": 'A "dot" is <b>a run</b>.', "pareto": "The best: 0.91 in 12 s."}
PAYLOADS = (
    "<img src=x onerror=window.hit=1>",
    '"><script>window.hit=1</script>',
    "</script><script>window.hit=1</script>",
    "' onmouseover='alert(1)",
    "a&amp;b & $title ${title}",
    "bell\x07, zero\x00, half \ud800, \u202eright to left, \u2066isolated",
    "</style><svg onload=alert(1)>",
)

# A look at what is under each visible text: the contrast ratios, the lowest first.
CONTRASTS = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const parts = colour.slice(0, 3).map((part) => part / 255)
      .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const under = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    throw Error("nothing opaque is under " + element.outerHTML);
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const texts = [...element.childNodes].filter((n) => n.nodeType === 3 && n.data.trim());
    if (element.tagName === "SCRIPT" || !texts.length || !element.checkVisibility()) continue;
    const [one, other] = [rgba(getComputedStyle(element).color), under(element)].map(light);
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    found.push([ratio, element.textContent]);
  }
  return found.sort(([one], [other]) => one - other);
}"""

# Tables as lists of rows: by column title, the numbers of a cell, or its text.
TABLE = """(table) => {
  const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  return [...table.tBodies].filter((body) => !body.hidden).map((body) => Object.fromEntries(
    [...body.rows[0].cells].map((cell, place) => {
      const numbers = [...cell.querySelectorAll("[data-value]")].map((n) => n.dataset.value);
      return [titles[place], numbers.length ? numbers : cell.textContent];
    })));
}"""


def make_contrast(mean: float, n: int, goal: str = "better") -> dict[str, Any]:
    return {
        "against": "baseline",
        "n": n,
        "seeds": list(range(n)),
        "differences": [{"seed": seed, "value": mean + seed / 3e3} for seed in range(n)],
        "mean": mean,
        "sd": 0.012345678901234567 if n > 1 else None,
        **{end: mean + add if n > 1 else None for end, add in (("low", -0.1), ("high", 0.1))},
        "simultaneous_low": mean - 0.2 / 3 if n > 1 else None,
        "simultaneous_high": mean + 0.2 / 3 if n > 1 else None,
        "wins": n - 1,
        "p": 0.0123456789 if n > 1 else None,
        "p_holm": 0.0370370367 if n > 1 else None,
        "p_sign_flip": 0.25,
        "p_floor": 0.25,
        "detectable": 0.04321 if n > 1 else None,
        "welch_low": mean - 0.3 if n > 1 else None,
        "welch_high": mean + 0.3 if n > 1 else None,
        "p_equivalent": None,
        "verdict": goal if n > 1 else "descriptive only",
    }


def make_cell(name: str, place: int, seeds: list[Any], planned: int) -> dict[str, Any]:
    """Return a cell with a value for each of the seeds; of the planned, the others failed."""
    n, mean = len(seeds), 0.1 + (place * 7 % 11) / 13
    spread = 1 / (place + 30)
    cost = {"median": 1e3 / 7 + place, "low": 1.5, "high": 2.5, "n": n} if n else None
    return {
        "name": name,
        "levels": {"freeze": name},
        "counts": {"ok": n, "out of memory": planned - n} if n < planned else {"ok": n},
        "planned": planned,
        "complete": f"{n}/{planned}" + f" ({planned - n} out of memory)" * (n < planned),
        "by_seed": [
            {"seed": seed, "status": "ok" if seed < n else "out of memory"}
            for seed in range(planned)
        ],
        "values": [{"seed": s, "value": mean + s / 7e3, "directory": f"{name}/{s}"} for s in seeds],
        "n": n,
        "mean": mean if n else None,
        "sd": spread if n > 1 else None,
        "low": mean - spread if n > 1 else None,
        "high": mean + spread if n > 1 else None,
        "min": mean if n else None,
        "max": mean if n else None,
        "flags": ["differs also in optimizer_steps: 120 / 60"] * (place == 2),
        "separates": place == 1,
        "pareto": place in (1, 3),
        "contrast": make_contrast(0.02 / (place - 8.5), n) if place and n else None,
        "cost": {
            "images_per_s": cost,
            "train_s": cost,
            "peak_bytes": {**cost, "median": 3 * 2**30 // 7 + place} if cost else None,
            "energy_j": None,
            "trainable_parameters": {**cost, "median": 3_400_000 + place} if cost else None,
        },
        "contended": int(place == 2),
        "time": None,
        "curves": {},
    }


def make_runs(cell: dict[str, Any], place: int) -> list[dict[str, Any]]:
    runs = []
    for item in cell["by_seed"]:
        done = item["status"] == "ok"
        value = cell["values"][item["seed"]]["value"] if done else None
        points = [[epoch, 0.9 - 0.7 / epoch + place / 1e4] for epoch in range(1, 31)]
        runs.append(
            {
                "directory": f"multirun/sample/{cell['name']}_seed-{item['seed']}",
                "cell": cell["name"],
                "seed": item["seed"],
                "status": item["status"],
                "reason": None if done else "CUDA out of memory: tried to allocate 2.00 GiB",
                "value": value,
                "metrics": {"test/accuracy": value, "test/loss": 1 / 3} if done else {},
                "difference": {"freeze": ["full", cell["name"]], "ema": [None, {"decay": 0.99}]},
                "flags": cell["flags"],
                "contended": place == 2,
                "train_s": 40 / 3 + place if done else None,
                "curves": {"val/accuracy": points, "train/loss": points} if done else {},
            }
        )
    return runs


def make_report(names: list[str], planned: int = 3) -> dict[str, Any]:
    """Return a report: of the last cell no run has gone well, of the one before, one has."""
    done = [planned] * (len(names) - 2) + [1, 0]
    cells = [
        make_cell(name, place, list(range(n)), planned)
        for place, (name, n) in enumerate(zip(names, done, strict=True))
    ]
    effect = {"kind": "main", "name": f"freeze: {names[1]} - {names[0]}", "factor": ["freeze"]}
    return {
        "schema": 1,
        "source": ["multirun/sample"],
        "metric": {"name": "test/accuracy", "select": "last", "goal": "max", "note": "As told."},
        "factors": {"freeze": names},
        "seeds": list(range(planned)),
        "baseline": names[0],
        "margin": 0.005,
        "cells": cells,
        "effects": [{**effect, **make_contrast(0.01 / 3, planned, "no clear difference")}],
        "effects_note": None,
        "floor": {"images": 180, "standard_error": 0.0211},
        "recommendation": {"cell": names[1], "sentence": f"Take {names[1]}: it is the cheapest."},
        "paragraph": f"Of {len(names)} cells, {names[1]} is the best, by 0.02 in 3 seeds of 3.",
        "notes": ["non-determinism: two runs of seed 0 differ in test/accuracy."],
        "runs": [run for place, cell in enumerate(cells) for run in make_runs(cell, place)],
    }


SMALL = make_report(
    [f"freeze={f}, precision={p}" for f in ("full", "most", "last") for p in ("32-true", "bf16")]
)


def poison(report: dict[str, Any], payloads: Iterator[str]) -> Any:
    """Return a document whose every text ends in a payload, and equal texts in the same."""
    told: dict[str, str] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(item) for item in value]
        if isinstance(value, dict):
            theirs = {"curves", "metrics", "difference"}
            for key in theirs & set(value):
                value = {**value, key: {walk(name): item for name, item in value[key].items()}}
            return {key: walk(item) for key, item in value.items()}
        if not isinstance(value, str) or value in ("max", "ok", "better"):
            return value
        return told.setdefault(value, value + next(payloads))

    return walk(report)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path, "these tests need Chromium; as root: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Open a report's page; when the test is over, look for complaints and for requests."""
    heard: list[str] = []
    contexts = []

    def open_page(report: dict[str, Any], figures: Any = FIGURES, **options: Any) -> Page:
        path = tmp_path / "report #1.html"
        path.write_text(make_page(report, figures, ALTERNATIVES), "utf-8")
        options = {"viewport": {"width": 1200, "height": 800}, **options}
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("dialog", lambda dialog: heard.append(dialog.message))
        page.on("dialog", lambda dialog: dialog.dismiss())
        page.on("request", lambda request: heard.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    strange = [line for line in heard if not line.startswith(("file:///", "data:"))]
    assert not strange
    assert sum(line.startswith("file:") for line in heard) == len(contexts)


def read(page: Page, section: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = page.eval_on_selector(f"#{section} table", TABLE)
    return rows


def exact(*numbers: float | None) -> list[str]:
    """Return numbers as report.json has them; of an interval that is none, one lack."""
    return ["" if n is None else json.dumps(n) for n in dict.fromkeys(numbers)]


def column(page: Page, section: str, title: str) -> list[Any]:
    return [row[title] for row in read(page, section)]


def test_each_number_of_a_cell_is_that_of_the_document(show: Callable[..., Page]) -> None:
    rows = read(show(SMALL), "cells")
    assert len(rows) == len(SMALL["cells"])
    for row, cell in zip(rows, SMALL["cells"], strict=True):
        of = cell["contrast"] or dict.fromkeys(make_contrast(0, 2))
        assert cell["name"] in row["cell"]
        assert row["mean"] == exact(cell["mean"])
        assert row["95 % interval"] == exact(cell["low"], cell["high"])
        assert row["runs"] == exact(cell["n"])
        assert row["difference"] == exact(of["mean"])
        assert row["95 % interval of the difference"] == exact(of["low"], of["high"])
        simultaneous = of["simultaneous_low"], of["simultaneous_high"]
        assert row["simultaneous interval"] == exact(*simultaneous)
        assert row["Holm p"] == exact(of["p_holm"])
        assert row["p"] == exact(of["p"])
        assert row["sign-flip p"] == exact(of["p_sign_flip"])
        assert row["its floor"] == exact(of["p_floor"])
        assert row["verdict"] == (of["verdict"] or [""])
        costs = {
            "images/s": "images_per_s",
            "train time, s": "train_s",
            "peak memory, GiB": "peak_bytes",
            "energy, J": "energy_j",
            "trainable parameters": "trainable_parameters",
        }
        for title, key in costs.items():
            assert row[title] == exact((cell["cost"][key] or {"median": None})["median"])
        assert row["flags"] == "".join(cell["flags"])


def test_a_cell_opens_to_the_rest_of_its_numbers(show: Callable[..., Page]) -> None:
    page, cell = show(SMALL), SMALL["cells"][2]
    page.locator("#cells tbody button").nth(2).click()
    shown = page.locator("#cells .more:visible [data-value]").evaluate_all(
        "all => all.map((e) => e.dataset.value)"
    )
    of = cell["contrast"]
    rest = ["wins", "n", "detectable", "welch_low", "welch_high", "p_equivalent"]
    lists = [item["value"] for item in cell["values"]], [d["value"] for d in of["differences"]]
    numbers = [*lists[0], cell["sd"], *lists[1], *(of[key] for key in rest), cell["contended"]]
    assert shown == ["" if n is None else json.dumps(n) for n in numbers]


def test_each_number_of_a_run_is_that_of_the_document(show: Callable[..., Page]) -> None:
    page = show(SMALL)
    for row, run in zip(read(page, "runs"), SMALL["runs"], strict=True):
        assert row["run"] == run["directory"]
        assert row["cell"] == run["cell"]
        assert row["status"] == run["status"] + (run["reason"] or "")
        numbers = row["seed"], row["value"], row["train time, s"]
        assert numbers == tuple(exact(run[key]) for key in ("seed", "value", "train_s"))
    first = page.eval_on_selector_all(
        "#runs tbody:first-of-type .more dd [data-value]", "all => all.map(e => e.dataset.value)"
    )
    assert first == exact(*SMALL["runs"][0]["metrics"].values())


def test_each_number_of_an_effect_is_that_of_the_document(show: Callable[..., Page]) -> None:
    (row,), (effect,) = read(show(SMALL), "effects"), SMALL["effects"]
    assert row["effect"] == effect["name"]
    assert row["difference"] == exact(effect["mean"])
    assert row["95 % interval of the difference"] == exact(effect["low"], effect["high"])
    assert row["Holm p"] == exact(effect["p_holm"])
    assert row["verdict"] == effect["verdict"]


def test_bold_and_badges_where_the_document_says_so(show: Callable[..., Page]) -> None:
    page = show(SMALL)
    heavy = "all => all.filter(e => getComputedStyle(e).fontWeight > 400).map(e => e.textContent)"
    bold = page.eval_on_selector_all("#cells table *", heavy)
    assert set(bold) == {"0.6385"}
    assert f"{SMALL['cells'][1]['mean']:.4f}" == "0.6385"
    badges = page.locator("#cells .badge").all_text_contents()
    assert badges == ["baseline", "recommended", "Pareto set", "Pareto set"]
    assert "180 test images" in (page.text_content("#floor") or "")


def test_what_is_missing_is_told_cell_by_seed(show: Callable[..., Page]) -> None:
    rows = read(show(SMALL), "missing")
    assert [rows[-2][f"seed {seed}"] for seed in range(3)] == ["ok"] + ["out of memory"] * 2
    whole = [cell for cell in SMALL["cells"] if cell["n"] == 3]
    assert show({**SMALL, "cells": whole}).locator("#missing").count() == 0


@pytest.mark.parametrize("by_keyboard", [False, True])
def test_numbers_sort_up_and_down_with_what_is_missing_last(
    show: Callable[..., Page], by_keyboard: bool
) -> None:
    page = show(SMALL)
    means = [cell["mean"] for cell in SMALL["cells"] if cell["n"]]
    heading = page.locator("#cells thead th").nth(1)
    for direction in ("ascending", "descending"):
        if by_keyboard:
            heading.get_by_role("button").focus()
            page.keyboard.press("Enter")
        else:
            heading.get_by_role("button").click()
        assert heading.get_attribute("aria-sort") == direction
        wanted = [*sorted(means, reverse=direction == "descending"), None]
        assert column(page, "cells", "mean") == [exact(mean) for mean in wanted]
    assert page.locator("[aria-sort]").count() == 1


def test_text_sorts_as_people_count(show: Callable[..., Page]) -> None:
    page = show(make_report([f"lr={place}" for place in (10, 9, 100, 1)]))
    page.click("#cells thead button >> nth=0")
    assert [name.split()[0] for name in column(page, "cells", "cell")] == [
        f"lr={place}" for place in (1, 9, 10, 100)
    ]
    page.click("#cells thead button:has-text('verdict')")
    assert column(page, "cells", "verdict")[0] == "better"
    assert column(page, "cells", "verdict")[-1] == [""]


def test_the_filter_counts_what_it_leaves(show: Callable[..., Page]) -> None:
    page = show(SMALL)
    count = page.locator("#runs output[aria-live=polite]")
    assert count.text_content() == "18 of 18 runs"
    page.get_by_label("Filter runs").fill("FREEZE=last  memory")
    assert count.text_content() == "5 of 18 runs"
    assert {row["status"][:13] for row in read(page, "runs")} == {"out of memory"}
    page.get_by_label("Filter runs").fill("")
    assert len(read(page, "runs")) == 18


def test_a_run_opens_by_keyboard_to_its_config_and_its_curves(show: Callable[..., Page]) -> None:
    page = show(SMALL)
    opener = page.locator("#runs tbody button").nth(4)
    more = page.locator("#runs .more").nth(4)
    assert not more.is_visible()
    opener.focus()
    page.keyboard.press("Enter")
    assert opener.get_attribute("aria-expanded") == "true"
    run = SMALL["runs"][4]
    assert f"full → {run['cell']}" in more.inner_text()
    assert 'null → {"decay": 0.99}' in more.inner_text()
    ends = more.locator("figcaption").first.locator("[data-value]")
    points = run["curves"]["val/accuracy"]
    assert ends.nth(0).get_attribute("data-value") == json.dumps(points[0][1])
    assert ends.nth(2).get_attribute("data-value") == json.dumps(points[-1][1])
    corners = more.locator("polyline").first.get_attribute("points") or ""
    assert corners.split()[0] == "4.0,76.0"
    assert corners.split()[-1] == "236.0,4.0"
    assert len(corners.split()) == len(points)
    page.keyboard.press("Space")
    assert not more.is_visible()


def test_a_long_curve_keeps_its_spike(show: Callable[..., Page]) -> None:
    report = json.loads(json.dumps(SMALL))
    points = [[epoch, 1.0 if epoch == 777 else 0.5] for epoch in range(1, 2001)]
    report["runs"][0]["curves"] = {"train/loss": points, "one": [[1, 0.5]], "none": [[1, None]]}
    line = show(report).locator("#runs polyline")
    corners = (line.first.get_attribute("points") or "").split()
    assert len(corners) < 320
    assert [corner for corner in corners if corner.endswith(",4.0")] == ["94.1,4.0"]
    assert line.nth(1).get_attribute("points") == "4.0,4.0"


def test_strangers_text_is_text_everywhere(show: Callable[..., Page]) -> None:
    pages = []
    for payloads in ((" harmless",), PAYLOADS):
        figures = {**FIGURES, payloads[0]: FIGURES["runs"]}
        pages.append(show(poison(SMALL, itertools.cycle(payloads)), figures))
        for button in pages[-1].locator("tbody button").all():
            button.click()
    # The same elements with the same attributes, of which each is one of ours.
    outline = (
        "[...document.querySelectorAll('*')].map((e) => [e.tagName, ...e.getAttributeNames()])"
    )
    harmless, hostile = (page.evaluate(outline) for page in pages)
    assert hostile == harmless
    assert sum(tag == "SCRIPT" for tag, *_ in hostile) == 1
    assert not any(name.startswith("on") for _, *names in hostile for name in names)
    assert pages[1].evaluate("window.hit") is None
    text = pages[1].inner_text("body")
    assert all(payload in text for payload in PAYLOADS if payload.isprintable())
    assert not set("\x00\x07\u202e\u2066") & set(text)


def test_no_other_script_than_ours_runs(browser: Browser, tmp_path: Path) -> None:
    path, harm = tmp_path / "harmed.html", f"{PAYLOADS[0]}<script>window.hit=1</script></main>"
    path.write_text(make_page(SMALL, {}, {}).replace("</main>", harm), "utf-8")
    with browser.new_context() as context:
        page, heard = context.new_page(), []
        page.on("console", lambda message: heard.append(message.text))
        page.goto(path.as_uri())
        assert page.evaluate("[document.images.length, window.hit]") == [1, None]
        assert page.locator("tbody button").count() > 0
    assert all("Content Security Policy" in line for line in heard)
    assert len(heard) >= 2


def test_a_script_in_a_figure_does_not_run(show: Callable[..., Page]) -> None:
    page = show(SMALL, color_scheme="dark")
    for image in page.locator("img").all():
        assert image.evaluate("image => image.decode().then(() => image.currentSrc)").startswith(
            "data:image/svg+xml"
        )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_told_from_what_is_under_it(show: Callable[..., Page], scheme: str) -> None:
    page = show(SMALL, color_scheme=scheme)
    page.click("#cells thead button >> nth=1")
    page.click("#runs tbody:last-of-type button")
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 200
    assert contrasts[0][0] >= 4.5, contrasts[0]


def test_each_image_and_control_has_a_name(show: Callable[..., Page]) -> None:
    page = show(SMALL)
    images = page.eval_on_selector_all("img", "all => all.map((image) => image.alt)")
    assert images == list(ALTERNATIVES.values())
    roles: Any = ("button", "searchbox", "link", "region", "img")
    for role in roles:
        controls = page.get_by_role(role, include_hidden=True)
        named = page.get_by_role(role, name=re.compile(r"\w"), include_hidden=True)
        assert controls.count() == named.count() > 0, role
    assert page.get_attribute("html", "lang") == "en"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the tables"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize("scripted", [True, False])
def test_a_phone_scrolls_tables_but_not_the_page(show: Callable[..., Page], scripted: bool) -> None:
    report = {**SMALL, "paragraph": "test/" + "accuracy" * 40, "source": ["multirun/" + "x" * 200]}
    page = show(report, viewport={"width": 360, "height": 640}, java_script_enabled=scripted)
    if scripted:
        page.click("#runs tbody button >> nth=0")
        page.click("#cells tbody button >> nth=0")
    assert page.evaluate("document.scrollingElement.scrollWidth") == 360
    assert page.eval_on_selector("#cells .scroll", "e => e.scrollWidth > e.clientWidth")
    opened = page.locator("#runs .more div").first.bounding_box()
    assert opened
    assert opened["x"] + opened["width"] <= 360


def test_without_javascript_the_tables_are_there(show: Callable[..., Page]) -> None:
    page = show(SMALL, java_script_enabled=False)
    assert page.locator("#cells tbody").count() == 6
    assert page.locator("#runs .more").first.is_visible()
    assert page.locator("button, input:visible").count() == 0


def test_print_shows_the_whole_width_of_the_tables(show: Callable[..., Page]) -> None:
    page = show(SMALL, color_scheme="dark")
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    assert page.eval_on_selector("body", "e => getComputedStyle(e).backgroundColor") == (
        "rgb(255, 255, 255)"
    )
    assert page.eval_on_selector("#cells .scroll", "e => getComputedStyle(e).overflow") == "visible"


def test_a_number_that_is_none_and_a_run_of_no_cell_are_shown(show: Callable[..., Page]) -> None:
    strange = {"metrics": {"test/a": "0.9<", "test/b": True, "test/c": None}, "cell": None}
    runs = [{**SMALL["runs"][0], **strange, "seed": seed} for seed in (None, 12345, "x")]
    page = show({**SMALL, "runs": runs})
    assert column(page, "runs", "seed") == [[""], ["12345"], "x"]
    assert column(page, "runs", "cell") == [""] * 3
    assert "0.9<" in (page.text_content("#runs .more") or "")


def test_parts_that_a_report_lacks_are_left_out(show: Callable[..., Page]) -> None:
    lacks: dict[str, Any] = dict.fromkeys(("baseline", "margin", "floor", "recommendation"))
    metric = {"name": "val/loss", "select": "best", "goal": "min", "note": None}
    none = {"effects": [], "effects_note": "No effects: one factor.", "notes": []}
    page = show({**SMALL, **lacks, **none, "metric": metric}, {})
    assert page.text_content("#effects p") == "No effects: one factor."
    assert page.locator("#figures, #effects table").count() == 0
    assert "lower is better" in page.inner_text("header")


def test_300_runs_stay_small_and_quick(show: Callable[..., Page]) -> None:
    report = make_report([f"augmentation=mix-{place}" for place in range(60)], planned=5)
    assert len(make_page(report, {}, {}).encode()) < 3 * 2**20
    page = show(report)
    page.get_by_label("Filter runs").fill("mix-7_")
    assert page.text_content("#runs output") == "5 of 300 runs"
    page.get_by_label("Filter runs").fill("")
    page.click("#runs thead button:has-text('value')")
    values = [float(value) for (value,) in column(page, "runs", "value") if value]
    assert values == sorted(values)
    assert len(values) == 291
