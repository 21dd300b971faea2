"""The bigram drafter's q is full and its drafts are verified without a bias: the text has the target's distribution."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import support


@pytest.fixture(scope="module")
def bigram() -> Any:
    return support.bench_module("bigram")


def test_its_distribution_is_that_of_the_counts(bigram: Any) -> None:
    drafter = bigram.BigramDrafter(5)
    drafter.extend([0, 1, 0, 1, 0, 2])
    weight = bigram.UNIGRAM_WEIGHT
    expected = [weight * 3 / 6, 2 + weight * 2 / 6, 1 + weight / 6, 0.0, 0.0]
    assert drafter.distribution(0).tolist() == pytest.approx([value / sum(expected) for value in expected])
    assert drafter.distribution(4).tolist() == pytest.approx([3 / 6, 2 / 6, 1 / 6, 0, 0])


def test_text_written_with_it_has_the_targets_distribution(bigram: Any) -> None:
    """A target that ignores its context: tokens per forward and the tokens' shares are known exactly."""
    import torch

    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    seen: list[int] = []

    def model(input_ids: Any) -> Any:
        seen[:] = input_ids[0].tolist()
        return SimpleNamespace(logits=p.log().expand(1, input_ids.shape[1], 3))

    model.config = SimpleNamespace(vocab_size=3)  # type: ignore[attr-defined]
    sums = bigram.run(model, [0, 1, 2], 2, 3000, seed=0)
    share = torch.bincount(torch.tensor(seen[3:3000]), minlength=3) / len(seen[3:3000])
    assert share.tolist() == pytest.approx(p.tolist(), abs=0.04)  # 3000 draws: more than four standard deviations
    alpha = sums["overlap"] / sums["places"]
    assert 0.8 < alpha <= 1
    assert sums["tokens"] / sums["forwards"] == pytest.approx(1 + alpha + alpha**2, rel=0.05)
