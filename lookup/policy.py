"""DraftPolicy: how much to draft, and which of the earlier occurrences to copy."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Final

MAX_DRAFT_TOKENS: Final = 4096
MAX_LOOKUP: Final = 4096


@dataclass(frozen=True)
class DraftPolicy:
    """Settings of a Drafter.

    The copy position is the one with the highest ``min(match_len, 32) - 0.2 · log2(1 + |position - pointer|)``, among
    equals the latest; the copy pointer is where the last accepted copy ended. A copy is ``length_factor · match_len``
    tokens long: a long match is strong evidence, and after a divergence drafts start short again.

    Attributes:
        max_draft_tokens: upper bound on the nodes of one draft, 1 to 4096.
        length_factor: tokens drafted per matched token, above 0 and at most 4096.
        prompt_lookup_min: shortest match that is drafted from, at least 1 (vLLM's name).
        prompt_lookup_max: matches are measured up to this many tokens, at most 4096 (vLLM's name).

    Raises:
        ValueError: an option outside its range, named with the value given.
    """

    max_draft_tokens: int = 63
    length_factor: float = 4.0
    prompt_lookup_min: int = 1
    prompt_lookup_max: int = 64

    def __post_init__(self) -> None:
        _check_int("max_draft_tokens", self.max_draft_tokens, 1, MAX_DRAFT_TOKENS)
        _check_int("prompt_lookup_min", self.prompt_lookup_min, 1, MAX_LOOKUP)
        _check_int("prompt_lookup_max", self.prompt_lookup_max, 1, MAX_LOOKUP)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                "prompt_lookup_min must not exceed prompt_lookup_max, "
                f"got {self.prompt_lookup_min} and {self.prompt_lookup_max}"
            )
        if not 0 < self.length_factor <= MAX_DRAFT_TOKENS:
            raise ValueError(f"length_factor must be in (0, {MAX_DRAFT_TOKENS}], got {self.length_factor}")

    def draft_length(self, match_len: int, room: int) -> int:
        """Number of tokens to draft from a match of ``match_len`` tokens where ``room`` nodes are allowed."""
        return min(room, self.max_draft_tokens, max(1, int(self.length_factor * match_len)))


def _check_int(name: str, value: int, low: int, high: int) -> None:
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {value!r}") from None
    if isinstance(value, bool) or not low <= number <= high:
        raise ValueError(f"{name} must be in [{low}, {high}], got {value!r}")
