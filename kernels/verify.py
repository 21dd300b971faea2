"""Which drafted tokens the target agrees with: the exact walk for deterministic drafts, and the general rule.

Both leave the emitted text distributed exactly as the target alone would have written it.

* A deterministic draft has a one-hot q. Accepting x with min(1, p/q) and resampling from norm(max(0, p - q)) on a
  rejection is then the same as drawing the target's own token and going on while it was drafted: ``walk``.
* A drafter with a full distribution q needs the rule itself: ``verify_sampled``.

Source: Leviathan, Kalman, Matias, *Fast Inference from Transformers via Speculative Decoding* (arXiv:2211.17192),
Algorithm 1 and section 2.3; for trees, Miao et al., SpecInfer (arXiv:2305.09781), section 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from zerodraft.kernels._twins import use_triton


class Walk(NamedTuple):
    """The result of one walk: accepted node indices from the root down, emitted tokens, and why it ended."""

    path: tuple[int, ...]
    new_ids: tuple[int, ...]
    stop: str


def walk(
    token_ids: Sequence[int],
    parents: Sequence[int],
    verify: Sequence[bool],
    step: Callable[[int], tuple[int, str | None]],
) -> Walk:
    """Walk down a draft for as long as the target's own tokens were drafted.

    Lazy: ``step`` is called once per emitted token, in order, and only at nodes that are reached, so logits processors
    and random draws happen exactly as in plain decoding. Cost: one pass over the draft, then one ``step`` per token.

    Args:
        token_ids, parents, verify: the draft's nodes, each of length n; ``parents[i] < i``, -1 is the root. Nodes with
            ``verify`` False are never accepted.
        step: ``step(node)`` picks the target's token after ``node`` (-1: after the root) and returns it with the
            reason to end the row there, or None.

    Returns:
        Walk; ``stop`` is the reason ``step`` gave, else "full" at a leaf, "rejected" where other tokens were drafted.
    """
    children = {
        (parent, token): node for node, (parent, token, may) in enumerate(zip(parents, token_ids, verify)) if may
    }
    inner = {parent for parent, _ in children}
    path: list[int] = []
    new_ids: list[int] = []
    node = -1
    while True:
        token, reason = step(node)
        new_ids.append(token)
        child = children.get((node, token))
        if child is not None:
            path.append(child)
        if reason is not None:
            return Walk(tuple(path), tuple(new_ids), reason)
        if child is None:
            return Walk(tuple(path), tuple(new_ids), "rejected" if node in inner else "full")
        node = child


def pick(scores: torch.Tensor, *, do_sample: bool, generator: torch.Generator | None = None) -> torch.Tensor:
    """Choose a token per row with the operations of plain decoding, so the same seed gives the same tokens.

    Args:
        scores: processed logits (rows, V), float32.
        do_sample: one multinomial draw per row, else argmax.
        generator: source of randomness; None uses the device's default one.

    Returns:
        int64 (rows,).
    """
    if not do_sample:
        return torch.argmax(scores, dim=-1)
    probs = torch.nn.functional.softmax(scores, dim=-1)
    return torch.multinomial(probs, num_samples=1, generator=generator).squeeze(1)


def pick_and_walk(
    scores: torch.Tensor,
    token_ids: torch.Tensor,
    parents: torch.Tensor,
    verify: torch.Tensor,
    noise: torch.Tensor | None = None,
) -> list[tuple[tuple[int, ...], int]]:
    """Pick the target's token at every node of every row at once, and walk: for rows whose scores need no history.

    Not lazy: use it where the processors are none or look at the scores alone. On CUDA with Triton one launch, else
    torch operations; one copy from device to host either way.

    Args:
        scores: processed logits (B, T, V), float32, float16 or bfloat16; position 0 follows the row's last token,
            position i + 1 its node i. A row of nothing but -inf, or with NaN, is not meaningful.
        token_ids, parents: int32 (B, T - 1), ``parents[i] < i``; rows with fewer nodes are filled up with any nodes
            that are not to be verified.
        verify: bool (B, T - 1).
        noise: None picks the largest score. Else (B, D, V) float32: the token at depth d is the argmax of
            softmax(scores) / noise[:, d], which for ``empty(1, V).exponential_(generator=g)`` is the token that
            ``torch.multinomial`` draws; nodes at depth D or deeper end the walk with -1 for the next token.

    Returns:
        Per row: accepted node indices from the root down, and the target's token after the last of them.

    Raises:
        ValueError: shapes that do not fit each other; with Triton also a dtype or stride its kernel does not take.
    """
    rows, width, vocab = scores.shape if scores.ndim == 3 else (0, 0, 0)
    nodes = (rows, width - 1)
    if width < 1 or any(tuple(tree.shape) != nodes for tree in (token_ids, parents, verify)):
        shapes = ", ".join(str(tuple(given.shape)) for given in (scores, token_ids, parents, verify))
        raise ValueError(f"expected scores (B, T, V) and trees (B, T - 1), got {shapes}")
    if noise is not None and (noise.ndim != 3 or noise.shape[0] != rows or noise.shape[2] != vocab):
        raise ValueError(f"expected noise ({rows}, D, {vocab}), got {tuple(noise.shape)}")
    if use_triton(scores):
        from zerodraft.kernels import verify_triton

        packed = verify_triton.pick_and_walk(scores, token_ids, parents, verify, noise)[0].tolist()
        return [(tuple(row[2 : 2 + row[0]]), row[1]) for row in packed]
    picks = _picks(scores, parents, noise).tolist()
    return [_walk_picks(*row) for row in zip(picks, token_ids.tolist(), parents.tolist(), verify.tolist())]


def _picks(scores: torch.Tensor, parents: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
    """The target's token at every position, int64 (B, T); -1 deeper than the noise reaches."""
    if noise is None:
        return scores.argmax(-1)
    depths = torch.zeros(scores.shape[:2], dtype=torch.int64, device=scores.device)
    for node in range(parents.shape[1]):
        up = parents[:, node : node + 1].long() + 1
        depths[:, node + 1 : node + 2] = depths.gather(1, up) + 1
    drawn = noise.gather(1, depths.clamp(max=noise.shape[1] - 1)[:, :, None].expand_as(scores))
    picks = (torch.softmax(scores.float(), -1) / drawn).argmax(-1)
    return torch.where(depths < noise.shape[1], picks, -1)


