"""EngineRows: which session goes on in which row of a serving engine's batch, told by what stands in the rows alone."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from zerodraft.lookup.draft import IntArray
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.serving import _rows as core
from zerodraft.lookup.serving.lines import SessionLines

Longs = npt.NDArray[np.int64]
Remember = Literal["output", "both"]
_NUM_PASSES: Final = 4  # a row may need a session, then room in it, and may turn out not to be its text after all
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Text:
    """One request's text as far as it was seen.

    Attributes:
        line: where its session is.
        unsaved: where that part begins that is to be remembered and is not yet.
        away_since: the step in which it was first missing from the batch.
    """

    line: int
    unsaved: int
    away_since: int = 0


class EngineRows:
    """Sessions for the rows of an engine that names no requests: it swaps, moves, drops and resumes rows as it likes.

    A row goes on from the session that stood in its place before if it has grown by exactly the tokens sampled in
    this step and if the last 32 tokens before them, and 128 others in turn, are those the session knows: O(new tokens).
    That is a guess, if a good one, so every token drafted from the text is read again in the row, at the place it
    is copied from. Whatever fails either test is looked for among all sessions that no row goes on from, by comparing
    the whole text; where there is none a session begins. So no row ever drafts from another row's text: only memory and
    phrases, which requests share on purpose, bring in anything that the row does not hold.

    A text that is missing from the batch may be finished, preempted, or left out for a step. It is kept until it

    - was missing after its last step brought one of ``end_ids``, or after it had reached ``max_length``,
    - was missing for ``finish_after`` steps, or
    - would be one too many: as many are kept as there may be rows.

    Then it counts as finished and feeds the memory. Where that was wrong the row comes back: it is indexed once more,
    which costs less than the engine's own recomputation of it, and only what follows is remembered later.

    Attributes:
        counts: what happened, by name; see docs/serving.md.
    """

    def __init__(
        self,
        drafter: Drafter,
        *,
        max_draft_tokens: int,
        max_rows: int,
        max_length: int,
        end_ids: Collection[int] = (),
        namespace: str | None = None,
        remember: Remember | None = None,
        finish_after: int = 64,
    ) -> None:
        """Start without a row.

        Args:
            drafter: one whose policy drafts chains, see ``SessionLines``.
            max_draft_tokens: hard bound on the tokens of a draft.
            max_rows: most rows of a batch.
            max_length: most tokens of a text; a draft and the token after it stay below.
            end_ids: tokens that end a text.
            namespace: whose remembered texts are drafted from and added to.
            remember: what finished texts leave in the drafter's memory: what the engine wrote, or all of it.
            finish_after: steps after which a missing text counts as finished.
        """
        self.counts: Counter[str] = Counter()
        self._lines: Final = SessionLines(drafter, max_draft_tokens, namespace)
        self._memory: Final = drafter.memory if remember else None
        self._remember: Final = remember
        self._namespace: Final = namespace
        self._max_rows: Final = max_rows
        self._max_length: Final = max_length
        self._end_ids: Final = np.array(sorted(end_ids), np.int32)
        self._finish_after: Final = finish_after
        self._texts: list[_Text | None] = []  # by row, as the last step left them
        self._row_lines = np.zeros(0, np.int64)  # their lines, -1: none
        self._away: list[_Text] = []  # missing from the batch, the longest missing first
        self._clock = 0

    @property
    def num_sessions(self) -> int:
        """Sessions that are alive: those of the rows and those of missing texts."""
        return self._lines.num_sessions

    def warm_up(self) -> None:
        """Solve the policy's tables for every batch size now, not in the first steps that need them."""
        self._lines.warm_up(self._max_rows, self._max_length)

    def step(
        self, sampled: Sequence[Sequence[int]], lengths: npt.NDArray[np.integer], rows: IntArray
    ) -> list[list[int]]:
        """Draft for every row that got tokens in this step.

        Args:
            sampled: the tokens of this step by row, [] for a row that is not decoding; only their numbers are used.
            lengths: (>= n,), tokens of every row, these included.
            rows: int32 (>= n, width), contiguous: the texts.

        Returns:
            One draft per row, [] where there is none. A row that makes no sense gets none and counts as "odd_rows".

        Raises:
            TypeError, ValueError: arrays of other types or shapes.
        """
        num_rows = len(sampled)
        if len(lengths) < num_rows or len(rows) < num_rows:
            raise ValueError(f"expected at least {num_rows} lengths and rows, got {len(lengths)} and {len(rows)}")
        self._clock += 1
        self.counts["steps"] += 1
        if len(self._texts) != num_rows:
            self._resize(num_rows)
        at = np.array(lengths[:num_rows], np.int64)
        num_new = np.fromiter(map(len, sampled), np.int64, num_rows)
        status = np.empty(num_rows, np.int64)
        if self._lines.step(rows, at, num_new, self._row_lines, status, self._max_length, True):
            self._settle(rows, at, num_new, status)
        if self._away:
            self._let_go()
        if self._lines.has_phrases:
            for row in np.flatnonzero(self._row_lines >= 0).tolist():
                self._lines.ask_phrases(int(self._row_lines[row]), row, self._max_length - int(at[row]) - 1)
        drafts = self._lines.drafts[:num_rows].tolist()
        return [draft[:n] for draft, n in zip(drafts, self._lines.num_drafted[:num_rows].tolist())]

    def close(self) -> None:
        """Let all texts go: they count as finished."""
        self._resize(0)
        for text in self._away:
            self._finish(text)
        self._away = []

    def _resize(self, num_rows: int) -> None:
        """The batch has another number of rows: the texts of those that are gone are missing."""
        for row in range(num_rows, len(self._texts)):
            self._send_away(row)
        del self._texts[num_rows:]
        self._texts += [None] * (num_rows - len(self._texts))
        self._row_lines = np.array([-1 if text is None else text.line for text in self._texts], np.int64)

    def _settle(self, rows: IntArray, lengths: Longs, num_new: Longs, status: Longs) -> None:
        """Give every row what it needs, and step those that could not be stepped."""
        for _ in range(_NUM_PASSES):
            for row in np.flatnonzero(status == core.GROW).tolist():
                line = int(self._row_lines[row])
                self._lines.append(line, rows[row, self._lines.num_indexed(line) : lengths[row]])
            others = np.flatnonzero((status != core.GROW) & (status != core.DONE)).tolist()
            for row in others:
                self._send_away(row)
            self._place([row for row in others if status[row] in (core.NEW, core.LOST)], rows, lengths, num_new, status)
            status[status == core.ABSENT] = core.DONE
            self._lines.step(rows, lengths, num_new, self._row_lines, status, self._max_length, False)
            if np.isin(status, (core.DONE, core.ODD)).all():
                break
        for row in np.flatnonzero(status != core.DONE).tolist():
            self._send_away(row)
            self._lines.num_drafted[row] = 0
            self.counts["odd_rows"] += 1
            if self.counts["odd_rows"] == 1:
                wrong = f"{num_new[row]} new of {lengths[row]} tokens, row of {rows.shape[1]}"
                _log.warning("nothing drafted for a row that is no text (said once, counted as odd_rows): %s", wrong)

    def _place(self, wanting: list[int], rows: IntArray, lengths: Longs, num_new: Longs, status: Longs) -> None:
        """Give each of these rows the session that knows its text, or a new one."""
        by_length: defaultdict[int, list[_Text]] = defaultdict(list)
        for away in self._away:
            if not self._lines.is_spoilt(away.line):
                by_length[self._lines.held(away.line)].append(away)
        for row in wanting:
            text, before = rows[row, : lengths[row]], int(lengths[row] - num_new[row])
            found = self._known(text, before, by_length)
            if found is None:
                try:
                    found = _Text(self._lines.begin(text[:before]), before)
                except ValueError:
                    status[row] = core.ODD
                    continue
                if self._remember == "both":
                    found.unsaved = 0
                self.counts["texts"] += 1
            else:
                held = self._lines.held(found.line)
                by_length[held].remove(found)
                self._away.remove(found)
                self.counts["texts_found_again"] += 1
                if held != before and self._remember == "output":  # what came in between may be anybody's: a next turn
                    self._remember_rest(found)
                    found.unsaved = before
            self._texts[row], self._row_lines[row] = found, found.line

    def _known(self, text: IntArray, before: int, by_length: dict[int, list[_Text]]) -> _Text | None:
        """The missing text that this row goes on from, all of which stands in it; the longest of several.

        One that has been missing for longer must fit to the token: a later request may begin with it and go on
        otherwise.
        """
        for length in sorted((length for length in by_length if length <= before), reverse=True):
            for away in by_length[length]:
                if length == before or away.away_since == self._clock:
                    known = self._lines.text(away.line)
                    if np.array_equal(
                        text[max(0, length - core.TAIL) : length], known[-core.TAIL :]
                    ) and np.array_equal(text[:length], known):
                        return away
        return None

    def _send_away(self, row: int) -> None:
        text = self._texts[row]
        self._texts[row], self._row_lines[row] = None, -1
        if text is not None:
            text.away_since = self._clock
            self._away.append(text)

    def _let_go(self) -> None:
        """Finish the missing texts that are not expected back."""
        surplus = len(self._away) - self._max_rows
        kept = []
        for number, text in enumerate(self._away):
            is_due = number < surplus or self._clock - text.away_since >= self._finish_after
            if is_due or (text.away_since == self._clock and self._has_ended(text)):
                self._finish(text)
            else:
                kept.append(text)
        self._away = kept

    def _has_ended(self, text: _Text) -> bool:
        lines, line = self._lines, text.line
        last = lines.text(line)[lines.before(line) :]
        return lines.held(line) >= self._max_length or lines.is_spoilt(line) or bool(np.isin(last, self._end_ids).any())

    def _end(self, text: _Text) -> int:
        """Where a text ends: after the first end among the tokens of its last step, for the engine cuts there."""
        start = self._lines.before(text.line)
        ends = np.flatnonzero(np.isin(self._lines.text(text.line)[start:], self._end_ids))
        return start + int(ends[0]) + 1 if len(ends) else self._lines.held(text.line)

    def _finish(self, text: _Text) -> None:
        self._remember_rest(text)
        self._lines.finish(text.line)
        self.counts["texts_finished"] += 1

    def _remember_rest(self, text: _Text) -> None:
        if self._memory is None:
            return
        end = self._end(text)
        if end > text.unsaved:
            self._memory.add(self._lines.text(text.line)[text.unsaved : end], self._namespace)
            self.counts["tokens_remembered"] += end - text.unsaved
