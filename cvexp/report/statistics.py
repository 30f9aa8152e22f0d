"""Every formula of the report: from the values of some seeds to what may be said about them.

Pure functions over finite floats; a value that is not finite is its caller's fault. Results have
the unit of their input; p-values, levels, powers and accuracies are fractions in [0, 1]. The report
starts without scipy.stats, which takes most of a second to import, so the distributions come from
scipy.special.

Differences are paired by seed. Where they agree to 1e-10 of the largest, their spread is taken for
the rounding of the numbers they came from, hence for none: counts of images and float32 losses,
where they differ at all, differ by more, and t-tests on rounding find p ~ 0. The rule knows no
unit; differences that are all rounding, such as 5e-17 and 1e-16, it cannot tell from small ones.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.special import nctdtr, stdtr, stdtrit

_ROUNDING = 1e-10  # of the largest value: what is smaller is no difference
_ENUMERATED = 20  # values whose 2^n sign flips are all looked at
_DRAWS = 100_000  # random flips of more values; the error of p is at most 0.0016


class Estimate(NamedTuple):
    """A mean, its standard deviation (ddof 1) and its t-interval; None where n is too small."""

    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None


def estimate(values: Sequence[float], level: float = 0.95) -> Estimate:
    """Estimate the mean of independent values.

    With few seeds t is right and the bootstrap is not: at n = 3 a nominal 95 % t-interval covers
    95 %, a percentile bootstrap 76 %.
    """
    numbers, n = _finite(values), len(values)
    if n == 0:
        return Estimate(0, None, None, None, None)
    if n == 1:
        return Estimate(1, numbers[0], None, None, None)
    mean, sd = _moments(numbers)
    half = _critical(n - 1, level) * sd / math.sqrt(n)
    return Estimate(n, mean, sd, mean - half, mean + half)


def p_value(differences: Sequence[float]) -> float | None:
    """Test that the mean difference is 0: two-sided one-sample t-test.

    Returns:
        p; 1.0 where every difference is 0; None below two differences, and where all are the same
        to rounding but not 0: the seeds change nothing, so the test has no answer.
    """
    numbers, n = _finite(differences), len(differences)
    if n < 2:
        return None
    if not any(numbers):
        return 1.0
    mean, sd = _moments(numbers)
    if _is_rounding(sd, numbers):
        return None
    return 2 * float(stdtr(n - 1, -abs(mean / sd) * math.sqrt(n)))


def sign_flip(differences: Sequence[float]) -> tuple[float, float]:
    """Test that the differences are symmetric about 0: two-sided sign-flip test of the mean.

    Up to 20 differences all flips are counted; beyond, 100,000 random ones of a fixed seed, where p
    is at least 1e-5 whatever the floor.

    Returns:
        p, and the floor 2 / 2^n below which no n differences come.
    Source: Phipson and Smyth 2010, 1603.05766, for the + 1 of random flips.
    """
    numbers, n = _finite(differences), len(differences)
    sizes = sorted(map(abs, numbers))  # the same flips, whatever the order and the signs
    # A sum in another order, the unflipped one's too, differs from its equal by rounding.
    least = abs(math.fsum(numbers)) - _ROUNDING * math.fsum(sizes)
    floor = min(1.0, 2.0 ** (1 - n))
    if n > _ENUMERATED:
        sums, rng = np.zeros(_DRAWS), np.random.default_rng(0)
        for size in sizes:
            sums += np.where(rng.integers(0, 2, _DRAWS, dtype=bool), size, -size)
        return (int(np.count_nonzero(np.abs(sums) >= least)) + 1) / (_DRAWS + 1), floor
    sums = np.array(sizes[:1] or [0.0])  # one sign stays: a flip of all changes no |sum|
    for size in sizes[1:]:
        sums = np.concatenate((sums + size, sums - size))
    return int(np.count_nonzero(np.abs(sums) >= least)) / sums.size, floor


def welch(
    a: Sequence[float], b: Sequence[float], level: float = 0.95
) -> tuple[float, float] | None:
    """Return the interval of mean(a) - mean(b), unpaired; None if either has fewer than two.

    Equal seeds need not correlate, so that it may be the narrower one.
    Source: Welch 1947; degrees of freedom by Satterthwaite 1946.
    """
    if min(len(a), len(b)) < 2:
        return None
    (mean_a, sd_a), (mean_b, sd_b) = _moments(_finite(a)), _moments(_finite(b))
    difference = mean_a - mean_b
    error_a, error_b = sd_a / math.sqrt(len(a)), sd_b / math.sqrt(len(b))
    error = math.hypot(error_a, error_b)
    if error == 0:
        return difference, difference
    share_a, share_b = (error_a / error) ** 2, (error_b / error) ** 2  # of the variance
    half = _critical(1 / (share_a**2 / (len(a) - 1) + share_b**2 / (len(b) - 1)), level) * error
    return difference - half, difference + half


def simultaneous(
    differences: Sequence[float], family: int, level: float = 0.95
) -> tuple[float | None, float | None]:
    """Return the t-interval that holds for all of a family of intervals at once, by Bonferroni."""
    assert family >= 1, family
    _, _, _, low, high = estimate(differences, 1 - (1 - level) / family)
    return low, high


def detectable(sd: float, n: int, level: float = 0.95, power: float = 0.8) -> float | None:
    """Return the smallest mean difference that n pairs show with a given power.

    That is: which a two-sided paired t-test at 1 - level finds; None below two pairs.

    Args:
        sd: of the differences, not of the values.
    """
    assert 0 <= sd < math.inf, sd
    return sd * _detectable_sds(n, level, power) if n >= 2 else None


@cache
def _detectable_sds(n: int, level: float, power: float) -> float:
    """Return the smallest difference shown, in sd of the differences, by the noncentral t."""
    assert 0 < 1 - level < power < 1, (level, power)
    critical = _critical(n - 1, level)

    def shown(shift: float) -> float:
        tails = nctdtr(n - 1, shift, [critical, -critical])
        upper, lower = np.nan_to_num(tails).tolist()  # nan far out, where scipy's series ends at ~0
        return float(1 - upper + lower)

    low, high = 0.0, 1.0
    while shown(high) < power:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:  # until no float lies between
        low, high = (middle, high) if shown(middle) < power else (low, middle)
    return high / math.sqrt(n)


def seeds_needed(
    sd: float, difference: float, level: float = 0.95, power: float = 0.8, most: int = 10_000
) -> int | None:
    """Return the fewest pairs that show a difference; None if it is 0 or takes more than `most`.

    Args:
        sd: of the differences between paired values; 0 needs the two pairs of any test.
    """
    assert math.isfinite(difference), difference
    if difference == 0:
        return None

    def is_shown(n: int) -> bool:
        least = detectable(sd, n, level, power)
        return least is not None and least <= abs(difference)

    n = 2 + bisect_left(range(2, most + 1), True, key=is_shown)
    return n if n <= most else None


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values for their number, step-down; None is no test and is not counted.

    Source: Holm 1979.
    """
    tests = sorted((p, index) for index, p in enumerate(ps) if p is not None)
    assert all(0 <= p <= 1 for p, _ in tests), ps
    adjusted: list[float | None] = [None] * len(ps)
    largest = 0.0
    for rank, (p, index) in enumerate(tests):
        adjusted[index] = largest = max(largest, min(1.0, (len(tests) - rank) * p))
    return adjusted


