"""On CUDA, all rows' walks at once: one launch and one copy to the host per step, where nothing needs the lazy walk."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from zerodraft.integrations.hf.row import Row
from zerodraft.kernels.verify import Walk, pick_and_walk
from zerodraft.lookup.draft import Draft

MAX_NOISE_ROWS = 64  # output positions whose noise is drawn ahead; deeper drafts of a sampled text are walked lazily


def serves(logits: Sequence[torch.Tensor]) -> bool:
    """True where walking together is worth it: each token of a lazy walk waits for the GPU once."""
    return logits[0].is_cuda


def walk_together(rows: Sequence[Row], drafts: Sequence[Draft], logits: Sequence[torch.Tensor]) -> list[Walk] | None:
    """Walk every row down its draft, as ``walk`` with ``Row.step`` would, or return None if some row needs that.

    A row is walked here if its processors look at the scores alone, it ends by length and end tokens alone, and it
    keeps no scores. When it samples, the noise of every output position is drawn ahead from its generator, which is
    then rewound and advanced by what was emitted.

    Args:
        rows: B rows; their drafts; per row the logits of the forward, (at least 1 + nodes, V).
    """
    device = logits[0].device
    if not serves(logits) or not all(row.is_stateless and row.device == device for row in rows):
        return None
    do_sample = rows[0].do_sample
    depth = 1 + max(_depth(draft) for draft in drafts) if do_sample else 0
    if do_sample and (depth > MAX_NOISE_ROWS or not draws_like_multinomial(device)):
        return None
    most = max(len(draft) for draft in drafts)
    trees = np.full((2, len(rows), most), -1, np.int32)
    verify = np.zeros((len(rows), most), np.bool_)
    for index, draft in enumerate(drafts):
        trees[:, index, : len(draft)] = draft.token_ids, draft.parents
        verify[index, : len(draft)] = draft.verify
    token_ids, parents = torch.from_numpy(trees).to(device)
    blocks = [block[: 1 + len(draft)] for block, draft in zip(logits, drafts)]
    scores = pad_sequence([row.processed(block) for row, block in zip(rows, blocks)], batch_first=True)
    noise = states = None
    if do_sample:
        states = [row.generator.get_state() for row in rows]
        noise = torch.stack([_draw(row.generator, depth, scores) for row in rows])
    walks = pick_and_walk(scores, token_ids, parents, torch.from_numpy(verify).to(device), noise)
    done = [row.accept(draft, path, token) for row, draft, (path, token) in zip(rows, drafts, walks)]
    if states is not None:
        for row, state, walked in zip(rows, states, done):
            row.generator.set_state(state)
            _draw(row.generator, len(walked.new_ids), scores)
    return done


def _draw(generator: torch.Generator, count: int, scores: torch.Tensor) -> torch.Tensor:
    """Noise for ``count`` output positions, (count, V), drawn as ``torch.multinomial`` on (1, V) draws it."""
    shape = (1, scores.shape[-1])
    return torch.cat(
        [torch.empty(shape, device=scores.device).exponential_(1, generator=generator) for _ in range(count)]
    )


def _depth(draft: Draft) -> int:
    """Nodes on the longest path that may be accepted."""
    depths: list[int] = []
    for parent in draft.parents.tolist():
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max((depth for depth, may in zip(depths, draft.verify.tolist()) if may), default=0)


@functools.cache
def draws_like_multinomial(device: torch.device) -> bool:
    """Whether noise drawn ahead gives this device's own draws and generator states; tried once per process."""
    ours, theirs = (torch.Generator(device).manual_seed(11) for _ in range(2))
    probs = torch.softmax(torch.arange(1000, device=device) % 97 / 30, -1)[None]
    for _ in range(20):
        noise = torch.empty_like(probs).exponential_(1, generator=ours)
        if int((probs / noise).argmax()) != int(torch.multinomial(probs, 1, generator=theirs)):
            return False
    return torch.equal(ours.get_state(), theirs.get_state())
