"""Small experiments on a model nobody has tested: do drafts give the logits of plain decoding, kept and rejected?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from zerodraft.integrations.hf.chains import ChainTarget, behind_prompt
from zerodraft.integrations.hf.families import placeholder_ids
from zerodraft.integrations.hf.target import PositionLimits, Target
from zerodraft.lookup.draft import Draft

_TREE_PARENTS = (-1, -1, 0, 0, 2, 1)
_CHAIN = 6  # tokens of each wide step of the trial of chains
_KEPT = 2  # of the first of these
_LONGEST = 516
_ROOM = 16  # positions that a trial reads behind its prompt


@torch.no_grad()
def width_error(model: PreTrainedModel) -> float:
    """Largest difference between logits of two tree steps and of each node's path alone, as ``_relative`` measures it.

    Reads a prompt that is longer than a small sliding window, checks a tree, keeps one branch, checks another tree.
    Cost: 3 forwards in the ragged cache and 15 plain ones, all short; the model is left as it was. About eps of the
    model's dtype where the cache, masks and positions are right; of the order of 1 where they are not.
    """
    config = model.config.get_text_config(decoder=True)

    def alone(path: list[int]) -> torch.Tensor:
        logits: torch.Tensor = model(input_ids=torch.tensor([path], device=model.device)).logits
        return logits[0, -1].float()

    ids = _text(model, _prompt_length(config), 7)
    target = Target(model, 1)
    target.prefill([torch.tensor(ids, device=model.device)])
    last = (ids[-1] + 1) % config.vocab_size
    effect = float((alone([*ids, last]) - alone([*ids[::-1], last])).abs().max())
    error = scale = 0.0
    for step in range(2):
        tokens = [(last + 11 * node + step + 1) % config.vocab_size for node in range(len(_TREE_PARENTS))]
        logits = target.check([last], [Draft.tree(tokens, _TREE_PARENTS)])[0].float()
        for node in range(-1, len(tokens)):
            expected = alone([*ids, last, *(tokens[up] for up in _path(node))])
            error = max(error, float((logits[node + 1] - expected).abs().max()))
            scale = max(scale, float(expected.abs().max()))
        target.cache.keep(0, [0, 1, 3])  # the root, node 0 and node 2; node 4 is the next root
        ids, last = [*ids, last, tokens[0], tokens[2]], tokens[4]
    return _relative(model, error, scale, effect)


@torch.no_grad()
def chain_error(model: PreTrainedModel) -> float:
    """Largest difference between logits of two chains, the first rejected in part, and of narrow forwards, likewise.

    Everything is prepared by ``generate`` itself, encoder, cache and positions. Cost: 3 prefills and 18 short forwards.
    Working families gave 2e-4 and less in float32; broken ones, whose wide forward does not go on from the
    cached state or whose state lies outside the cache, 6e-3 as freshly initialised and 0.03 and more with a say.
    """
    ids = _text(model, _prompt_length(model.config.get_text_config(decoder=True)), 7)
    first, second = _text(model, _CHAIN, 11), _text(model, _CHAIN, 17)
    again = second[0]
    rejected = _checked(model, ids, [([token], 1) for token in first])
    going_on = _checked(model, ids, [([token], 1) for token in [*first[:_KEPT], *second, again]])
    wide = _checked(model, ids, [(first, _KEPT), (second, _CHAIN), ([again], 1)])
    expected = torch.cat([rejected, going_on[_KEPT:]])
    effect = float((going_on[_KEPT] - going_on[-1]).abs().max())  # of other text before the same token
    scale = float(expected.abs().max())
    return _relative(model, float((wide - expected).abs().max()), scale, effect)


def _relative(model: PreTrainedModel, error: float, scale: float, effect: float) -> float:
    """An error over the logits' scale, or over what another text before the same token changes where that is less.

    So a model that forgets its text does not pass because its text says little to it. What rounding explains, 4 eps of
    the scale, is no error.
    """
    beyond = error - 4 * torch.finfo(model.dtype).eps * scale
    return max(beyond, 0.0) / max(min(scale, effect), 1e-30)


def _checked(model: PreTrainedModel, ids: list[int], steps: Sequence[tuple[list[int], int]]) -> torch.Tensor:
    """Logits (positions, V) of steps in the model's own cache: each a root and its draft, and how many of them stay."""
    found: list[torch.Tensor] = []

    def run(target: ChainTarget) -> None:
        for tokens, num_kept in steps:
            found.extend(target.check([tokens[0]], [Draft.chain(tokens[1:])]))
            target.keep([range(num_kept)])

    behind_prompt(model, ids, run)
    return torch.cat(found).float()


def _prompt_length(config: Any) -> int:
    """Longer than a small sliding window; the trial crosses no position at which the model's rotations change."""
    window = getattr(config, "sliding_window", None) or getattr(config, "window_size", None) or 12
    length = min(int(window) + 4, _LONGEST)
    for border in PositionLimits(config).borders:
        if length <= border < length + _ROOM:
            length = border - _ROOM if border > 2 * _ROOM else border + 1
    return length


def _text(model: PreTrainedModel, length: int, factor: int) -> list[int]:
    """Token ids without a meaning, none of which stands for a picture."""
    vocab_size, taken = model.config.get_text_config(decoder=True).vocab_size, placeholder_ids(model)
    ids = ((factor * place * place + 3) % vocab_size for place in range(length + len(taken) * vocab_size))
    free = (token for token in ids if token not in taken)
    return [next(free) for _ in range(length)]


def _path(node: int) -> list[int]:
    """Node indices from the root's child down to ``node``; empty for the root."""
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = _TREE_PARENTS[node]
    return path
