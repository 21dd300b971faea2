"""Options checked once and in one voice: what was expected, what was given."""

from __future__ import annotations

import operator


def int_in(name: str, value: int, low: int, high: int) -> int:
    """Return ``value`` as an int in [low, high], or raise a ValueError that names the option and what was given.

    >>> int_in("max_tokens", 7, 1, 10)
    7
    >>> int_in("max_tokens", 0, 1, 10)
    Traceback (most recent call last):
    ValueError: max_tokens must be in [1, 10], got 0
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {value!r}") from None
    if isinstance(value, bool) or not low <= number <= high:
        raise ValueError(f"{name} must be in [{low}, {high}], got {value!r}")
    return number
