"""Which token came from where, and the colours that say so on a terminal and in a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from zerodraft.integrations.pipelines.streaming import Detokenizer
from zerodraft.lookup.measure.trace import PLAIN


class Look(NamedTuple):
    """How a source is shown: its colours on light and on dark ground, and what it is in a few words."""

    light: str
    dark: str
    terminal: str
    meaning: str


# Light backgrounds under dark text and the other way round; the terminal's are its own sixteen, which fit its theme.
LOOKS: Final = {
    PLAIN: Look("transparent", "transparent", "default", "written by the model, drafted by nobody"),
    "context": Look("#bfe3c0", "#1f5a2b", "green", "copied from the prompt or the text so far"),
    "prediction": Look("#b9d7f5", "#1b4a7a", "blue", "copied from the predicted output"),
    "memory": Look("#e3c9f0", "#5b2c78", "magenta", "copied from an earlier text"),
    "phrase": Look("#f7dfa3", "#6b5310", "yellow", "a stock phrase"),
    "recycled": Look("#f5c4b8", "#7a3222", "red", "what the model named as likely before"),
    "window": Look("#b5e6e3", "#175a56", "cyan", "guessed by Lookahead's window"),
    "custom": Look("#d7d7d7", "#505050", "bright_black", "from a drafter of one's own"),
}

Span = tuple[str, str]


def spans(tokenizer: Any, token_ids: Sequence[int], sources: Sequence[str]) -> list[Span]:
    """Return (source, text) for runs of tokens of one source; the texts joined are the decoded text.

    A character of several tokens belongs to the one that completes it. Special tokens have no text.

    Raises:
        ValueError: another number of sources than of tokens.
    """
    if len(token_ids) != len(sources):
        raise ValueError(f"expected one source per token, got {len(sources)} for {len(token_ids)}")
    found: list[Span] = []
    text = Detokenizer(tokenizer, skip_special_tokens=True)
    for token, source in zip(token_ids, sources):
        _append(found, source, text.push([int(token)]))
    _append(found, sources[-1] if len(sources) else PLAIN, text.end())
    return found


def _append(found: list[Span], source: str, text: str) -> None:
    if not text:
        return
    if found and found[-1][0] == source:
        text = found.pop()[1] + text
    found.append((source, text))
