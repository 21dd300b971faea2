"""A text: matches of its end, copies that go on into themselves, and how a draft is made of it."""

from __future__ import annotations

BARRIER = -1
LONG_GRAM = 4


def match_length(tokens: list[int], position: int, max_len: int) -> int:
    """How many tokens before ``position`` equal the end of the text, at most ``max_len``; a barrier equals nothing."""
    n = 0
    while n < min(position, max_len) and tokens[-1 - n] == tokens[position - 1 - n] and tokens[-1 - n] != BARRIER:
        n += 1
    return n


def copy_on(tokens: list[int], position: int, length: int) -> list[int]:
    """``length`` tokens from ``position`` on, going on into the copy itself, ended by a barrier."""
    text = list(tokens)
    copied: list[int] = []
    while len(copied) < length and text[position + len(copied)] != BARRIER:
        copied.append(text[position + len(copied)])
        text.append(copied[-1])
    return copied


def copies_own_text(text: list[int], draft: list[int]) -> bool:
    """True if the draft goes on as some earlier occurrence of the text's last token does, past the end into itself."""
    for start in range(1, len(text)):
        if text[start - 1] == text[-1] and copy_on(text, start, len(draft)) == draft:
            return True
    return not draft


def num_stretches(text: list[int], draft: list[int]) -> int:
    """Of how few stretches of the text, which may run past its end into themselves, the draft is made; 99: of none."""
    whole, place, stretches = text + draft, len(text), 0
    while place < len(whole):
        longest = 0
        for start in range(place):
            length = 0
            while place + length < len(whole) and whole[start + length] == whole[place + length]:
                length += 1
            longest = max(longest, length)
        if longest == 0:
            return 99
        place, stretches = place + longest, stretches + 1
    return stretches
