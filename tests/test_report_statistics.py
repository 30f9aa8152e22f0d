"""The report's formulas against scipy, statsmodels, exact arithmetic and their definitions."""

import itertools
import math
import random
import statistics as exact
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import ttost_paired

from cvexp.report import statistics
from cvexp.report.statistics import (
    Estimate,
    binomial_standard_error,
    detectable,
    equivalent,
    estimate,
    holm,
    p_value,
    pareto,
    seeds_needed,
    sign_flip,
    simultaneous,
    welch,
)

SAMPLES = list(itertools.product((2, 3, 5, 8, 20, 50), (1e-6, 0.01, 1.0, 1e5), (0.0, 0.7, 4.0)))
SAME = [[0.1 + 0.2 - 0.3] * 3, [a - 0.9 for a in (0.91, 0.91 + 2e-16, 0.91 - 2e-16)]]


def near(expected: Any, relative: float = 1e-12) -> Any:
    return pytest.approx(expected, rel=relative, abs=0)


def draw(n: int, scale: float, shift: float, more: int = 0) -> list[float]:
    """Draw n values of a given sd about shift sd; the same for the same arguments."""
    rng = np.random.default_rng([n, round(scale * 1e6), round(shift * 10), more])
    return (scale * (shift + rng.standard_normal(n))).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_estimate_is_scipys_interval(level: float) -> None:
    for sample in SAMPLES:
        values = draw(*sample)
        interval = stats.ttest_1samp(values, 0).confidence_interval(level)
        assert estimate(values, level) == (
            len(values),
            near(exact.mean(values)),
            near(exact.stdev(values)),
            *(pytest.approx(bound, rel=1e-12, abs=1e-12 * sample[1]) for bound in interval),
        )


def test_paired_estimate_and_p_are_scipys_of_related_samples() -> None:
    for sample in SAMPLES:
        a, b = np.array(draw(*sample)), np.array(draw(*sample, more=1))
        paired = stats.ttest_rel(a, b)
        bounds = pytest.approx(
            tuple(paired.confidence_interval()), rel=1e-12, abs=1e-12 * sample[1]
        )
        assert estimate((a - b).tolist())[3:] == bounds
        assert p_value((a - b).tolist()) == near(paired.pvalue)


def test_p_value_is_scipys_of_one_sample() -> None:
    for sample in SAMPLES:
        values = draw(*sample)
        assert p_value(values) == near(stats.ttest_1samp(values, 0).pvalue)


@pytest.mark.parametrize("shift", [0.0, 1.0, -1e6, 1e6])
@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0, 1e3])
def test_mean_and_sd_are_those_of_exact_arithmetic(shift: float, scale: float) -> None:
    for n in (2, 3, 7, 30):
        values = [shift + value for value in draw(n, scale, 0)]
        result = estimate(values)
        assert result.mean == near(exact.mean(values), 1e-15)
        assert result.sd == near(exact.stdev(values))


def test_moments_survive_numbers_whose_squares_do_not() -> None:
    assert estimate([1e-200, 3e-200]).sd == near(math.sqrt(2) * 1e-200)
    assert estimate([1e200, 3e200]).sd == near(math.sqrt(2) * 1e200)


@pytest.mark.parametrize("value", [0.0, 0.1, -1 / 3, 1e6 + 0.1, 5e-324])
def test_identical_values_have_themselves_as_mean_and_no_sd(value: float) -> None:
    """Also at n = 49, where a product divided by its factor is not always the other."""
    for n in (2, 3, 10, 49, 1000):
        assert estimate([value] * n) == Estimate(n, value, 0.0, value, value)


def test_estimate_of_too_few_values_says_only_what_they_do() -> None:
    assert estimate([]) == Estimate(0, None, None, None, None)
    assert estimate([0.5]) == Estimate(1, 0.5, None, None, None)


def test_nothing_depends_on_the_order_of_values() -> None:
    """To the last bit: shuffled files give the same report."""
    for n in (3, 5, 12, 25):
        values, other = draw(n, 0.01, 0.3), draw(n, 0.02, 0)
        results: list[Any] = []
        for _ in range(4):
            random.Random(len(results)).shuffle(values)
            results.append(
                (
                    estimate(values),
                    p_value(values),
                    sign_flip(values),
                    welch(values, other),
                    simultaneous(values, 4),
                    equivalent(values, 0.01),
                )
            )
        assert len(set(results)) == 1


