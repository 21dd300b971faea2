"""Picking at all nodes at once: the torch path against the oracle, against the lazy walk, and against multinomial."""

from __future__ import annotations

import pytest
import reference.tree
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import walk_case

from zerodraft.kernels.verify import pick, pick_and_walk, walk


@settings(max_examples=150)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 12), st.integers(1, 30))
def test_argmax_walks_as_the_oracle(seed: int, rows: int, width: int, vocab: int) -> None:
    scores, token_ids, parents, verify = walk_case(seed, rows, width, vocab)
    got = pick_and_walk(scores, token_ids, parents, verify)
    for row in range(rows):
        picks = scores[row].argmax(-1).tolist()
        path, token = reference.tree.greedy_walk(
            picks, token_ids[row].tolist(), parents[row].tolist(), verify[row].tolist()
        )
        assert got[row] == (tuple(path), token)


def test_the_cases_are_not_trivial() -> None:
    lengths = [len(path) for seed in range(50) for path, _ in pick_and_walk(*walk_case(seed, 2, 9, 20))]
    assert max(lengths) >= 3
    assert min(lengths) == 0


@pytest.mark.parametrize("seed", range(20))
def test_noise_per_output_position_draws_what_plain_decoding_draws(seed: int) -> None:
    """The lazy walk with ``pick`` from a generator, and all nodes at once with that generator's noise drawn ahead."""
    scores, token_ids, parents, verify = walk_case(seed, 1, 9, 40)
    lazy, ahead = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    done = walk(
        token_ids[0].tolist(),
        parents[0].tolist(),
        verify[0].tolist(),
        lambda node: (int(pick(scores[0, node + 1 : node + 2], do_sample=True, generator=lazy)), None),
    )
    before = ahead.get_state()
    noise = torch.stack([torch.empty(1, 40).exponential_(generator=ahead) for _ in range(9)], dim=1)
    assert pick_and_walk(scores, token_ids, parents, verify, noise) == [(done.path, done.new_ids[-1])]
    ahead.set_state(before)  # rewound, and advanced by what was really emitted
    for _ in done.new_ids:
        torch.empty(1, 40).exponential_(generator=ahead)
    assert torch.equal(ahead.get_state(), lazy.get_state())


def test_noise_that_ends_early_ends_the_walk() -> None:
    scores = torch.zeros(1, 3, 4)
    scores[0, :, 2] = 50.0
    chain = torch.tensor([[2, 2]], dtype=torch.int32), torch.tensor([[-1, 0]], dtype=torch.int32)
    verify = torch.ones(1, 2, dtype=torch.bool)
    assert pick_and_walk(scores, *chain, verify, torch.ones(1, 3, 4)) == [((0, 1), 2)]
    assert pick_and_walk(scores, *chain, verify, torch.ones(1, 1, 4)) == [((0,), -1)]


def test_shapes_that_do_not_fit_are_refused() -> None:
    scores, token_ids, parents, verify = walk_case(0, 2, 5, 7)
    with pytest.raises(ValueError, match=r"trees \(B, T - 1\), got \(2, 5, 7\), \(2, 3\)"):
        pick_and_walk(scores, token_ids[:, :3], parents, verify)
    with pytest.raises(ValueError, match="expected scores"):
        pick_and_walk(scores[0], token_ids, parents, verify)
    with pytest.raises(ValueError, match=r"expected noise \(2, D, 7\), got \(2, 3, 8\)"):
        pick_and_walk(scores, token_ids, parents, verify, torch.ones(2, 3, 8))
