"""The code block that an edited file comes in: opened by us, with other blocks inside it, and closed by the model.

The fence is longer than any run of backticks that the model has seen, so what closes it is told from what closes a
block inside the file. Blocks are those of CommonMark (spec 0.31, section 4.5), with any indentation, as in docstrings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

_SHORTEST: Final = 4  # one more than what Markdown usually holds, so that blocks the model adds do not end the file
_FENCE: Final = re.compile(r"(?P<indent>\s*)(?P<run>`{3,}(?=[^`]*$)|~{3,})(?P<info>.*)", re.DOTALL)


class _Line(NamedTuple):
    """A line that is a fence: its character, how many of them, what follows, whether it is indented."""

    char: str
    length: int
    info: str
    is_indented: bool


def _read(line: str) -> _Line | None:
    found = _FENCE.fullmatch(line.rstrip())
    if found is None:
        return None
    return _Line(found["run"][0], len(found["run"]), found["info"].strip(), bool(found["indent"]))


def fence_for(*texts: str) -> str:
    """Return a fence longer than any run of backticks in the texts, of four backticks at least.

    >>> fence_for("a ```` b", "Use ```.")
    '`````'
    """
    longest = max((len(run) for text in texts for run in re.findall("`+", text)), default=0)
    return "`" * max(_SHORTEST, longest + 1)


@dataclass(frozen=True)
class Answer:
    """What there is of a file in an answer.

    Attributes:
        lines: its lines, without their ends.
        is_whole: whether the block was closed; else the lines are those before the answer broke off.
    """

    lines: list[str]
    is_whole: bool


class Block:
    """Reads the lines of an answer as they come, and knows where the block that was opened before it is closed.

    A fence at the beginning of a line with as many backticks as opened the block closes it, unless the model has opened
    a block inside that is as long. A shorter one closes it only as the last line of an answer that the model ended, and
    only if it does not belong to a block inside. A model that opens the block once more, by the language it was given,
    is understood. Where a shorter fence may as well have ended the file before some talk, the file is not whole.

    Args:
        fence: what opened the block.
        language: the tag behind it.
        old: the lines of the old file, which say what a fence in the new one may be.

    >>> block = Block("````", "python", ["x = 0"])
    >>> [block.feed(line) for line in ("x = 1", "````")]
    [False, True]
    >>> block.answer(is_ended=False)
    Answer(lines=['x = 1'], is_whole=True)
    """

    def __init__(self, fence: str, language: str, old: list[str]) -> None:
        self._length, self._language = len(fence), language
        self._lines: list[str] = []
        self._inner: _Line | None = None
        self._short = -1  # the line of a shorter, bare fence that opened a block if it did not close ours
        self._long = -1  # the line of a fence as long as ours, in a block of tildes
        self._num_bare = 0  # shorter, bare fences that opened a block
        self._is_closed = self._is_begun = False
        self._known = frozenset(old)
        self._may_reopen = not old or _read(old[0]) is None
        self._old: Block | None = None
        if old:
            self._old = Block(fence, "", [])
            for line in old:
                self._old.feed(line)
        # Elsewhere a line of tildes underlines a heading; and in a file that leaves such a block open it says nothing.
        self._has_tildes = language in ("", "markdown") and not (self._old and self._old._is_in_tildes)

    @property
    def _is_in_tildes(self) -> bool:
        return self._inner is not None and self._inner.char == "~"

    def feed(self, line: str) -> bool:
        """Take the next line, without its end; True once the block is closed. Lines behind that are not taken."""
        if self._is_closed:
            return True
        fence, inner, line = _read(line), self._inner, line.removesuffix("\r")
        if not self._is_begun:
            self._is_begun = True
            if fence is not None and fence.info and fence.info == self._language and self._may_reopen:
                return False
        if fence is not None:
            is_bare = fence.char == "`" and not fence.info and not fence.is_indented
            if is_bare and fence.length >= self._length:
                if self._is_in_tildes and self._has_tildes:
                    self._long = len(self._lines)
                elif inner is None or self._is_in_tildes or inner.length < self._length:
                    self._is_closed = True
                    return True
            if inner is None:
                self._inner, self._short = fence, len(self._lines) if is_bare else -1
                self._num_bare += is_bare
            elif fence.char == inner.char and fence.length >= inner.length and not fence.info:
                self._inner, self._short = None, -1
        self._lines.append(line)
        return False

    def answer(self, *, is_ended: bool) -> Answer:
        """What the lines so far hold; ``is_ended`` says that the model ended the answer itself."""
        lines, short = list(self._lines), self._short
        if self._is_closed:
            if short < 0 or lines[short] in self._known:
                return Answer(lines, True)
            # A fence that the old file does not know: closed twice, or closed, followed by talk and closed again.
            return Answer(lines[:-1], True) if short == len(lines) - 1 else Answer(lines, False)
        if is_ended:
            while lines and not lines[-1].strip():
                lines.pop()
            last = len(lines) - 1
            num_known, open_line = (self._old._num_bare, self._old._short) if self._old else (0, -1)
            is_end = 0 <= short == last and self._num_bare <= num_known + 1 and open_line < 0
            if is_end or 0 <= self._long == last:
                return Answer(lines[:-1], True)
        return Answer(lines, False)