def _walk_picks(
    picks: list[int], token_ids: list[int], parents: list[int], verify: list[bool]
) -> tuple[tuple[int, ...], int]:
    done = walk(token_ids, parents, verify, lambda node: (picks[node + 1], None))
    return done.path, done.new_ids[-1]


def accept_probability(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Probability min(1, p/q) of keeping each token drafted from q, elementwise (..., V); 1 where q is 0."""
    return torch.where(q > 0, (p / q.clamp_min(torch.finfo(q.dtype).tiny)).clamp(max=1.0), torch.ones_like(p))


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """norm(max(0, p - q)) over the last dimension, the distribution to draw from after a rejection; p where p == q."""
    rest = (p - q).clamp_min(0.0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total.clamp_min(torch.finfo(p.dtype).tiny), p)


def acceptance_rate(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The paper's beta: sum of min(p, q) over the last dimension, the chance that a token drawn from q is kept.

    Source: arXiv:2211.17192, Theorem 3.5.

    >>> p, q = torch.tensor([0.4, 0.4, 0.2]), torch.tensor([0.6, 0.3, 0.1])
    >>> round(acceptance_rate(p, q).item(), 6)
    0.8
    """
    return torch.minimum(p, q).sum(-1)


def verify_sampled(
    draft_ids: torch.Tensor, q: torch.Tensor, p: torch.Tensor, *, generator: torch.Generator | None = None
) -> tuple[int, int]:
    """Verify a chain whose tokens were *drawn* from the full distributions ``q``.

    A drafted token is never dropped because of its own value: that would bias the text.

    Args:
        draft_ids: int64 (n,), ``draft_ids[i]`` drawn from ``q[i]``.
        q: drafter's distributions (n, V), each summing to 1.
        p: target's distributions (n + 1, V); row i follows the first i drafted tokens.
        generator: source of randomness; None uses the default one.

    Returns:
        (number of accepted drafted tokens, next token id: from the residual after a rejection, else the bonus).

    Raises:
        ValueError: shapes that do not fit each other.

    Source: arXiv:2211.17192, Algorithm 1.
    """
    n = draft_ids.shape[0]
    if draft_ids.ndim != 1 or q.ndim != 2 or p.ndim != 2 or q.shape[0] != n or p.shape != (n + 1, q.shape[1]):
        raise ValueError(
            "expected draft_ids (n,), q (n, V), p (n + 1, V), "
            f"got {tuple(draft_ids.shape)}, {tuple(q.shape)}, {tuple(p.shape)}"
        )
    keep = accept_probability(p[:n], q).gather(1, draft_ids[:, None]).squeeze(1)
    drawn = torch.rand(n, dtype=p.dtype, device=p.device, generator=generator)
    refused = torch.nonzero(drawn >= keep)
    num_accepted = int(refused[0]) if len(refused) else n
    after = p[n] if num_accepted == n else residual(p[num_accepted], q[num_accepted])
    return num_accepted, int(torch.multinomial(after, 1, generator=generator))
