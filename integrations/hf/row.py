"""One sequence being written: its tokens, and plain decoding's own way to pick the next one from raw logits."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StopStringCriteria

from zerodraft.integrations.hf.generators import default_generator
from zerodraft.integrations.hf.near_ties import NearTies
from zerodraft.kernels.verify import Walk, pick
from zerodraft.lookup.draft import Draft, StopReason

# Processors that look at the scores alone, each position by itself.
_STATELESS = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper)


class Row:
    """State of one row. ``step`` does once per emitted token what ``generate`` does: process, pick, append, stop.

    The ids shown to processors and criteria are the row's own left-padded prefix (1, length), as in plain decoding.
    """

    def __init__(
        self,
        prompt: torch.Tensor,
        *,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        do_sample: bool,
        max_length: int,
        is_context: bool = False,
        generator: torch.Generator | None = None,
        streamer: Any = None,
        keep_scores: bool = False,
        keep_logits: bool = False,
        ties: NearTies | None = None,
    ) -> None:
        """``prompt``: token ids int64 (n,), left padding included. ``is_context``: max_length is the model's own."""
        self.length = len(prompt)
        self._ids = prompt.new_zeros(1, max(64, self.length + min(max_length - self.length, 4096)))
        self._ids[0, : self.length] = prompt
        self._processors, self._criteria = processors, criteria
        self._limits = _Limits.of(criteria)
        self.do_sample, self._generator = do_sample, generator
        self._max_length, self._is_context = max_length, is_context
        self._streamer = streamer
        self.scores: tuple[torch.Tensor, ...] | None = () if keep_scores else None
        self.logits: tuple[torch.Tensor, ...] | None = () if keep_logits else None
        self._ties = ties
        self.last_id = 0
        self.finish_reason: str | None = None  # "eos", "stop", "criterion", "length" or "context" once it has ended

    @property
    def ids(self) -> torch.Tensor:
        """Token ids so far, (1, length); a view."""
        return self._ids[:, : self.length]

    @property
    def is_done(self) -> bool:
        """True once the row has ended."""
        return self.finish_reason is not None

    @property
    def num_wanted(self) -> int:
        """Tokens that may still be emitted."""
        return self._max_length - self.length

    def step(self, logits: torch.Tensor, *, is_wide: bool) -> tuple[int, str | None]:
        """Pick the token after one position and append it.

        Args:
            logits: raw logits (1, V) of the position, any float dtype.
            is_wide: they come from a forward over more than one position, where near-ties are looked for.

        Returns:
            (token id, reason the row ends here or None).
        """
        raw = logits.to(copy=True, dtype=torch.float32, device=self._ids.device)
        scores = self._processors(self.ids, raw) if self._processors else raw
        if is_wide and self._ties is not None:
            self._ties.look(scores, self.do_sample, self._generator)
        if self.scores is not None:
            self.scores += (scores,)
        if self.logits is not None:
            self.logits += (raw,)
        token = pick(scores, do_sample=self.do_sample, generator=self._generator)
        self._append(token)
        self.finish_reason = self._ask()
        if self._streamer is not None:
            self._streamer.put(token.cpu())
        return self.last_id, self._stop

    @property
    def is_stateless(self) -> bool:
        """True if what is picked depends on the logits alone, so that positions can be looked at ahead."""
        kept = self.scores is not None or self.logits is not None
        simple = all(type(processor) in _STATELESS for processor in self._processors)
        return simple and self._limits is not None and self._ties is None and not kept

    @property
    def generator(self) -> torch.Generator:
        """Where the row's randomness comes from."""
        return default_generator(self.device) if self._generator is None else self._generator

    @property
    def device(self) -> torch.device:
        """Where the row's ids are."""
        return self._ids.device

    def processed(self, logits: torch.Tensor) -> torch.Tensor:
        """Scores of many positions (T, V) at once; for rows that are stateless."""
        if not self._processors:
            return logits.to(torch.float32) if logits.dtype == torch.float64 else logits
        scores: torch.Tensor = self._processors(self.ids, logits.to(torch.float32))
        return scores

    def accept(self, draft: Draft, path: tuple[int, ...], bonus: int) -> Walk:
        """Append what was picked ahead, up to where the row ends: the tokens of ``path``, then ``bonus``."""
        assert self._limits is not None
        tokens = [*draft.token_ids[list(path)].tolist(), bonus]
        room = int(min(self._limits.max_length - self.length, len(tokens)))
        ends = (index for index, token in enumerate(tokens) if token in self._limits.eos_ids or index == room - 1)
        last = next(ends)
        new_ids = tuple(tokens[: last + 1])
        self._append_all(new_ids)
        if self._streamer is not None:
            for token in torch.tensor(new_ids)[:, None]:
                self._streamer.put(token)
        self.finish_reason = self._ask()
        if self._stop is not None:
            return Walk(path[: last + 1], new_ids, self._stop)
        node = path[-1] if path else -1
        is_inner = bool(np.any((draft.parents == node) & draft.verify))
        return Walk(path, new_ids, "rejected" if is_inner else "full")

    def _append_all(self, new_ids: tuple[int, ...]) -> None:
        end = self.length + len(new_ids)
        while end > self._ids.shape[1]:
            self._ids = torch.cat([self._ids, torch.zeros_like(self._ids)], dim=1)
        self._ids[0, self.length : end] = torch.tensor(new_ids, device=self.device)
        self.length, self.last_id = end, new_ids[-1]

    def _append(self, token: torch.Tensor) -> None:
        if self.length == self._ids.shape[1]:
            self._ids = torch.cat([self._ids, torch.zeros_like(self._ids)], dim=1)
        self._ids[0, self.length] = token[0]
        self.length += 1
        self.last_id = int(token)

    def _ask(self) -> str | None:
        """Why the row ends here, None if it goes on; every criterion is asked once, in order, as in plain decoding."""
        if self._limits is not None:
            reason = self._limits.met(self.length, self.last_id)
        else:
            criteria = self._criteria if type(self._criteria) is StoppingCriteriaList else [self._criteria]
            met = [criterion(self.ids, self.scores) for criterion in criteria]
            if not functools.reduce(operator.or_, met, False):
                return None
            reason = _first_reason(criterion for criterion, is_met in zip(criteria, met) if is_met)
        is_context = reason == "length" and self._is_context and self.length >= self._max_length
        return "context" if is_context else reason

    @property
    def _stop(self) -> StopReason | None:
        """The reason as an ``Outcome`` says it, None if the row goes on."""
        return None if self.finish_reason is None else _STOPS[self.finish_reason]


