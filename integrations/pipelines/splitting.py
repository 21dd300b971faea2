"""Split a text that is too long for a model: at paragraph borders, finer only where one paragraph is too long."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Final

# From the border one likes best to the one that always is there; the separator stays with the text before it.
_BORDERS: Final = (r"(?<=\n)(?:[ \t]*\n)+", r"\n", r"(?<=[.!?。！？])\s+", r"\s+", r"")


def split_text(text: str, max_tokens: int, count: Callable[[str], int]) -> list[str]:
    """Return consecutive parts of ``text`` of at most ``max_tokens`` tokens each, as few as packing in order gives.

    Args:
        text: what is to be split; the parts joined are this text again.
        max_tokens: at least 1. A single character that has more tokens is a part of its own all the same.
        count: tokens of a text. Taken as additive over pieces, which holds within a token or so per border.

    Raises:
        ValueError: max_tokens below 1.

    >>> split_text("one two\\n\\nthree four\\n\\nfive", 4, lambda text: len(text.split()))
    ['one two\\n\\nthree four\\n\\n', 'five']
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    parts: list[str] = []
    room = 0
    for piece, size in _pieces(text, max_tokens, count, 0):
        if size <= room:
            parts[-1] += piece
            room -= size
        else:
            parts.append(piece)
            room = max_tokens - size
    return parts


def _pieces(text: str, max_tokens: int, count: Callable[[str], int], level: int) -> Iterator[tuple[str, int]]:
    """The text in pieces that fit, with their sizes; cut finer only where it must be."""
    if not text:
        return
    for piece in _cut(text, _BORDERS[level]):
        size = count(piece)
        if size <= max_tokens or len(piece) == 1:
            yield piece, size
        else:
            yield from _pieces(piece, max_tokens, count, min(level + 1, len(_BORDERS) - 1))


def _cut(text: str, border: str) -> list[str]:
    if not border:
        return list(text)
    ends = [match.end() for match in re.finditer(border, text)]
    cuts = [0, *(end for end in ends if end < len(text)), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(cuts)]