def equivalent(differences: Sequence[float], margin: float) -> float | None:
    """Test that the mean difference lies beyond +-margin: p of two one-sided t-tests, the larger.

    Differences that are the same to rounding, where t has no answer, are compared: 0.0 if they are
    below the margin by more than rounding, else 1.0.

    Returns:
        p; small speaks for equivalence. None below two differences.
    Source: Schuirmann 1987.
    """
    assert 0 <= margin < math.inf, margin
    numbers, n = _finite(differences), len(differences)
    if n < 2:
        return None
    mean, sd = _moments(numbers)
    if _is_rounding(sd, numbers):
        return 0.0 if abs(mean) < margin * (1 - _ROUNDING) else 1.0
    return float(stdtr(n - 1, (abs(mean) - margin) / sd * math.sqrt(n)))


def binomial_standard_error(accuracy: float, images: int) -> float:
    """Return the standard error of an accuracy in [0, 1] that the number of images alone makes."""
    assert 0 <= accuracy <= 1, accuracy
    assert images >= 1, images
    return math.sqrt(accuracy * (1 - accuracy) / images)


def pareto(points: Sequence[tuple[float | None, float | None]], goal: str) -> list[bool]:
    """Tell which points no other beats: as good in cost and value, and better in one.

    Args:
        points: (cost, value); with a None it is not on the front, and beats none.
        goal: what a value should be, "max" or "min"; a cost should be low.
    """
    assert goal in ("max", "min"), goal
    sign = -1 if goal == "max" else 1
    full = [(c, sign * v) for c, v in points if c is not None and v is not None]
    assert all(map(math.isfinite, (number for point in full for number in point))), points
    front = set()  # equal points are one
    least = math.inf  # the best value, sign applied, of all that are cheaper
    for cost, value in sorted(full):
        if value < least:
            front.add((cost, value))
            least = value
    return [c is not None and v is not None and (c, sign * v) in front for c, v in points]


def _finite(values: Sequence[float]) -> list[float]:
    """Return the values as Python floats, whose sums below are exact."""
    numbers = [float(value) for value in values]
    assert all(map(math.isfinite, numbers)), numbers
    return numbers


def _moments(numbers: list[float]) -> tuple[float, float]:
    """Return mean and sd (ddof 1) of two or more values, the same in any order.

    Both are good to some units in the last place, whatever constant was added to the values.
    """
    n = len(numbers)
    # Exact sum, rounded quotient: the bounds let identical values have themselves as mean.
    mean = min(max(math.fsum(numbers) / n, min(numbers)), max(numbers))
    deviations = [number - mean for number in numbers]
    rest = math.fsum(deviations) / n  # what rounding took from the mean
    sizes = sorted(abs(deviation - rest) for deviation in deviations)
    return mean, math.hypot(*sizes) / math.sqrt(n - 1)


def _is_rounding(sd: float, differences: list[float]) -> bool:
    """Return whether the differences are all the same but for rounding (module docstring)."""
    return sd <= _ROUNDING * max(map(abs, differences))


def _critical(degrees: float, level: float) -> float:
    """Return what |t| exceeds with probability 1 - level."""
    assert 0 < level < 1, level
    return -float(stdtrit(degrees, (1 - level) / 2))
