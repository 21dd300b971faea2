"""SessionLines: the sessions of a serving engine's rows, stepped all at once by one kernel call."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from zerodraft.lookup.checks import int_in
from zerodraft.lookup.copy import _policy_core as rule
from zerodraft.lookup.draft import BLOCK_ROWS, IntArray
from zerodraft.lookup.drafter import Drafter, DraftSession
from zerodraft.lookup.memory.draft_memory import MAX_MATCH
from zerodraft.lookup.policy import MAX_DRAFT_TOKENS, Tables
from zerodraft.lookup.runtime.address import address_of
from zerodraft.lookup.serving import _batch_kernel as core

Longs = npt.NDArray[np.int64]
ROOM: Final = 512  # tokens that a session can take before its arrays are replaced, which takes Python


class SessionLines:
    """DraftSessions by line number. A step of a batch costs about a microsecond per row instead of ten.

    Chains only, by the adaptive rule. What a line drafts is what its session would draft by itself with these bounds
    (the tests compare them). A session on a line is driven by the kernel; nobody else may use it. Not thread-safe.
    """

    def __init__(self, drafter: Drafter, max_draft_tokens: int) -> None:
        """Take the drafter's policy, memory and phrases.

        Args:
            max_draft_tokens: upper bound on the tokens of every draft, at most what the policy allows.

        Raises:
            ValueError: a drafter whose drafts may be trees, or that needs the target's logits or a suffix tree.
        """
        policy = drafter.policy
        wrong = {
            "max_branches": policy.max_branches != 1,
            "length_factor": policy.length_factor is not None,
            "max_batch_tokens": policy.max_batch_tokens is not None,
            "recycle": drafter.recycle is not False,
            "suffix_tree": drafter.suffix_tree,
        }
        for name, is_wrong in wrong.items():
            if is_wrong:
                raise ValueError(f"lines draft chains of one copy by the adaptive rule, got another {name}")
        self.max_draft_tokens: Final = int_in(
            "max_draft_tokens", max_draft_tokens, 1, min(policy.max_draft_tokens, MAX_DRAFT_TOKENS)
        )
        self._drafter = drafter
        self._sessions: list[DraftSession | None] = []
        self._learned: list[int] = []  # length at which the shared sources were last told what came
        self._free: list[int] = []
        self._addresses = np.zeros((0, core.NUM_ADDRESSES), np.int64)
        self._state = np.zeros((0, core.NUM_STATE), np.int64)
        self._blocks = np.zeros((0, len(BLOCK_ROWS), max_draft_tokens), np.int32)
        self.drafts = np.zeros((8, max_draft_tokens), np.int32)
        self.num_drafted = np.zeros(8, np.int64)
        self._has_context_cost: Final = bool(policy.curve.long_points)
        self._tables = policy.tables()
        self._tables_for = (0, 0)
        self._kept: dict[tuple[int, int], Tables] = {}  # their addresses are in use: never let go
        self._set_tables(1, 0)

    @property
    def num_sessions(self) -> int:
        """Sessions that are on a line."""
        return len(self._sessions) - len(self._free)

    def begin(self, prompt_ids: IntArray, namespace: str | None = None) -> int:
        """Start a session for a text; return its line. Cost: O(prompt), tens of nanoseconds per token.

        Raises:
            ValueError: ids that are not integers in [0, 2**31 - 1], or a bad namespace.
        """
        session = self._drafter.begin(prompt_ids, None, namespace)
        if not self._free:
            self._add_lines()
        line = self._free.pop()
        self._sessions[line] = session
        self._learned[line] = len(prompt_ids)
        self._state[line] = 0
        self._state[line, core.HELD] = self._state[line, core.BEFORE] = len(prompt_ids)
        session._settings[rule.POINTER] = session.copy_pointer
        self._make_room(line, session)
        return line

    def finish(self, line: int) -> None:
        """End the session of a line; nothing is remembered. The line is free again."""
        session = self._session(line)
        session.finish()
        self._sessions[line] = None
        self._free.append(line)

    def held(self, line: int) -> int:
        """Tokens of the line's text."""
        return int(self._state[line, core.HELD])

    def text(self, line: int) -> IntArray:
        """The line's text, int32 (held,), read-only; valid until the next step."""
        return self._session(line).index.token_ids[: self.held(line)]

    def is_spoilt(self, line: int) -> bool:
        """True if tokens of another text came into the session: its text is right, but it cannot go on."""
        return len(self._session(line).index) != self.held(line)

    def before(self, line: int) -> int:
        """Tokens of the line's text before those that came in its last step."""
        return int(self._state[line, core.BEFORE])

    def warm_up(self, max_rows: int, max_length: int) -> None:
        """Solve the tables of all batch sizes up to ``max_rows`` now; each takes milliseconds."""
        for num_rows in [*(1 << bits for bits in range((max_rows - 1).bit_length())), max_rows]:
            for bits in range(9, max_length.bit_length() + 1) if self._has_context_cost else (0,):
                self._set_tables(num_rows, (1 << bits) - 1)

    def step(
        self, rows: IntArray, lengths: Longs, num_new: Longs, lines: Longs, status: Longs, max_length: int, first: bool
    ) -> int:
        """Step a batch; return how many rows need something, which ``status`` names. See ``_batch_kernel.step_rows``.

        What was drafted is in ``drafts`` and ``num_drafted``, by row.
        """
        if first:
            self._set_batch(lengths)
        num_open: int = core.step_rows(
            rows,
            lengths,
            num_new,
            lines,
            max_length,
            first,
            self._addresses,
            self._state,
            self._blocks,
            self._tables.breaks,
            status,
            self.drafts,
            self.num_drafted,
        )
        return num_open

    def _set_batch(self, lengths: Longs) -> None:
        """What further positions cost a row depends on how many share the forward, and on the longest of them."""
        num_rows = len(lengths)
        longest = int(lengths.max()) if self._has_context_cost and num_rows else 0
        if (num_rows, longest.bit_length()) != self._tables_for:
            self._set_tables(max(num_rows, 1), longest)
        if num_rows > len(self.num_drafted):
            self.drafts = np.zeros((2 * num_rows, self.max_draft_tokens), np.int32)
            self.num_drafted = np.zeros(2 * num_rows, np.int64)

    def append(self, line: int, rest: IntArray) -> None:
        """Bring a text to its new length where the kernel found no room: ``rest`` follows what ``num_indexed`` counts.

        Raises:
            ValueError: ids that are not integers in [0, 2**31 - 1].
        """
        session = self._session(line)
        session.index.extend(rest)
        self._make_room(line, session)

    def num_indexed(self, line: int) -> int:
        """Tokens in the session's index; more than ``held`` while a step is under way."""
        return len(self._session(line).index)

    def merge_shared(self, line: int, row: int, room: int) -> None:
        """Tell memory and phrases what came, and let them join the draft of a row that was just stepped.

        Of the tree that this gives the likeliest chain is kept.
        """
        session = self._session(line)
        shared = session._shared
        if shared is None:
            return
        index, held = session._index, self.held(line)
        shared.learn(index._tokens[self._learned[line] : held], True, self._tables)
        self._learned[line] = held
        room = min(room, self.max_draft_tokens)
        if room < 1:
            return
        own, n = self._blocks[line], int(self.num_drafted[row])
        context = index._tokens[max(0, held - MAX_MATCH) : held]
        block, m = shared.merge(own, n, context, room, room, self._tables, self._drafter.policy)
        if block is own:
            return
        kept = core.keep_likeliest(block, m, own, self.drafts[row])
        self.num_drafted[row] = self._state[line, core.NUM_DRAFTED] = kept

    @property
    def has_shared_sources(self) -> bool:
        """True if drafts may also come from a memory or from phrases."""
        return self._drafter.memory is not None or self._drafter.phrases is not None

    def _session(self, line: int) -> DraftSession:
        session = self._sessions[line]
        assert session is not None, f"line {line} is free"
        return session

    def _add_lines(self) -> None:
        first, count = len(self._sessions), max(8, len(self._sessions))
        self._sessions += [None] * count
        self._learned += [0] * count
        self._free += range(first + count - 1, first - 1, -1)
        self._addresses, self._state, self._blocks = (
            np.concatenate([array, np.zeros((count, *array.shape[1:]), array.dtype)])
            for array in (self._addresses, self._state, self._blocks)
        )
        self._point_at(self._tables)

    def _make_room(self, line: int, session: DraftSession) -> None:
        """Let the index take ``ROOM`` tokens more, and write down where the session's arrays lie then."""
        index, to = session._index, self._addresses[line]
        index._reserve(len(index) + ROOM)
        used_1, used_n = index.used
        while used_1 + ROOM > len(index._heads_1) * 3 // 4:
            index._heads_1 = index._doubled(index._heads_1, False)
        while used_n + ROOM > len(index._heads_n) * 3 // 4:
            index._heads_n = index._doubled(index._heads_n, True)
        to[core.TOKENS], to[core.CAPACITY] = address_of(index._tokens), len(index._tokens)
        to[core.LINKS] = address_of(index._links)
        to[core.HEADS_1], to[core.SLOTS_1] = address_of(index._heads_1), len(index._heads_1)
        to[core.HEADS_N], to[core.SLOTS_N] = address_of(index._heads_n), len(index._heads_n)
        to[core.META] = address_of(index._meta)
        to[core.SETTINGS] = address_of(session._settings)
        to[core.WEIGHTS] = address_of(session._weights)
        to[core.REPLACED] = address_of(session._replaced)
        to[core.FIRST], to[core.EXPECTED] = address_of(session._first), address_of(session._expected)

    def _set_tables(self, num_rows: int, longest: int) -> None:
        self._tables_for = (num_rows, longest.bit_length())
        tables = self._kept.get(self._tables_for)
        if tables is None:
            tables = self._kept[self._tables_for] = self._drafter.policy.tables(num_rows, longest)
        self._tables = tables
        self._point_at(self._tables)

    def _point_at(self, tables: Tables) -> None:
        self._addresses[:, core.PRICES] = address_of(tables.prices)
        self._addresses[:, core.COSTS], self._addresses[:, core.NUM_COSTS] = address_of(tables.costs), len(tables.costs)
        self._addresses[:, core.SLOPES] = address_of(tables.slopes)
