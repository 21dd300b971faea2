"""Stream text while tokens come in bursts: no character is ever cut, and the pieces joined are the whole text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

_UNFINISHED: Final = "\ufffd"  # how a tokenizer shows bytes that are no character, or not yet
_MOST_HELD: Final = 16  # tokens: none of a character's is held longer, so these bytes are no character
_MOST_OF_ONE: Final = 4  # tokens of one character, a token per byte


class Detokenizer:
    """Decodes a growing sequence of tokens; the parts joined are the text of all tokens.

    A character is held back until all its tokens have come. Cost: linear in the number of tokens: those that came last
    are decoded again with what follows them, since some tokenizers treat the first token of a text differently.

    Args:
        tokenizer: any of transformers'.
        before: tokens that the text follows, if it is no text of its own.
        skip_special_tokens: leave control tokens out; else they are shown as they are spelled.
    """

    def __init__(self, tokenizer: Any, before: Sequence[int] = (), *, skip_special_tokens: bool = False) -> None:
        self._tokenizer, self._skips = tokenizer, skip_special_tokens
        self._ids = list(before)  # a window at the end of all tokens; it begins with a character
        self._known, self._num_known = self._decode(self._ids), len(self._ids)  # what of it was handed out

    def push(self, ids: Sequence[int]) -> str:
        """Take further tokens; return the text that is whole now."""
        self._ids.extend(ids)
        text, end = self._decode(self._ids), len(self._ids)
        if text.endswith(_UNFINISHED):
            if end - self._num_known < _MOST_HELD:
                return ""
            text, end = self._whole()
        new = text[len(self._known) :]
        if not new:
            return ""
        self._ids = self._ids[self._num_known :]
        self._num_known = end - self._num_known
        self._known = self._decode(self._ids[: self._num_known])
        return new

    def end(self) -> str:
        """Return what was held back."""
        text = self._decode(self._ids)
        new, self._known, self._num_known = text[len(self._known) :], text, len(self._ids)
        return new

    def _whole(self) -> tuple[str, int]:
        """The text without the tokens that may begin a character, and where it ends: the fewest bytes are left over."""
        ends = range(len(self._ids), len(self._ids) - _MOST_OF_ONE, -1)
        return min(((self._decode(self._ids[:end]), end) for end in ends), key=lambda cut: cut[0].count(_UNFINISHED))

    def _decode(self, ids: Sequence[int]) -> str:
        options = {"skip_special_tokens": self._skips, "clean_up_tokenization_spaces": False}
        return str(self._tokenizer.decode(list(ids), **options)) if ids else ""


class TextStream:
    """A streamer for ``generate(streamer=...)`` that hands text on as soon as its characters are complete.

    The first ``put`` is the prompt and is not shown. Cost: that of ``Detokenizer``.
    """

    def __init__(self, tokenizer: Any, write: Callable[[str], None]) -> None:
        self._text, self._write = Detokenizer(tokenizer, skip_special_tokens=True), write
        self._is_prompt = True

    def put(self, ids: Any) -> None:
        """Take new token ids, a tensor of any shape or a list."""
        if self._is_prompt:
            self._is_prompt = False
            return
        self._show(self._text.push([int(i) for i in ids.reshape(-1).tolist()]))

    def end(self) -> None:
        """Show what was held back."""
        self._show(self._text.end())

    def _show(self, text: str) -> None:
        if text:
            self._write(text)
