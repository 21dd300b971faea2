"""Request: what one ``generate`` call asked of zerodraft, beside what it asked of ``generate``; checked at the door."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from zerodraft.lookup.checks import int_in, shown, with_methods
from zerodraft.lookup.draft import IntArray, as_token_ids
from zerodraft.lookup.drafter import check_call

MAX_DRAFT_NODES: Final = 512  # the loop's own ceiling; what is worth drafting below it is the policy's business
OWN_ARGUMENTS: Final = ("prediction_ids", "namespace", "seeds", "remember", "draft", "max_draft_tokens")
_NOT_CALLERS: Final = ("zerodraft", "transformers", "torch")

Predictions = IntArray | list[IntArray | None] | None


@dataclass(frozen=True)
class Request:
    """One call's settings. ``OWN_ARGUMENTS`` name those that a caller gives to ``generate``.

    Attributes:
        prediction_ids: a predicted output, 1-D, for all rows, or a sequence of one (or None) per row.
        namespace: whose remembered texts may be drafted from.
        seeds: one per row, 0 to 2**64 - 1.
        remember: what of the text is kept for later calls.
        draft: False: nothing is drafted from any source; plain decoding, with statistics.
        max_draft_tokens: upper bound on the drafted nodes of a row in one forward, whatever they come from, window
            nodes too; 0 is ``draft=False``, None the drafter's own bound.
        tie_guard, streamer, compile: as in ``attach``.

    Raises:
        ValueError: an argument of another type or outside its range, named with what was given.
    """

    prediction_ids: Any = None
    namespace: Any = None
    seeds: Sequence[int] | None = None
    remember: Any = False
    draft: bool = True
    max_draft_tokens: int | None = None
    tie_guard: str = "off"
    streamer: Any = None
    compile: str = "off"

    def __post_init__(self) -> None:
        check_call(self.draft, self.max_draft_tokens, self.namespace, self.remember)
        check_streamer(self.streamer)
        object.__setattr__(self, "seeds", _seeds(self.seeds))
        object.__setattr__(self, "prediction_ids", _predictions(self.prediction_ids))

    @property
    def max_nodes(self) -> int:
        """Nodes that a row may draft in one forward; 0: nothing is drafted."""
        if not self.draft:
            return 0
        return MAX_DRAFT_NODES if self.max_draft_tokens is None else min(self.max_draft_tokens, MAX_DRAFT_NODES)

    @property
    def off_reason(self) -> str | None:
        """Why nothing is drafted in this call, None if something may be."""
        if self.max_nodes:
            return None
        return f"drafting was switched off for this call: {'max_draft_tokens=0' if self.draft else 'draft=False'}"


def check_streamer(streamer: Any) -> None:
    """Raise a ValueError for what no streamer is."""
    with_methods("streamer", streamer, "put(token_ids)", "end()")


def warn_without_effect(what: str, beside: str) -> None:
    """Say once per place of a call that an option does nothing there."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _NOT_CALLERS:
        level, frame = level + 1, frame.f_back
    warnings.warn(f"zerodraft: {what} has no effect {beside}", UserWarning, stacklevel=level)


def _seeds(seeds: Any) -> tuple[int, ...] | None:
    if seeds is None:
        return None
    values = seeds.tolist() if hasattr(seeds, "tolist") else seeds
    if not isinstance(values, (list, tuple, range)):
        raise ValueError(f"seeds must be a sequence of integers, one per row, got {shown(seeds)}")
    return tuple(int_in(f"seeds[{row}]", seed, 0, 2**64 - 1) for row, seed in enumerate(values))


def _predictions(given: Any) -> Predictions:
    """``given`` as int32 arrays: None, one for all rows, or a list of one (or None) per row."""
    if given is None:
        return None
    if not isinstance(given, (Sequence, torch.Tensor)) and not hasattr(given, "__array__"):
        raise ValueError(f"prediction_ids must be token ids, 1-D, or one such sequence per row, got {shown(given)}")
    if not _is_per_row(given):
        return as_token_ids(_as_numpy(given), "prediction_ids")
    return [
        None if own is None else as_token_ids(_as_numpy(own), f"prediction_ids[{row}]") for row, own in enumerate(given)
    ]


def _as_numpy(ids: Any) -> Any:
    return ids.detach().cpu().numpy() if isinstance(ids, torch.Tensor) else ids


def _is_per_row(given: Any) -> bool:
    if hasattr(given, "ndim"):
        return int(given.ndim) > 1
    if isinstance(given, (str, bytes)):
        return False
    if not len(given):
        return False
    first = given[0]  # a 0-dimensional tensor has a length by name only
    return first is None or (hasattr(first, "__len__") and getattr(first, "ndim", 1) > 0)
