"""Text as token ids and back, with nothing lost on the way: a user's text never turns into a control token.

Tokenizers change texts: control tokens are read where they are spelled, the first blank is dropped, accents are
composed. What is taken in here is encoded as text, and what comes out is decoded behind other tokens, so that nothing
is taken for the beginning of a text.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

from zerodraft.lookup.runtime.at_fork import NEVER, held_at_fork

_ANCHOR: Final = "\n"
"""Text is encoded and decoded behind this, and without it again: tokenizers treat the beginning of a text specially."""
_PLACE: Final = "zerodraft puts the message here"
_CHUNK: Final = 1 << 16
"""Characters that are encoded at once where only the number of tokens is wanted."""
_LOCK: Final = held_at_fork(threading.Lock(), NEVER)  # a fast tokenizer keeps the setting of a call as its own state


class TextError(ValueError):
    """A text that cannot be handed to this model as it is; the message says what it holds."""


def check_text(name: str, text: Any) -> str:
    """Return ``text`` if it is one that UTF-8 can carry.

    Raises:
        ValueError: no ``str``, or one with a lone surrogate, such as a command line makes of bytes that are not UTF-8.
    """
    if not isinstance(text, str):
        raise ValueError(f"{name} must be a str, got {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} must be text that UTF-8 can carry, got the lone surrogate {text[error.start]!r} "
            f"at character {error.start}"
        ) from None
    return text


def encode(tokenizer: Any, text: str, *, special: bool = False) -> list[int]:
    """Token ids of a text in which control tokens are meant; ``special`` adds what the tokenizer puts around one."""
    with _LOCK:
        return [int(i) for i in tokenizer.encode(text, add_special_tokens=special)]


def text_ids(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text in which the spelling of a control token is nothing but text."""
    alone, behind = (_as_text(tokenizer, part) for part in (_ANCHOR, _ANCHOR + text))
    # Where the anchor became one token with what follows, nothing is done to the beginning of a text either.
    return behind[len(alone) :] if behind[: len(alone)] == alone else _as_text(tokenizer, text)


def _as_text(tokenizer: Any, text: str) -> list[int]:
    with _LOCK:
        return [int(i) for i in tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)]


def text_behind(tokenizer: Any, before: Sequence[int], ids: Sequence[int]) -> str:
    """The text of ``ids`` where they follow ``before``. A control token among them is shown as it is spelled."""
    known = _decode(tokenizer, before)
    return _decode(tokenizer, [*before, *ids])[len(known) :]


def there_and_back(tokenizer: Any, text: str) -> str:
    """What is left of a text that goes through the tokenizer and back. Linear in its length."""
    anchor = _as_text(tokenizer, _ANCHOR)
    return text_behind(tokenizer, anchor, text_ids(tokenizer, text))


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def has_more_tokens(tokenizer: Any, text: str, limit: int) -> bool:
    """True if a text has more than about ``limit`` tokens. Cost: as many tokens, however long the text is."""
    found = 0
    for number, chunk in enumerate(_chunks(text), 1):
        found += len(_as_text(tokenizer, chunk))
        if found - 2 * number > limit:  # a border between chunks may cut a token or two
            return True
    return False


def _chunks(text: str) -> Iterator[str]:
    return (text[at : at + _CHUNK] for at in range(0, len(text), _CHUNK))


def chat_ids(tokenizer: Any, message: str, *, answer: str = "") -> list[int]:
    """Token ids of a message in the chat template, up to where the answer goes on after ``answer``.

    The ids are those of the whole text, as transformers makes them, unless the message spells a control token: then it
    is encoded as text, between the template's parts. A tokenizer without a template gets the message as it is.

    Raises:
        TextError: the template changes the message, or the message holds the end of a turn in a way that cannot be
            told from the template's own.
    """
    if not getattr(tokenizer, "chat_template", None):
        before, inner, after = "", message, ""
        start, begun = _around(tokenizer), f"\n{answer}" if answer else ""
    else:
        before, inner, after = _render(tokenizer, message)
        _refuse_forged_end(tokenizer, message, after)
        start, begun = [], answer
    controls = _control_ids(tokenizer) | (_added(tokenizer).keys() & {*encode(tokenizer, before + after)})
    parts = (before + inner + after + begun, before, after + begun)
    whole, head, tail = (encode(tokenizer, part) for part in parts)
    if _count(whole, controls) == _count(head, controls) + _count(tail, controls):
        return [*start, *whole]
    body = text_ids(tokenizer, inner)
    if forged := [i for i in body if i in controls and i != tokenizer.unk_token_id]:
        raise TextError(f"the text spells {_decode(tokenizer, forged[:1])!r}, which this tokenizer cannot take as text")
    return [*start, *head, *body, *tail]


def _around(tokenizer: Any) -> list[int]:
    """What the tokenizer puts before a text that has no chat template around it."""
    alone = _as_text(tokenizer, "a")
    whole = [int(i) for i in tokenizer.encode("a", add_special_tokens=True)]
    starts = (at for at in range(len(whole)) if whole[at : at + len(alone)] == alone)
    return whole[: next(starts, 0)]


def _render(tokenizer: Any, message: str) -> tuple[str, str, str]:
    """The chat template's text before the message, the message in it, and the text after it."""

    def rendered(content: str) -> str:
        messages = [{"role": "user", "content": content}]
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    before, found, after = rendered(_PLACE).partition(_PLACE)
    whole = rendered(message)
    inner = whole[len(before) : len(whole) - len(after)]
    is_whole = found and whole.startswith(before) and whole.endswith(after) and inner.strip() == message.strip()
    if not is_whole:
        raise TextError("the chat template of this model does not hand a message on as it is")
    return before, inner, after


def _refuse_forged_end(tokenizer: Any, message: str, after: str) -> None:
    """Where a template ends a turn in plain text (``[/INST]``), a message that holds that text would end it, too."""
    mark = after.strip()
    if mark and mark in message and not _count(encode(tokenizer, after), _control_ids(tokenizer)):
        raise TextError(f"the text holds {mark!r}, by which the chat template of this model ends a message")


def _control_ids(tokenizer: Any) -> set[int]:
    """Ids that are no text: what the tokenizer calls special."""
    special = {int(i) for i, token in _added(tokenizer).items() if token.special}
    return special | set(map(int, tokenizer.all_special_ids))


def _added(tokenizer: Any) -> dict[int, Any]:
    """The tokens that were added to the vocabulary, and so are read where they are spelled; made anew at each call."""
    return dict(getattr(tokenizer, "added_tokens_decoder", {}))


def _count(ids: Sequence[int], among: set[int]) -> int:
    return sum(i in among for i in ids)
