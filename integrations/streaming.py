"""Stream text while tokens come in bursts: no character is ever cut, and the pieces joined are the whole text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_UNFINISHED: Final = "\ufffd"  # what a tokenizer shows for the first bytes of a character


class TextStream:
    """A streamer for ``generate(streamer=...)`` that hands text on as soon as its characters are complete.

    The first ``put`` is the prompt and is not shown. Cost: each ``put`` decodes the tokens since the last shown text
    and a few before them (whose only use is that some tokenizers treat the first token of a text differently).
    """

    def __init__(self, tokenizer: Any, write: Callable[[str], None]) -> None:
        self._tokenizer, self._write = tokenizer, write
        self._ids: list[int] = []
        self._from = self._shown = 0  # decode from here; tokens before this one were shown
        self._text_shown = ""
        self._is_prompt = True

    def put(self, ids: Any) -> None:
        """Take new token ids, a tensor of any shape or a list."""
        if self._is_prompt:
            self._is_prompt = False
            return
        self._ids.extend(int(i) for i in ids.reshape(-1).tolist())
        before, after = self._decode(self._from, self._shown), self._decode(self._from, len(self._ids))
        if len(after) > len(before) and not after.endswith(_UNFINISHED) and after.startswith(before):
            self._show(after[len(before) :])
            self._from, self._shown = self._shown, len(self._ids)

    def end(self) -> None:
        """Show what was held back."""
        whole = self._decode(0, len(self._ids))
        if whole.startswith(self._text_shown):
            self._show(whole[len(self._text_shown) :])

    def _show(self, text: str) -> None:
        if text:
            self._text_shown += text
            self._write(text)

    def _decode(self, start: int, end: int) -> str:
        return str(
            self._tokenizer.decode(self._ids[start:end], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )
