"""The jobs of a sweep: crossed, walked together, left out."""

import pytest
from omegaconf import OmegaConf

from cvexp.config import UsageError
from cvexp.design import combinations


def jobs(typed: list[str], **sweep: list[str]) -> list[list[str]]:
    return combinations(typed, OmegaConf.create({"pair": [], "exclude": [], **sweep}), None)


def test_axes_are_crossed_in_order_and_the_last_word_counts() -> None:
    assert jobs(["a=1", "b=x,y", "a=2,3"]) == [
        ["a=2", "b=x"],
        ["a=2", "b=y"],
        ["a=3", "b=x"],
        ["a=3", "b=y"],
    ]


def test_a_pair_is_walked_together_and_crossed_with_the_rest() -> None:
    found = jobs(["a=1,2", "b=x,y", "c=0,1"], pair=["a", "b"])
    assert found == [
        [f"a={a}", f"b={b}", f"c={c}"] for a, b in (("1", "x"), ("2", "y")) for c in (0, 1)
    ]


def test_a_cell_is_left_out_by_all_that_it_names() -> None:
    found = jobs(["a=1,2", "b=x,y"], exclude=["a=1,b=y", "a=2, b=x"])
    assert found == [["a=1", "b=x"], ["a=2", "b=y"]]
    assert jobs(["a=1,2", "b=x,y"], exclude=["a=1"]) == [["a=2", "b=x"], ["a=2", "b=y"]]


@pytest.mark.parametrize(
    ("typed", "sweep", "message"),
    [
        (["a=1,2", "bb=3,4,5"], {"pair": ["a", "bb"]}, "a has 2 values, bb has 3 values"),
        (["aa=1,2", "b=3"], {"pair": ["aa", "b"]}, "b is not swept over; swept over: aa"),
        (["seed=1,2"], {"pair": ["seeds"]}, "did you mean seed"),
        (["a=1,2"], {"exclude": ["a=3"]}, "no job has a=3; they have: a=1, a=2"),
        (["a=1"], {"exclude": ["a=1"]}, "leaves no job"),
        (["a=interval(0,1)"], {}, "a grid needs values one by one"),
    ],
)
def test_what_cannot_be_is_said(
    typed: list[str], sweep: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        jobs(typed, **sweep)
