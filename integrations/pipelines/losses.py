"""What an edit may have lost: code that a placeholder stands for, most of the file, lines that nobody asked to go."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import Final

from zerodraft.integrations.pipelines.line_diff import align

_SHRUNK: Final = 0.5  # of the old text's letters; an edit that keeps less must have been asked for
_MANY: Final = 3  # lines; fewer are no shrinkage
_MOST_LOOKED_AT: Final = 200  # new lines that one that went is compared with
_MOVED: Final = 0.75  # a new line that is so much like an old one is that one

_LESS: Final = re.compile(
    r"(remov|delet|drop|strip|eras|short|simplif|reduc|minif|condens|trim|cut|extract|summar|rid$|inlin|dedup|collaps"
    r"|empt|truncat|prun|without|unused|shrink|omit|discard|fewer|less$|clean|only$|just$)",
    re.IGNORECASE,
)
"""Words of an instruction that speak of taking something away."""
_QUOTED: Final = re.compile(r"`[^`]*`|\"[^\"]*\"|'[^']*'")

_DOTS: Final = re.compile(r"\.{3,}|…")
_SPREAD: Final = re.compile(r"[\[({]?\s*\.{3}\w")  # of JavaScript
_MARK: Final = re.compile(r"#|//|/\*|\*|--|;|%|<!--|\"\"\"|'''|\{/\*|\{#|<|\[|\(|\.{3}|…|rem\b", re.IGNORECASE)
"""What begins a line that is no code: a comment, a bracket, dots."""
_REST: Final = frozenset(
    {
        "rest", "remaining", "remainder", "other", "others", "existing", "previous", "unchanged", "omitted",
        "same", "original", "unmodified", "continues", "snip"
    }
)  # fmt: skip
_CODE: Final = frozenset(
    {
        "code", "file", "line", "lines", "function", "functions", "method", "methods", "class", "classes",
        "content", "contents", "implementation", "section", "sections", "text", "document", "logic", "import",
        "imports", "body", "everything", "above", "below", "unchanged", "omitted", "same", "before",
        "brevity", "snip", "definitions", "constants", "tests", "queries", "rows", "entries", "items",
        "fields", "rules"
    }
)  # fmt: skip
_MOST_WORDS: Final = 9


def placeholder(old: Sequence[str], new: Sequence[str]) -> tuple[int, str] | None:
    """The first line of ``new``, counted from 1, that stands for lines of ``old`` which are not there any more.

    Such a line ("# rest of the code unchanged", "// ...") is not in the old text, and stands where lines went.

    >>> placeholder(["import os", "x = 1", "y = 2"], ["import os", "# ... rest of the code"])
    (2, '# ... rest of the code')
    """
    known = {line.strip() for line in old}
    for piece in align(old, new):
        num_lost = (piece.old_end - piece.old_start) - (piece.new_end - piece.new_start)
        if piece.is_same or piece.old_start == piece.old_end:
            continue
        for at in range(piece.new_start, piece.new_end):
            line = new[at].strip()
            if line not in known and _stands_for_code(line) and (num_lost >= 0 or line != "..."):
                return at + 1, line
    return None


def _stands_for_code(line: str) -> bool:
    words = re.findall("[a-z]+", line.lower())
    if len(words) > _MOST_WORDS:
        return False
    is_marked = _MARK.match(line) is not None
    if is_marked and _DOTS.search(line) and not _SPREAD.match(line):
        return not re.search("[=;]", line)
    begins = words[:1] in (["rest"], ["remaining"]) or words[:2] == ["the", "rest"]
    return (is_marked or begins) and not _REST.isdisjoint(words) and not _CODE.isdisjoint(words)


def has_shrunk(old: Sequence[str], new: Sequence[str], instruction: str) -> bool:
    """True if most of the text is gone although the instruction does not speak of taking anything away."""
    before, after = (sum(len(line.strip()) for line in lines) for lines in (old, new))
    lost = sum(map(bool, map(str.strip, old))) - sum(map(bool, map(str.strip, new)))
    return after < _SHRUNK * before and lost >= _MANY and not _asks_for_less(instruction)


def _asks_for_less(instruction: str) -> bool:
    """True if a word says so that is no name (``remove_item``) and in no quotes."""
    words = re.findall(r"[\w.()]+", _QUOTED.sub(" ", instruction))
    return any(_LESS.match(word.strip(".()")) and not re.search(r"[_.(]\w", word) for word in words)


def remarks(old: Sequence[str], new: Sequence[str], instruction: str, language: str) -> Iterator[str]:
    """What a reader of the edit should know, each in a phrase: lines that went unasked, Python that does not parse."""
    gone = _lines_gone(old, new)
    if gone and not _asks_for_less(instruction):
        lines = "1 line is" if len(gone) == 1 else f"{len(gone)} lines are"
        yield f"{lines} gone that the instruction does not speak of: {_numbers(gone)}"
    if language == "python" and _parses("\n".join(old)) and not _parses("\n".join(new)):
        yield "the file was valid Python before and is not any more"


def _lines_gone(old: Sequence[str], new: Sequence[str]) -> list[int]:
    """Numbers of the lines, from 1, that nothing was put in the place of and that stand nowhere else now."""
    left = Counter(line.strip() for line in new)
    left.subtract(line.strip() for line in old)
    gone: list[int] = []
    came: list[str] = []
    for piece in align(old, new):
        before, after = old[piece.old_start : piece.old_end], new[piece.new_start : piece.new_end]
        surplus = sum(map(bool, map(str.strip, before))) - sum(map(bool, map(str.strip, after)))
        if surplus < 0:
            came += after
        if piece.is_same or surplus <= 0:
            continue
        lost = [i for i in range(piece.old_start, piece.old_end) if old[i].strip() and left[old[i].strip()] < 0]
        gone += sorted(lost, key=lambda i: _likeness(old[i], after))[:surplus]
    # A line may move and change.
    return [i + 1 for i in sorted(gone) if not get_close_matches(old[i], came[:_MOST_LOOKED_AT], 1, _MOVED)]


def _likeness(line: str, others: Sequence[str]) -> float:
    """How much of a line is in the most similar of the others, of which the first few are looked at."""
    return max((SequenceMatcher(None, line, other).ratio() for other in others[:20]), default=0.0)


def _numbers(numbers: Sequence[int], most: int = 6) -> str:
    """Numbers in runs: "4-6, 20"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [f"{a}-{b}" if b > a else str(a) for a, b in runs[:most]]
    return ", ".join(shown) + (", ..." if len(runs) > most else "")


def _parses(text: str) -> bool:
    """True if this is Python. Nothing is executed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings: the file's own business
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
