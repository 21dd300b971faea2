"""Masks and positions of one forward: golden tables, and random trees against the oracle."""

from __future__ import annotations

import numpy as np
import pytest
import reference.tree
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zerodraft.kernels.tree_attention import ancestor_mask, bucket, forward_inputs, packed_inputs

SMALLEST = torch.finfo(torch.float32).min


def table(text: str) -> list[list[bool]]:
    """Rows of a golden mask: 1 sees, . does not; columns beyond the end of a line are not seen."""
    lines = [line.split() for line in text.strip().splitlines()]
    width = max(len(line) for line in lines)
    return [[mark == "1" for mark in line] + [False] * (width - len(line)) for line in lines]


def test_golden_small_tree() -> None:
    mask, depths = ancestor_mask([-1, -1, 0, 0])  # root r; a and b under r; c and d under a
    expected = """
        1
        1 1
        1 . 1
        1 1 . 1
        1 1 . . 1
    """
    assert mask.tolist() == table(expected)
    assert depths.tolist() == [0, 1, 1, 2, 2]


def test_golden_lookahead() -> None:
    """Window 3, n-grams of 3, 2 guesses: the mask of Lookahead decoding is the ancestor mask of a tree."""
    c, a1, a2, g0, g1 = -1, 0, 1, 5, 7
    parents = [c, a1, c, a1, a2, c, g0, c, g1]  # a1 a2 | b0 b1 b2 | g0.1 g0.2 | g1.1 g1.2
    mask, depths = ancestor_mask(parents)
    expected = """
        1
        1 1
        1 1 1
        1 . . 1
        1 1 . . 1
        1 1 1 . . 1
        1 . . . . . 1
        1 . . . . . 1 1
        1 . . . . . . . 1
        1 . . . . . . . 1 1
    """
    assert mask.tolist() == table(expected)
    assert depths.tolist() == [0, 1, 2, 1, 2, 3, 1, 2, 1, 2]


@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_chain_is_causal(n: int) -> None:
    mask, depths = ancestor_mask(np.arange(n, dtype=np.int32) - 1)
    assert mask.tolist() == [[j <= i for j in range(n + 1)] for i in range(n + 1)]
    assert depths.tolist() == list(range(n + 1))


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 9) -> list[int]:
    n = draw(st.integers(0, max_nodes))
    if draw(st.booleans()):
        return list(range(-1, n - 1))
    return [draw(st.integers(-1, i - 1)) for i in range(n)]


@given(trees(max_nodes=20))
def test_ancestors_of_random_trees(parents: list[int]) -> None:
    mask, depths = ancestor_mask(parents)
    for i in range(len(parents) + 1):
        family = [0, *(node + 1 for node in reference.tree.path_to(i - 1, parents))]
        assert np.flatnonzero(mask[i]).tolist() == family
        assert depths[i] == len(family) - 1


@settings(max_examples=300)
@given(st.data())
def test_ragged_rows_and_windows_against_the_oracle(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 4))
    lengths = data.draw(st.lists(st.integers(0, 12), min_size=rows, max_size=rows))
    parents = data.draw(st.lists(trees(), min_size=rows, max_size=rows))
    windows = data.draw(st.lists(st.sampled_from([None, 1, 2, 3, 8]), min_size=1, max_size=3, unique=True))
    positions, masks = forward_inputs(lengths, parents, windows, dtype=torch.float32)
    assert list(masks) == windows
    for window in windows:
        expected_positions, expected_seen = reference.tree.tree_rules(lengths, parents, window)
        assert positions.tolist() == expected_positions
        assert masks[window].shape == (rows, 1, positions.shape[1], max(lengths) + positions.shape[1])
        additive = torch.where(torch.tensor(expected_seen), 0.0, SMALLEST)
        assert torch.equal(masks[window][:, 0], additive)


