"""The old text of an edit as the model sees it, and the way back: lines that were left alone come back as they were."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zerodraft.integrations.pipelines.line_diff import Piece, align
from zerodraft.integrations.pipelines.text_ids import TextError, there_and_back

_LINE_END = re.compile("\r*\n|\r")


@dataclass(frozen=True)
class Original:
    """A text in lines, and what a tokenizer leaves of them.

    Attributes:
        lines: the lines as they were, without their ends.
        ends: what ended each of them: a line feed, after any number of carriage returns, or one carriage return.
        tail: the line ends behind the last line, which no edit changes.
        seen: the lines as the model sees them; they differ where the tokenizer cannot carry a line as it is.
    """

    lines: list[str]
    ends: list[str]
    tail: str
    seen: list[str]

    @classmethod
    def of(cls, text: str, tokenizer: Any = None) -> Original:
        """Split a text, and send it through the tokenizer and back if there is one.

        Raises:
            TextError: the tokenizer loses line breaks, so that lines cannot be told apart.
        """
        ends = _LINE_END.findall(text)
        lines = _LINE_END.split(text)
        while ends and not lines[-1]:
            lines.pop()
            ends.pop()
        tail = text[sum(map(len, lines)) + sum(map(len, ends)) :]
        seen = lines if tokenizer is None else _seen(tokenizer, lines)
        return cls(lines, ends, tail, seen)

    @property
    def source(self) -> str:
        """The text for the model: the lines as they are, each ended by a line feed."""
        return "".join(f"{line}\n" for line in self.lines)

    def restore(self, new: Sequence[str]) -> str:
        """The text of an edit whose lines are ``new``: unchanged lines, all line ends and the tail are the old ones.

        A changed line keeps the end of the line that it replaces, a further one gets the commonest. Lines that the
        tokenizer cannot carry are put back where the edit left them as the model saw them.

        Raises:
            TextError: the edit changes a line that the tokenizer cannot carry, so that some of it is lost.

        >>> Original.of("a\\r\\nb").restore(["a", "c"])
        'a\\r\\nc'
        """
        new = [line.rstrip("\r") for line in new]
        while new and not new[-1]:
            new.pop()
        old_ends = [*self.ends, *_LINE_END.findall(self.tail)[:1]]
        common = Counter(old_ends).most_common(1)[0][0] if old_ends else "\n"
        lines: list[str] = []
        ends: list[str] = []
        for piece in align(self.seen, new):
            old = range(piece.old_start, piece.old_end)
            if piece.is_same:
                lines += [self.lines[i] for i in old]
            else:
                self._check_lost(piece)
                lines += new[piece.new_start : piece.new_end]
            known = old_ends[piece.old_start : min(piece.old_end, piece.old_start + piece.new_end - piece.new_start)]
            ends += known + [common] * (len(lines) - len(ends) - len(known))
        ends[-1:] = [self.tail]
        return "".join(map("".join, zip(lines, ends)))

    def completed(self, new: Sequence[str]) -> list[str]:
        """The lines of an answer that broke off, and behind them those of the old text that it did not come to."""
        last = align(self.seen, new)[-1]
        num_new = last.new_end - last.new_start
        return [*new, *self.seen[min(last.old_start + num_new, last.old_end) :]]

    def _check_lost(self, piece: Piece) -> None:
        """Refuse an edit of a line of which the model saw only a part."""
        if piece.new_start == piece.new_end:
            return
        for i in range(piece.old_start, piece.old_end):
            if unicodedata.normalize("NFC", self.lines[i]) != unicodedata.normalize("NFC", self.seen[i]):
                raise TextError(
                    f"the edit changes line {i + 1}, which this model's tokenizer cannot carry: "
                    f"of {_short(self.lines[i])} it sees {_short(self.seen[i])}"
                )


def _seen(tokenizer: Any, lines: list[str]) -> list[str]:
    """The lines after their way through the tokenizer."""
    whole = "".join(f"{line}\n" for line in lines)
    back = there_and_back(tokenizer, whole)
    if back == whole:
        return lines
    seen = back.split("\n")
    if len(seen) != len(lines) + 1 or seen[-1]:
        raise TextError(
            f"this model's tokenizer cannot carry the line breaks of the text: "
            f"of {len(lines)} lines {len(seen) - 1} come back"
        )
    return seen[:-1]


def _short(line: str, most: int = 40) -> str:
    return repr(line if len(line) <= most else f"{line[:most]}...")
