"""Options checked once and in one voice: what was expected, what was given."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Sequence
from typing import Any, Final

_LONGEST: Final = 120  # characters of a value that a message repeats


def int_in(name: str, value: Any, low: int, high: int | None) -> int:
    """Return ``value`` as an int in [low, high], or raise a ValueError that names the option and what was given.

    ``high`` None: no upper bound.

    >>> int_in("max_tokens", 7, 1, 10)
    7
    >>> int_in("max_tokens", 0, 1, 10)
    Traceback (most recent call last):
    ValueError: max_tokens must be in [1, 10], got 0
    """
    if isinstance(value, bool):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {shown(value)}") from None
    if number < low or (high is not None and number > high):
        wanted = f"at least {low}" if high is None else f"in [{low}, {high}]"
        raise ValueError(f"{name} must be {wanted}, got {number}")
    return number


def bounds(max_tokens: Any, max_depth: Any) -> tuple[int, int | None]:
    """The two bounds of a ``propose`` as ints; ``max_depth`` may be None.

    Raises:
        ValueError: a negative bound, or what is no integer.
    """
    for name, value in (("max_tokens", max_tokens), ("max_depth", 0 if max_depth is None else max_depth)):
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ValueError(f"{name} must be an integer, got {shown(value)}")
    if max_tokens < 0 or (max_depth is not None and max_depth < 0):
        raise ValueError(f"max_tokens and max_depth must not be negative, got {max_tokens} and {max_depth}")
    return operator.index(max_tokens), None if max_depth is None else operator.index(max_depth)


def number_in(name: str, value: Any, low: float, high: float = math.inf, *, above: bool = False) -> float:
    """Return ``value`` as a finite float in [low, high], without ``low`` itself if ``above``; else a ValueError.

    >>> number_in("min_prob", "x", 0, 1)
    Traceback (most recent call last):
    ValueError: min_prob must be a number, got 'x'
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"{name} must be a number, got {shown(value)}")
    number = float(value)
    if not low <= number <= high or number == math.inf or (above and number == low):  # nan is in no range
        least = f"above {low:g}" if above else f"at least {low:g}"
        wanted = f"a finite number {least}" if high == math.inf else f"in {'(' if above else '['}{low:g}, {high:g}]"
        raise ValueError(f"{name} must be {wanted}, got {value!r}")
    return number


def one_of(name: str, value: Any, options: Sequence[Any]) -> Any:
    """Return ``value`` if it is one of ``options``, of the same type too (1 is not True); else raise a ValueError.

    >>> one_of("shift", 1, ("accepted", "one"))
    Traceback (most recent call last):
    ValueError: shift must be one of 'accepted', 'one', got 1
    """
    if any(type(value) is type(option) and value == option for option in options):
        return value
    raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}, got {shown(value)}")


def flag(name: str, value: Any) -> bool:
    """Return ``value`` if it is True or False, else raise a ValueError."""
    if value is True or value is False:
        return bool(value)
    raise ValueError(f"{name} must be True or False, got {shown(value)}")


def instance_of(name: str, value: Any, kind: type, hint: str = "") -> None:
    """Raise a ValueError unless ``value`` is None or a ``kind``; ``hint`` says what to do instead."""
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{name} must be a {kind.__name__}, got {shown(value)}{hint and f': {hint}'}")


def with_methods(name: str, value: Any, *methods: str, hint: str = "") -> None:
    """Raise a ValueError unless ``value`` is None or an object, no class, with these methods; ``hint`` as above.

    >>> with_methods("streamer", 3, "put(token_ids)", "end()")
    Traceback (most recent call last):
    ValueError: streamer must have put(token_ids) and end(), got 3
    """
    names = [method.partition("(")[0] for method in methods]
    if value is None or (not isinstance(value, type) and all(callable(getattr(value, n, None)) for n in names)):
        return
    raise ValueError(f"{name} must have {' and '.join(methods)}, got {shown(value)}{hint and f': {hint}'}")


def first_line(error: BaseException) -> str:
    r"""What an error says, in one line: others' messages go on with paragraphs of advice.

    >>> first_line(ValueError("no such thing\n\nTry this.")), first_line(KeyError())
    ('no such thing', 'KeyError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def shown(value: Any) -> str:
    """A value as a message shows it: short plain ones as they are, others by their type.

    >>> shown([1, None]), shown(object()), shown(int)
    ('[1, None]', 'an object of type object', 'the class int')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, (bool, int, float, str, bytes, list, tuple, dict)):
        text = repr(value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return f"an object of type {type(value).__name__}"