@pytest.mark.parametrize("factor", [2.0**-30, 1e-3, 7.0, 1e6])
def test_a_change_of_unit_scales_estimates_and_leaves_p(factor: float) -> None:
    for n in (3, 5, 21):
        values, other = draw(n, 0.01, 0.3), draw(n, 0.02, 0)
        scaled, rescaled = [v * factor for v in values], [v * factor for v in other]
        assert estimate(scaled)[1:] == near(tuple(v * factor for v in estimate(values)[1:] if v))
        assert welch(scaled, rescaled) == near(
            tuple(v * factor for v in welch(values, other) or ())
        )
        assert p_value(scaled) == near(p_value(values))
        assert sign_flip(scaled) == sign_flip(values)
        assert equivalent(scaled, 0.01 * factor) == near(equivalent(values, 0.01))
        assert detectable(factor, n) == near(factor * (detectable(1, n) or 0))


def test_a_change_of_sign_mirrors_estimates_and_leaves_p() -> None:
    for n in (2, 3, 5, 21):
        values = draw(n, 0.01, 0.3)
        mirrored = [-value for value in values]
        _, mean, sd, low, high = estimate(values)
        assert estimate(mirrored) == (n, -(mean or 0), sd, -(high or 0), -(low or 0))
        assert p_value(mirrored) == p_value(values)
        assert sign_flip(mirrored) == sign_flip(values)
        assert equivalent(mirrored, 0.01) == equivalent(values, 0.01)


def test_a_constant_shift_moves_the_interval_and_leaves_sd() -> None:
    values = [0.25, 0.75, 0.5, 1.25]  # exact also beside a million
    _, mean, sd, low, high = estimate(values)
    shifted = estimate([value + 1e6 for value in values])
    assert (shifted.mean, shifted.sd) == ((mean or 0) + 1e6, sd)
    assert shifted[3:] == near(((low or 0) + 1e6, (high or 0) + 1e6))


def test_t_interval_of_three_covers_what_it_says() -> None:
    draws = np.random.default_rng(1).standard_normal((40_000, 3)) + 0.5
    intervals = (estimate(values)[3:] for values in draws.tolist())
    covered = sum((low or 0) <= 0.5 <= (high or 0) for low, high in intervals) / len(draws)
    assert covered == pytest.approx(0.95, abs=0.004)  # 3.7 standard errors


def test_p_value_is_uniform_where_nothing_differs() -> None:
    draws = np.random.default_rng(2).standard_normal((20_000, 5)).tolist()
    ps = np.array([p_value(values) for values in draws])
    assert stats.kstest(ps, "uniform").pvalue > 0.001


@pytest.mark.parametrize(
    ("differences", "p"),
    [([], None), ([0.3], None), ([0.0], None), ([0.0, -0.0], 1.0), ([0.0] * 5, 1.0)],
)
def test_p_value_without_a_spread(differences: list[float], p: float | None) -> None:
    assert p_value(differences) == p


@pytest.mark.parametrize("differences", [[0.25] * 5, [-1e-3] * 2, *SAME])
def test_differences_that_are_the_same_to_rounding_have_no_p(differences: list[float]) -> None:
    assert p_value(differences) is None


def test_a_spread_that_metrics_can_have_is_no_rounding() -> None:
    """One image of a million, and one bit of a float32 loss."""
    assert p_value([0.5, 0.5, 0.5 + 1e-6]) == near(stats.ttest_1samp([0, 0, 1], -5e5).pvalue, 1e-6)
    ones = [float(np.nextafter(np.float32(1), np.float32(2))), 1.0, 1.0]
    assert p_value(ones) is not None


def brute_flips(differences: Sequence[float]) -> float:
    """Return the share of flips as far from 0, in integers, which do not round."""
    signs = itertools.product((1, -1), repeat=len(differences))
    sums = [abs(sum(s * d for s, d in zip(sign, differences, strict=True))) for sign in signs]
    return sum(one >= abs(sum(differences)) for one in sums) / len(sums)


@pytest.mark.parametrize("scale", [1, 0.1, 1e-4, 1 / 3, 1e9])
def test_sign_flip_is_its_definition_with_ties_and_zeros(scale: float) -> None:
    """Integers say what ties; the same in another unit is what rounding may not break."""
    rng = np.random.default_rng(3)
    for n in range(1, 11):
        for _ in range(6):
            integers = rng.integers(-4, 6, n).tolist()
            p, floor = sign_flip([scale * integer for integer in integers])
            assert (p, floor) == (brute_flips(integers), 2 / 2**n)


