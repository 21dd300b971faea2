"""Phrases, by looking at every beginning of each."""

from __future__ import annotations


def phrase_match(phrases: list[list[int]], text: list[int], min_match: int) -> tuple[int, list[list[int]]]:
    """The longest beginning of a phrase that the text ends with, and what follows it, one phrase per next token."""
    best = 0
    for phrase in phrases:
        for n in range(min_match, len(phrase)):
            if len(text) >= n and text[len(text) - n :] == phrase[:n]:
                best = max(best, n)
    rests: dict[int, list[int]] = {}
    for phrase in phrases:
        if best and len(phrase) > best and phrase[:best] == text[len(text) - best :]:
            rests.setdefault(phrase[best], phrase[best:])
    return best, list(rests.values())[:4]
