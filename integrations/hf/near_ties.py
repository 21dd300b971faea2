"""NearTies: how often a forward's width could have turned the choice of a token; ``tie_guard="report"``."""

from __future__ import annotations

import torch

from zerodraft.integrations.hf.generators import default_generator

# How close is too close, as a multiple of eps · max|logit|: a margin for the width error, not a measurement of it.
_WIDTH_ERROR = {torch.float32: 16.0, torch.float16: 2.0, torch.bfloat16: 1.0}


class NearTies:
    """Counts the places where a wide forward's rounding could turn the choice; changes nothing.

    Logits of a forward over many positions differ from those of a narrow one in the last bits. Where the best two
    candidates are closer than that, the choice could differ from plain decoding's.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.count = 0
        self._relative = torch.finfo(dtype).eps * _WIDTH_ERROR.get(dtype, 16.0)

    def look(self, scores: torch.Tensor, do_sample: bool, generator: torch.Generator | None) -> None:
        """Count this place if its two likeliest tokens, under the noise of the coming draw, are too close."""
        finite = scores[torch.isfinite(scores)]
        if finite.numel() < 2:
            return
        values = _perturbed(scores, generator) if do_sample else scores
        first, second = torch.topk(values, 2, dim=-1).values[0].tolist()
        self.count += first - second < self._relative * float(finite.abs().max())


def _perturbed(scores: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """log(p / noise) with the noise that ``torch.multinomial`` would draw next; the generator is left as it was."""
    probs = torch.nn.functional.softmax(scores, dim=-1)
    state = default_generator(scores.device) if generator is None else generator
    saved = state.get_state()
    noise = torch.empty_like(probs).exponential_(1, generator=generator)
    state.set_state(saved)
    return torch.log(probs) - torch.log(noise)