_STOPS: dict[str, StopReason] = {
    "eos": "eos",
    "stop": "stop",
    "criterion": "stop",
    "length": "length",
    "context": "length",
}


def _first_reason(met: Iterable[Any]) -> str:
    """The reason to name where several criteria are met: the text's own before a limit."""
    kinds = {"eos": EosTokenCriteria, "stop": StopStringCriteria, "length": MaxLengthCriteria}
    reasons = {next((r for r, kind in kinds.items() if isinstance(one, kind)), "criterion") for one in met}
    return next(reason for reason in _STOPS if reason in reasons)


@dataclass(frozen=True)
class _Limits:
    """A length and end tokens, asked without tensors: what most calls' stopping criteria come down to."""

    max_length: float
    eos_ids: frozenset[int]

    def met(self, length: int, last_id: int) -> str | None:
        """Which of them ends a text of this length and last token, None: neither."""
        if last_id in self.eos_ids:
            return "eos"
        return "length" if length >= self.max_length else None

    @classmethod
    def of(cls, criteria: StoppingCriteriaList) -> _Limits | None:
        """The limits that ``criteria`` amount to, None if they hold anything else."""
        max_length: float = math.inf
        eos_ids: frozenset[int] = frozenset()
        for criterion in criteria:
            if type(criterion) is MaxLengthCriteria:
                max_length = min(max_length, criterion.max_length)
            elif type(criterion) is EosTokenCriteria:
                eos_ids |= frozenset(criterion.eos_token_id.reshape(-1).tolist())
            else:
                return None
        return cls(max_length, eos_ids) if type(criteria) is StoppingCriteriaList else None
