"""One small experiment on a model nobody has tested: does a tree in the ragged cache give the logits of its paths?"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from zerodraft.integrations.hf.target import Target
from zerodraft.lookup.draft import Draft

_TREE_PARENTS = (-1, -1, 0, 0, 2, 1)
_LONGEST = 516


@torch.no_grad()
def width_error(model: PreTrainedModel) -> float:
    """Largest difference between logits of two tree steps and of each node's path alone, over max |logit|.

    Reads a prompt that is longer than a small sliding window, checks a tree, keeps one branch, checks another tree.
    Cost: 3 forwards in the ragged cache and 14 plain ones, all short; the model is left as it was. About eps of the
    model's dtype where the cache, masks and positions are right; of the order of 1 where they are not.
    """
    config = model.config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None) or getattr(config, "window_size", None) or 12
    length = min(int(window) + 4, _LONGEST, (getattr(config, "max_position_embeddings", None) or _LONGEST) - 16)
    ids = [(7 * place * place + 3) % config.vocab_size for place in range(length)]
    target = Target(model, 1)
    target.prefill([torch.tensor(ids, device=model.device)])
    last, error, scale = (ids[-1] + 1) % config.vocab_size, 0.0, 0.0
    for step in range(2):
        tokens = [(last + 11 * node + step + 1) % config.vocab_size for node in range(len(_TREE_PARENTS))]
        logits = target.check([last], [Draft.tree(tokens, _TREE_PARENTS)])[0].float()
        for node in range(-1, len(tokens)):
            path = [*ids, last, *(tokens[up] for up in _path(node))]
            alone = model(input_ids=torch.tensor([path], device=model.device)).logits[0, -1].float()
            error = max(error, float((logits[node + 1] - alone).abs().max()))
            scale = max(scale, float(alone.abs().max()))
        target.cache.keep(0, [0, 1, 3])  # the root, node 0 and node 2; node 4 is the next root
        ids, last = [*ids, last, tokens[0], tokens[2]], tokens[4]
    return error / max(scale, 1e-30)


def _path(node: int) -> list[int]:
    """Node indices from the root's child down to ``node``; empty for the root."""
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = _TREE_PARENTS[node]
    return path