@settings(max_examples=200)
@given(st.data())
def test_packed_rows_see_what_they_see_side_by_side(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 4))
    lengths = data.draw(st.lists(st.integers(0, 12), min_size=rows, max_size=rows))
    parents = data.draw(st.lists(trees(), min_size=rows, max_size=rows))
    windows = data.draw(st.lists(st.sampled_from([None, 1, 2, 3, 8]), min_size=1, max_size=3, unique=True))
    positions, masks = packed_inputs(lengths, parents, windows, dtype=torch.float32)
    sizes = [1 + len(up) for up in parents]
    for window in windows:
        expected_positions, expected_seen = reference.tree.tree_rules(lengths, parents, window)
        assert positions.tolist() == [[p for row, size in zip(expected_positions, sizes) for p in row[:size]]]
        seen: list[list[bool]] = []
        before, total = 0, sum(lengths) + sum(sizes)
        for row, (length, size) in enumerate(zip(lengths, sizes)):
            own = [sees[: length + size] for sees in expected_seen[row][:size]]
            seen += [[False] * before + sees + [False] * (total - before - length - size) for sees in own]
            before += length + size
        assert torch.equal(masks[window], torch.where(torch.tensor(seen), 0.0, SMALLEST)[None, None])


def test_places_without_a_node_see_what_the_root_sees() -> None:
    positions, masks = forward_inputs([2, 3], [[], [-1, -1]], [None], dtype=torch.float32)
    seen = masks[None][:, 0] == 0
    assert positions.tolist() == [[2, 2, 2], [3, 4, 4]]
    assert seen[0].tolist() == [[True, True, True, False, False, False]] * 3
    assert seen[1].tolist() == table("1 1 1 1 . .\n 1 1 1 1 1 .\n 1 1 1 1 . 1")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_masks_are_additive_and_finite_in_the_models_dtype(dtype: torch.dtype) -> None:
    positions, masks = forward_inputs([1], [[-1, -1]], [None], dtype=dtype)
    assert positions.dtype == torch.int64
    assert masks[None].dtype == dtype
    assert torch.isfinite(masks[None]).all()
    assert set(masks[None].unique().tolist()) == {0.0, torch.finfo(dtype).min}


@pytest.mark.parametrize(("width", "num_columns"), [(8, None), (4, 20), (16, 32)])
def test_fixed_widths_and_columns_only_add_places_that_nobody_sees(width: int, num_columns: int | None) -> None:
    lengths, parents = [3, 7], [[-1, 0], [-1, -1, 0]]
    positions, masks = forward_inputs(lengths, parents, [None, 2], dtype=torch.float32)
    wide_positions, wide = forward_inputs(
        lengths, parents, [None, 2], dtype=torch.float32, width=width, num_columns=num_columns
    )
    columns = num_columns or 7 + width
    assert torch.equal(wide_positions[:, :4], positions)
    assert wide_positions[:, 4:].tolist() == [[length] * (width - 4) for length in lengths]
    for window in (None, 2):
        assert wide[window].shape == (2, 1, width, columns)
        assert torch.equal(wide[window][:, :, :4, :11], masks[window])
        assert (wide[window][:, :, :, 11:] == SMALLEST).all()
        for row in range(2):  # the places beyond the draft look through the root's eyes
            assert (wide[window][row, 0, 4:] == wide[window][row, 0, 0]).all()


def test_a_width_that_does_not_hold_the_drafts_is_refused() -> None:
    with pytest.raises(ValueError, match="expected width >= 3 and num_columns >= 7, got 2, 7"):
        forward_inputs([5], [[-1, 0]], [None], dtype=torch.float32, width=2)
    with pytest.raises(ValueError, match="expected width >= 3 and num_columns >= 8, got 3, 7"):
        forward_inputs([5], [[-1, 0]], [None], dtype=torch.float32, num_columns=7)


def test_buckets() -> None:
    assert [bucket(n) for n in range(1, 10)] == [1, 2, 4, 4, 8, 8, 8, 8, 16]
    assert [bucket(n) for n in (127, 128, 129, 256, 513)] == [128, 128, 256, 256, 640]
