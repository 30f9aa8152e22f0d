"""A pure function of its coordinates."""

import numpy as np
import pytest

from cvexp.randomness import Stream, permutation, philox4x32, torch_seed, uniforms


# Known answers of Random123 (kat_vectors, philox4x32 with 10 rounds).
@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (
            [0xFFFFFFFF] * 4,
            (0xFFFFFFFF, 0xFFFFFFFF),
            [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        ),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_known_answers(counter: list[int], key: tuple[int, int], answer: list[int]) -> None:
    words = philox4x32(np.array(counter, np.uint64)[:, None], key)
    assert words[:, 0].tolist() == answer


def test_a_draw_does_not_depend_on_its_neighbours() -> None:
    """Alone, in a batch, in any order: the same numbers for the same image."""
    together = uniforms(3, Stream.AUGMENTATION, 5, np.arange(100), 7)
    order = np.random.default_rng(0).permutation(100)
    assert np.array_equal(uniforms(3, Stream.AUGMENTATION, 5, order, 7), together[order])
    assert np.array_equal(uniforms(3, Stream.AUGMENTATION, 5, np.array([42]), 7)[0], together[42])


def test_coordinates_share_no_draws() -> None:
    """No two images, epochs, seeds or streams repeat one another (traps.md 1)."""
    draws = [
        uniforms(seed, stream, epoch, np.arange(50), 4)
        for seed in (0, 1, 2**31)
        for stream in (Stream.AUGMENTATION, Stream.ORDER)
        for epoch in (0, 1, 2)
    ]
    rows = np.concatenate(draws)
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_draws_are_uniform() -> None:
    u = uniforms(0, Stream.AUGMENTATION, 0, np.arange(20_000), 3)
    assert 0 < u.min() < u.max() < 1
    assert np.abs(np.histogram(u, bins=10, range=(0, 1))[0] / u.size - 0.1).max() < 0.005
    assert np.abs(np.corrcoef(u.T) - np.eye(3)).max() < 0.03


def test_permutation_is_one_and_moves_with_seed_and_epoch() -> None:
    orders = [tuple(permutation(seed, epoch, 200)) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(200)) for order in orders)
    assert len(set(orders)) == 4
    assert orders[0] == tuple(permutation(0, 0, 200))


def test_torch_seed_is_one_for_each_step() -> None:
    seeds = {
        torch_seed(s, Stream.STEP, e, i) for s in range(3) for e in range(10) for i in range(50)
    }
    assert len(seeds) == 1500
    assert all(0 <= seed < 2**63 for seed in seeds)