def test_sign_flip_of_accuracies_ties_as_their_counts_do() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        a, b = rng.integers(9000, 9020, (2, 6)).tolist()
        p, _ = sign_flip([x / 10_000 - y / 10_000 for x, y in zip(a, b, strict=True)])
        assert p == brute_flips([x - y for x, y in zip(a, b, strict=True)])


@pytest.mark.parametrize("n", [2, 3, 6, 8])
def test_sign_flip_is_scipys_permutation_test(n: int) -> None:
    for shift in (0.0, 0.5, 3.0):
        values = draw(n, 0.01, shift)
        oracle = stats.permutation_test(
            (values,), np.mean, permutation_type="samples", n_resamples=math.inf
        )
        assert sign_flip(values)[0] == near(oracle.pvalue)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 10, 20])
def test_sign_flip_reaches_its_floor_and_one(n: int) -> None:
    assert sign_flip([0.1 + 0.01 * k for k in range(n)]) == (2 / 2**n, 2 / 2**n)
    assert sign_flip([0.0] * n)[0] == 1.0


def test_sign_flip_of_nothing_is_one() -> None:
    assert sign_flip([]) == (1.0, 1.0)


def test_sign_flip_of_differences_that_cancel_is_one() -> None:
    assert sum([0.1, 0.2, -0.3]) != 0
    assert sign_flip([0.1, 0.2, -0.3])[0] == 1.0


def test_random_flips_agree_with_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for shift in (0.1, 0.4, 0.7):
        values = draw(20, 1.0, shift)
        every, _ = sign_flip(values)
        with monkeypatch.context() as patch:
            patch.setattr(statistics, "_ENUMERATED", 19)
            some, _ = sign_flip(values)
        assert some != every
        assert some == pytest.approx(every, abs=4 * math.sqrt(every * (1 - every) / 1e5) + 1e-5)


def test_random_flips_repeat_and_keep_the_floor() -> None:
    values = [0.1] * 40
    assert sign_flip(values) == sign_flip(values) == (1 / 100_001, 2 / 2**40)
    assert sign_flip([0.0] * 21)[0] == 1.0
    assert sign_flip([0.1] * 1100)[1] == 0.0  # below what a float holds


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_welch_is_scipys_interval(level: float) -> None:
    for n, scale, shift in SAMPLES:
        for m, ratio in ((2, 1.0), (5, 0.01), (9, 30.0)):
            a, b = draw(n, scale, shift), draw(m, scale * ratio, 0, more=1)
            interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(level)
            wide = interval.high - interval.low
            assert welch(a, b, level) == pytest.approx(tuple(interval), rel=1e-12, abs=1e-12 * wide)


def test_welch_without_a_spread_is_a_point_and_without_two_nothing() -> None:
    assert welch([0.9] * 3, [0.7] * 3) == (0.9 - 0.7, 0.9 - 0.7)
    assert welch([0.9], [0.7, 0.8]) is None
    assert welch([0.9, 0.8], []) is None


def test_welch_with_one_spread_is_the_t_interval_of_that_one() -> None:
    values = draw(5, 0.01, 1)
    assert welch(values, [0.0] * 3) == near(estimate(values)[3:])
    assert welch([1e-200, 2e-200], [0.0, 0.0]) == near(estimate([1e-200, 2e-200])[3:])


@pytest.mark.parametrize("family", [1, 2, 7, 100])
def test_simultaneous_is_scipys_interval_at_bonferronis_level(family: int) -> None:
    for sample in SAMPLES:
        values = draw(*sample)
        result = stats.ttest_1samp(values, 0)
        interval = result.confidence_interval(1 - 0.05 / family)
        wide = interval.high - interval.low
        assert simultaneous(values, family) == pytest.approx(
            tuple(interval), rel=1e-12, abs=1e-12 * wide
        )


def test_simultaneous_of_one_is_plain_and_of_too_few_nothing() -> None:
    values = draw(5, 0.01, 1)
    assert simultaneous(values, 1) == near(estimate(values)[3:])
    assert simultaneous([], 3) == simultaneous([0.1], 3) == (None, None)


