"""Options checked once and in one voice: what was expected, what was given."""

from __future__ import annotations

import math
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


def number_in(name: str, value: float, low: float, high: float) -> float:
    """Return ``value`` as a float in [low, high], or raise a ValueError that names the option and what was given.

    >>> number_in("min_prob", 1, 0, 1)
    1.0
    >>> number_in("min_prob", "x", 0, 1)
    Traceback (most recent call last):
    ValueError: min_prob must be a number, got 'x'
    """
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number):
        raise ValueError(f"{name} must be a number, got {value!r}")
    if not low <= number <= high:
        raise ValueError(f"{name} must be in [{low}, {high}], got {value!r}")
    return number