@pytest.mark.parametrize(
    ("n", "half_width", "least", "floor"),
    [
        (3, "2.48", "3.26", "0.25"),
        (5, "1.24", "1.68", "0.0625"),
        (8, "0.84", "1.16", "0.0078"),
        (10, "0.72", "1.00", "0.0020"),
        (20, "0.47", "0.66", "0.000002"),
    ],
)
def test_the_table_of_few_seeds_holds(n: int, half_width: str, least: str, floor: str) -> None:
    values = draw(n, 0.02, 0)
    _, _, sd, low, high = estimate(values)
    assert f"{((high or 0) - (low or 0)) / 2 / (sd or 0):.2f}" == half_width
    assert f"{(detectable(sd or 0, n) or 0) / (sd or 1):.2f}" == least
    assert f"{sign_flip(values)[1]:.{len(floor) - 2}f}" == floor


@pytest.mark.parametrize(("level", "power"), [(0.95, 0.8), (0.9, 0.5), (0.99, 0.95), (0.999, 0.9)])
@pytest.mark.parametrize("n", [2, 3, 5, 10, 40, 1000, 10_000])
def test_detectable_difference_has_the_power_asked_for(n: int, level: float, power: float) -> None:
    """By scipy.stats.nct, upper and lower tail; the latter is nan where it is nothing."""
    shift = (detectable(1, n, level, power) or 0) * math.sqrt(n)
    critical = stats.t.isf((1 - level) / 2, n - 1)
    lower = np.nan_to_num(stats.nct.cdf(-critical, n - 1, shift))
    assert stats.nct.sf(critical, n - 1, shift) + lower == pytest.approx(power, abs=1e-11)


@pytest.mark.parametrize("power", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("n", [3, 4, 5, 8, 20, 100])
def test_detectable_is_that_of_statsmodels(n: int, power: float) -> None:
    oracle = TTestPower().solve_power(None, n, 0.05, power)
    assert detectable(0.02, n, 0.95, power) == near(0.02 * oracle, 1e-5)  # its solver's tolerance


@pytest.mark.parametrize("ratio", [3.0, 1.5, 0.9, 0.5, 0.2, 0.05, 0.03])
def test_seeds_needed_are_those_of_statsmodels(ratio: float) -> None:
    pairs = TTestPower().solve_power(ratio, None, 0.05, 0.8)
    assert seeds_needed(0.01, 0.01 * ratio) == math.ceil(pairs)
    assert seeds_needed(0.01, -0.01 * ratio) == math.ceil(pairs)


def test_a_simulation_finds_the_detectable_difference_as_often_as_it_says() -> None:
    n, draws = 5, np.random.default_rng(6).standard_normal((100_000, 5))
    values = draws + (detectable(1, n) or 0)
    t = values.mean(1) / values.std(1, ddof=1) * math.sqrt(n)
    assert np.mean(np.abs(t) > stats.t.isf(0.025, n - 1)) == pytest.approx(0.8, abs=0.005)


def test_seeds_needed_is_the_smallest_number_whose_difference_shows() -> None:
    """At every n up to 40: exactly there, and one more just below."""
    for n in range(2, 41):
        least = detectable(0.013, n) or 0
        assert seeds_needed(0.013, least) == n
        assert seeds_needed(0.013, least * (1 - 1e-9)) == n + 1
        assert seeds_needed(0.013, least, most=n - 1) is None


def test_seeds_needed_at_the_ends() -> None:
    assert seeds_needed(0.01, 0.0) is None
    assert seeds_needed(0.0, 0.0) is None
    assert seeds_needed(0.0, 1e-9) == 2
    assert seeds_needed(0.01, 1.0) == 2
    assert seeds_needed(1.0, 0.01) is None
    assert seeds_needed(0.0, 0.1, most=1) is None


def test_detectable_of_too_few_or_of_no_spread() -> None:
    assert detectable(0.1, 0) is detectable(0.1, 1) is None
    assert detectable(0.0, 5) == 0.0


def test_holm_is_that_of_statsmodels() -> None:
    rng = np.random.default_rng(7)
    for n in (1, 2, 3, 10, 40):
        for power in (1, 4):
            ps = rng.random(n) ** power
            ps[: n // 3] = ps[-1]  # ties
            adjusted = multipletests(ps, method="holm")[1].tolist()
            assert holm(ps.tolist()) == near(adjusted)


def test_holm_leaves_out_what_was_not_tested() -> None:
    assert holm([None, 0.01, None, 0.04, 0.03]) == [None, near(0.03), None, near(0.06), near(0.06)]
    assert holm([None, None]) == [None, None]
    assert holm([]) == []


def test_holm_stays_in_order_between_its_p_and_one() -> None:
    ps = sorted(np.random.default_rng(8).random(30).tolist())
    adjusted = [p or 0 for p in holm(ps)]
    assert adjusted == sorted(adjusted)
    assert all(p <= q <= 1 for p, q in zip(ps, adjusted, strict=True))
    assert holm([0.0, 1.0, 1.0]) == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("margin", [0.3, 1.0, 5.0])
def test_equivalent_is_statsmodels_two_one_sided_tests(margin: float) -> None:
    for n, scale, shift in SAMPLES:
        a, b = np.array(draw(n, scale, shift)), np.array(draw(n, scale, 0, more=1))
        p, _, _ = ttost_paired(a, b, -margin * scale, margin * scale)
        assert equivalent((a - b).tolist(), margin * scale) == near(p)


def test_equivalent_without_a_spread_compares() -> None:
    assert equivalent([0.01] * 4, 0.02) == equivalent([-0.01] * 4, 0.02) == 0.0
    assert equivalent([0.01] * 4, 0.01) == equivalent([-0.03] * 4, 0.02) == 1.0
    assert equivalent([0.0] * 4, 0.01) == 0.0
    assert equivalent([0.03 - 0.02] * 4, 0.01) == 1.0  # below by rounding alone
    assert equivalent(SAME[1], 0.01) == 1.0
    assert equivalent([], 0.1) is equivalent([0.0], 0.1) is None


def test_equivalent_within_nothing_is_never_shown() -> None:
    assert equivalent([0.1, -0.1, 0.2], 0.0) == near(1 - (p_value([0.1, -0.1, 0.2]) or 0) / 2)
    assert equivalent([0.0, 0.0], 0.0) == 1.0


@pytest.mark.parametrize(("accuracy", "images"), [(0.0, 10), (1.0, 10), (0.9, 10_000), (0.5, 1)])
def test_binomial_standard_error_is_scipys(accuracy: float, images: int) -> None:
    assert binomial_standard_error(accuracy, images) == near(
        stats.binom(images, accuracy).std() / images
    )


def brute_front(points: Sequence[tuple[float | None, float | None]], goal: str) -> list[bool]:
    def beats(a: Any, b: Any) -> Any:
        if None in a or None in b:
            return False
        value = a[1] - b[1] if goal == "max" else b[1] - a[1]
        return a[0] <= b[0] and value >= 0 and (a[0] < b[0] or value > 0)

    return [None not in p and not any(beats(q, p) for q in points) for p in points]


@pytest.mark.parametrize("goal", ["max", "min"])
def test_pareto_is_its_definition(goal: str) -> None:
    rng = random.Random(9)
    for _ in range(400):
        n, high = rng.randint(0, 12), rng.choice((2, 5, 20))
        points: list[tuple[float | None, float | None]] = [
            (rng.randint(0, high), rng.randint(-high, high)) for _ in range(n)
        ]
        points += [(None, 99)] * rng.randint(0, 1) + [(0, None)] * rng.randint(0, 1)
        rng.shuffle(points)
        assert pareto(points, goal) == brute_front(points, goal)


def test_pareto_keeps_equal_points_and_turns_with_the_goal() -> None:
    points: list[tuple[float | None, float | None]] = [(1, 0.5), (1, 0.5), (2, 0.9), (2, 0.4)]
    assert pareto(points, "max") == [True, True, True, False]
    assert pareto(points, "min") == [True, True, False, True]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "call",
    [
        lambda bad: estimate([0.1, bad]),
        lambda bad: estimate([bad]),
        lambda bad: p_value([0.1, bad]),
        lambda bad: sign_flip([0.1, bad]),
        lambda bad: welch([0.1, bad], [0.1, 0.2]),
        lambda bad: welch([0.1, 0.2], [0.1, bad]),
        lambda bad: simultaneous([0.1, bad], 2),
        lambda bad: detectable(bad, 5),
        lambda bad: seeds_needed(0.1, bad),
        lambda bad: seeds_needed(bad, 0.1),
        lambda bad: holm([0.1, bad]),
        lambda bad: equivalent([0.1, bad], 0.1),
        lambda bad: equivalent([0.1, 0.2], bad),
        lambda bad: binomial_standard_error(bad, 10),
        lambda bad: pareto([(1, bad)], "max"),
        lambda bad: pareto([(bad, 1)], "max"),
    ],
)
def test_a_number_that_is_not_finite_is_refused(call: Callable[[float], Any], bad: float) -> None:
    with pytest.raises(AssertionError):
        call(bad)
