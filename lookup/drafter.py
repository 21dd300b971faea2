"""Drafter and DraftSession: from the text so far to a Draft, and from its Outcome back into the text."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

# First, since it reads a file: if that is missing, it is missed before the kernels compile.
from zerodraft.lookup.policy import MAX_DRAFT_TOKENS, DraftPolicy, priors

# isort: split
from zerodraft.lookup.budget import share_budget
from zerodraft.lookup.checks import bounds, flag, instance_of, int_in, one_of, shown
from zerodraft.lookup.copy import _ngram_core as core
from zerodraft.lookup.copy import _policy_core as rule
from zerodraft.lookup.copy import _replacement_core as replacing
from zerodraft.lookup.copy.ngram_index import NgramIndex
from zerodraft.lookup.draft import CONTEXT, INT32, PREDICTION, Draft, IntArray, Outcome, as_token_ids
from zerodraft.lookup.measure.stats import has_paid
from zerodraft.lookup.memory.draft_memory import MAX_MATCH, NO_BLOCK, DraftMemory, check_namespace
from zerodraft.lookup.runtime.jit import direct
from zerodraft.lookup.sources.phrases import PhraseBook
from zerodraft.lookup.sources.shared_sources import SharedSources

if TYPE_CHECKING:
    from typing_extensions import Self

    from zerodraft.lookup.recycle.recycler_shelf import RecyclerShelf
    from zerodraft.lookup.recycle.token_recycler import TokenRecycler
    from zerodraft.lookup.suffix.tree_source import TreeSource

_propose, _learn = direct(rule.propose), direct(rule.learn)
_find_copy, _copy_chain = direct(core.find_copy), direct(core.copy_chain)
SEARCH_WINDOW: Final = 128  # every position this close to the copy pointer is considered
SEARCH_LIMIT: Final = 32  # and this many of the newest occurrences in each hash chain

REMEMBER: Final = (False, True, "output", "both")
Remember = Literal["output", "both"]
TokenIds = Sequence[int] | npt.NDArray[np.integer]


class Drafter:
    """Starts drafting sessions; one object for all requests of a process, shared by its threads.

    Holds only settings and what requests share, never the state of one request. Without a memory nothing of one
    request reaches another.

    >>> session = Drafter().begin([1, 2, 3, 4, 1, 2])
    >>> session.propose(2).token_ids.tolist()
    [3, 4]
    """

    def __init__(
        self,
        *,
        policy: DraftPolicy | None = None,
        memory: DraftMemory | None = None,
        phrases: PhraseBook | None = None,
        recycle: bool | Literal["shared"] = False,
        suffix_tree: bool = False,
    ) -> None:
        """Set up what all requests share.

        Args:
            policy: how much to draft, and when not to.
            memory: texts of earlier requests to draft from; filled by ``DraftSession.finish(remember=...)``.
            phrases: stock phrases to draft from.
            recycle: fill drafts up with the successors that the target itself named before; True keeps them for the
                request, "shared" for all requests of a namespace.
            suffix_tree: keep a suffix tree of each request's text too, and draft its most frequent continuations
                where these were right more often of late. For prompts that hold many similar texts (repeated jobs,
                agents); about 0.1 us and 50 to 85 bytes per token of text, and a few microseconds per step.

        Raises:
            ValueError: an argument of another type, or a memory too small for the policy's shortest match.
        """
        self.policy = policy if policy is not None else DraftPolicy()
        self.memory: Final = memory
        self.phrases: Final = phrases
        self.suffix_tree: Final = flag("suffix_tree", suffix_tree)
        self.recycle: Final = one_of("recycle", recycle, (False, True, "shared"))
        instance_of("policy", policy, DraftPolicy)
        instance_of("memory", memory, DraftMemory)
        instance_of("phrases", phrases, PhraseBook)
        if memory is not None and memory.max_tokens <= self.policy.prompt_lookup_min:
            lengths = f"{memory.max_tokens} and {self.policy.prompt_lookup_min}"
            raise ValueError(
                f"a memory's max_tokens must be above prompt_lookup_min, got {lengths}: it would never match"
            )
        # Kernels load only where they are used, but not in the first session: that may be in a thread beside a fork,
        # and a child in whose parent another thread was importing waits for that import for ever.
        if suffix_tree:
            import zerodraft.lookup.suffix.tree_source
        if recycle:
            import zerodraft.lookup.recycle.token_recycler  # noqa: F401
        self._recyclers: RecyclerShelf | None = None
        if recycle == "shared":
            from zerodraft.lookup.recycle.recycler_shelf import RecyclerShelf

            self._recyclers = RecyclerShelf(None if memory is None else memory.directory)

    def with_policy(self, policy: DraftPolicy) -> Self:
        """A drafter like this one, sharing its memory and phrases, that drafts by another policy."""
        if not isinstance(policy, DraftPolicy):
            raise ValueError(f"policy must be a DraftPolicy, got {shown(policy)}")
        other = copy.copy(self)
        other.policy = policy
        return other

    def begin(
        self, prompt_ids: TokenIds, prediction_ids: TokenIds | None = None, namespace: str | None = None
    ) -> DraftSession:
        """Index a prompt and start drafting what follows. Cost: O(prompt), tens of nanoseconds per token.

        Args:
            prompt_ids: (n,) what the target model is given, without padding.
            prediction_ids: (m,) a guess at the whole output, such as the file to be edited.
            namespace: whose remembered texts may be drafted, None for those of nobody in particular.

        Raises:
            ValueError: ids that are not integers in [0, 2**31 - 1], or a namespace that is neither a string nor None.
        """
        check_namespace(namespace)
        prompt = as_token_ids(prompt_ids, "prompt_ids")
        prediction = as_token_ids(() if prediction_ids is None else prediction_ids, "prediction_ids")
        return DraftSession(self, prompt, prediction, namespace)

    def recycler(self, namespace: str | None = None) -> TokenRecycler | None:
        """The table a new session of this namespace recycles from: a fresh one, the shared one, or None."""
        check_namespace(namespace)
        if self._recyclers is not None:
            return self._recyclers[namespace]
        if not self.recycle:
            return None
        from zerodraft.lookup.recycle.token_recycler import TokenRecycler

        return TokenRecycler()

    def save(self, directory: str | os.PathLike[str] | None = None) -> None:
        """Publish the memory in its directory, and the shared tables of successors beside it.

        Args:
            directory: where to, if the memory has none yet.

        Raises:
            ValueError: no memory, or one that is kept nowhere and no directory given.
            MemoryFileError: the directory holds what is not a sound memory. OSError: it cannot be written.
        """
        if self.memory is None:
            raise ValueError("save needs a drafter with a memory: Drafter(memory=DraftMemory(...)), got one without")
        self.memory.save(directory)
        if self._recyclers is not None:
            self._recyclers.save(self.memory.directory)

    def clear(self, namespace: str | None) -> None:
        """Forget what requests of one namespace left behind: texts and successors, in the directory too."""
        check_namespace(namespace)
        if self.memory is not None:
            self.memory.clear(namespace)
        if self._recyclers is not None:
            self._recyclers.clear(namespace)

    def propose_batch(
        self,
        sessions: Sequence[DraftSession],
        max_tokens: int | Sequence[int],
        max_depth: int | Sequence[int | None] | None = None,
    ) -> list[Draft]:
        """Draft for the rows of one batch, which share the target's forward and so its cost.

        Args:
            sessions: one per row; finished ones are an error.
            max_tokens: upper bound on the nodes, the same for all rows or one for each.
            max_depth: upper bound on the depth, likewise.

        Returns:
            One Draft per session, in order.

        Raises:
            ValueError: bounds that are not one per session, or negative. RuntimeError: a finished session.
        """
        if not isinstance(sessions, (list, tuple)):
            raise ValueError(f"sessions must be a list of draft sessions, got {shown(sessions)}")
        num_rows = len(sessions)
        rooms = list(max_tokens) if isinstance(max_tokens, (list, tuple)) else [max_tokens] * num_rows
        depths = list(max_depth) if isinstance(max_depth, (list, tuple)) else [max_depth] * num_rows
        if len(rooms) != num_rows or len(depths) != num_rows:
            raise ValueError(f"bounds must be one or one per session, got {len(rooms)}, {len(depths)} for {num_rows}")
        drafts = [s.propose(room, depth, num_rows=num_rows) for s, room, depth in zip(sessions, rooms, depths)]
        most = self.policy.max_batch_tokens
        return drafts if most is None else share_budget(drafts, most)


class DraftSession:
    """One request: ``propose``, verify, ``commit``, and again; then ``finish``. Not thread-safe.

    Its arena is prediction, barrier, prompt, output. The barrier never matches and is never drafted. The copy pointer
    is the arena position where the last accepted copy ended; it starts at the beginning of the prediction if there is
    one, else of the prompt, and stays where it is when a draft is rejected as a whole.
    """

    __slots__ = (
        "_drafter",
        "_expected",
        "_first",
        "_index",
        "_is_finished",
        "_most",
        "_namespace",
        "_num_predicted",
        "_output_start",
        "_pointer",
        "_policy",
        "_prompt_start",
        "_recycled",
        "_replaced",
        "_settings",
        "_shared",
        "_stood_down",
        "_tables",
        "_tables_for",
        "_tree",
        "_weights",
    )

    def __init__(self, drafter: Drafter, prompt: IntArray, prediction: IntArray, namespace: str | None) -> None:
        self._drafter = drafter
        self._policy = drafter.policy
        self._most = drafter.policy.max_row_tokens
        self._namespace = namespace
        self._index = NgramIndex()
        self._num_predicted = len(prediction)
        if len(prediction):
            self._index.extend(prediction)
            self._index.add_barrier()
        self._prompt_start = len(self._index)
        self._index.extend(prompt)
        self._output_start = len(self._index)
        self._pointer = 0
        self._shared: SharedSources | None = None
        if drafter.memory is not None or drafter.phrases is not None:
            self._shared = SharedSources(drafter.memory, drafter.phrases, namespace, prompt)
        recycler = drafter.recycler(namespace)
        self._recycled = None if recycler is None else recycler.source(prompt)
        self._tree: TreeSource | None = None
        if drafter.suffix_tree:
            from zerodraft.lookup.suffix.tree_source import TreeSource

            self._tree = TreeSource(prediction, prompt)
        self._is_finished = False
        self._weights = priors()[1].copy()  # beliefs of this request alone: nothing is learned across requests
        self._first = np.full(rule.NUM_FIRST, -1, np.int64)
        self._replaced = np.zeros((replacing.NUM_ROWS, replacing.NUM_FIELDS), np.int64)
        self._expected = np.ones(2)
        # Steps, without a match, stood down; tokens and cost expected there; tokens emitted in all steps.
        self._stood_down = [0, 0, 0, 0.0, 0.0, 0]
        self._settings = np.zeros(rule.NUM_SETTINGS, np.int64)
        self._settings[rule.MIN_LEN] = self._policy.prompt_lookup_min
        self._settings[rule.MAX_LEN] = self._policy.prompt_lookup_max
        self._settings[rule.NUM_PREDICTED] = self._num_predicted
        self._settings[rule.NUM_COPIES] = self._policy.max_branches
        self._tables_for = (0, 0)
        self._tables = self._policy.tables()

    @property
    def num_topk(self) -> int:
        """How many of the target's likeliest tokens ``commit`` wants in ``Outcome.topk`` for every position."""
        return 0 if self._recycled is None else self._recycled.num_topk

    @property
    def copy_pointer(self) -> int:
        """Arena position where the last accepted copy ended."""
        return self._pointer

    @property
    def index(self) -> NgramIndex:
        """The session's own text: prediction, barrier, prompt, output."""
        return self._index

    @property
    def best_copy(self) -> tuple[int, int, str] | None:
        """(arena position, match length, evidence) of the likeliest copy at the last ``propose``, drafted or not."""
        if self._first[rule.AT_LENGTH] != len(self._index) or self._first[rule.POSITION] < 0:
            return None
        evidence = rule.EVIDENCE_NAMES[self._first.item(rule.EVIDENCE)]
        return self._first.item(rule.POSITION), self._first.item(rule.MATCH), evidence

    @property
    def stand_down_reason(self) -> str | None:
        """Why most steps so far drafted nothing, in numbers; None if most of them did draft, or the others made up for
        it."""
        steps, unmatched, stood_down, tokens, cost, emitted = self._stood_down
        if 2 * (unmatched + stood_down) <= steps or has_paid(emitted, steps):
            return None
        if unmatched >= stood_down:
            return f"stood down: nothing to copy at {unmatched} of {steps} steps"
        return f"stood down: expected {tokens / stood_down:.2f} tokens for {cost / stood_down:.2f} cost"

    def propose(self, max_tokens: int, max_depth: int | None = None, *, num_rows: int = 1) -> Draft:
        """Draft the likeliest continuation of the text so far.

        Changes nothing that a later ``propose`` could see. Cost: microseconds, whatever the length of the text.

        Args:
            max_tokens: upper bound on the number of nodes.
            max_depth: upper bound on the depth of every node (1: directly after the last token); None: no bound.
            num_rows: rows that share the target's forward; the more, the less each of them drafts.

        Returns:
            A chain, or a tree of up to ``max_branches`` chains and those of memory and phrases; empty where nothing
            matches, where drafting does not pay (``stand_down_reason`` says why) or where the bounds leave no room.

        Raises:
            ValueError: a negative bound, or num_rows below 1.
            RuntimeError: the session is finished.
        """
        if self._is_finished:
            self._check_running()
        if type(max_tokens) is not int or max_tokens < 0 or not (max_depth is None or type(max_depth) is int):
            max_tokens, max_depth = bounds(max_tokens, max_depth)
        if max_depth is not None and max_depth < 0:
            bounds(max_tokens, max_depth)
        most = self._most  # "if" rather than min: this is a tenth of what a draft takes
        if max_tokens == 0 or max_depth == 0 or most == 0:
            return Draft.empty()
        room = max_tokens if max_tokens < most else most
        depth = room if max_depth is None or max_depth > room else max_depth
        is_adaptive = self._policy.length_factor is None
        block, n = self._adaptive(room, depth, num_rows) if is_adaptive else self._fixed(depth)
        if self._tree is not None:
            block, n = self._tree.choose(block, n, depth, self._policy.max_branches)
        if self._shared is not None:
            index = self._index
            context = index._tokens[max(self._prompt_start, len(index) - MAX_MATCH) : len(index)]
            block, n = self._shared.merge(block, n, context, room, depth, self._tables, self._policy)
        if self._recycled is not None:
            context = self._index._tokens[: len(self._index)]
            block, n = self._recycled.merge(block, n, context, room, depth, self._tables.costs if is_adaptive else None)
        if n == 0:
            return Draft.empty()
        return Draft.from_block(block if n == block.shape[1] else block[:, :n])

    def _adaptive(self, room: int, max_depth: int, num_rows: int) -> tuple[IntArray, int]:
        """The session's own draft, as large as it pays: (block, number of nodes)."""
        index, settings = self._index, self._settings
        length = index._meta.item(core.LENGTH)
        if self._tables_for != (num_rows, length.bit_length()):
            self._tables = self._policy.tables(num_rows, length)
            self._tables_for = (num_rows, length.bit_length())
        settings[rule.LENGTH] = length
        settings[rule.POINTER] = self._pointer
        settings[rule.MAX_NODES] = room
        settings[rule.MAX_DEPTH] = max_depth
        block = np.empty((rule.NUM_ROWS, room), INT32)
        tables = self._tables
        n = _propose(
            index._tokens,
            index._links,
            settings,
            self._replaced,
            self._weights,
            tables.breaks,
            tables.prices,
            tables.costs,
            tables.slopes,
            block,
            self._first,
            self._expected,
        )
        return block, n

    def _fixed(self, room: int) -> tuple[IntArray, int]:
        """The fixed rule: a chain of ``length_factor`` tokens per matched token."""
        index, policy = self._index, self._policy
        length = len(index)
        position, match = _find_copy(
            index._tokens,
            index._links,
            length,
            self._pointer,
            SEARCH_WINDOW,
            SEARCH_LIMIT,
            policy.prompt_lookup_min,
            policy.prompt_lookup_max,
        )
        if position < 0:
            return NO_BLOCK, 0
        block = np.empty((rule.NUM_ROWS, policy.draft_length(match, room)), INT32)
        source = PREDICTION if position < self._num_predicted else CONTEXT
        return block, _copy_chain(index._tokens, length, position, match, source, block)

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        """Append what was emitted and move the copy pointer to the end of the accepted copy.

        The draft may come from elsewhere: nodes without an origin in this session's text leave the pointer alone.
        The first token of an output is ``commit(Draft.empty(), Outcome(path=(), new_ids=(token,), stop="full"))``.

        Raises:
            ValueError: a path that is not in the draft, or bad token ids; the session is then unchanged.
            RuntimeError: the session is finished.
        """
        self._check_running()
        if not isinstance(draft, Draft) or not isinstance(outcome, Outcome):
            raise ValueError(f"expected a Draft and its Outcome, got {shown(draft)} and {shown(outcome)}")
        origin = -1
        if outcome.path:
            node = outcome.path[-1]
            if not 0 <= node < len(draft):
                raise ValueError(f"path must hold nodes of the draft, in [0, {len(draft) - 1}], got {node}")
            origin = draft.origin_of(node)
        before = len(self._index)
        self._index.extend(outcome.new_ids)
        length = len(self._index)
        cursor = self._learn(draft, outcome, before, length) if self._first.item(rule.AT_LENGTH) == before else -1
        came = self._index._tokens[before:length]
        if self._tree is not None:
            self._tree.learn(came)
        if self._shared is not None:
            self._shared.learn(came, outcome.stop in ("rejected", "full"), self._tables)
        if self._recycled is not None:
            is_adaptive = self._policy.length_factor is None
            context = self._index._tokens[:before]
            self._recycled.learn(context, draft, outcome, self._tables.costs if is_adaptive else None)
        if cursor >= 0:
            self._pointer = cursor
        elif 0 <= origin < length:
            self._pointer = origin + 1

    def _learn(self, draft: Draft, outcome: Outcome, before: int, length: int) -> int:
        """Compare what came with the best copy, which costs nothing to watch even while nothing is drafted.

        Returns where that copy goes on; -1 if none of it came.
        """
        tally = self._stood_down
        tally[0] += 1
        tally[5] += length - before
        if len(draft) == 0 and self._first.item(rule.POSITION) < 0:
            tally[1] += 1
        elif len(draft) == 0:
            tally[2] += 1
            tally[3] += self._expected.item(rule.EXPECTED_TOKENS)
            tally[4] += self._expected.item(rule.EXPECTED_COST)
        may_break, weights = outcome.stop in ("rejected", "full"), self._weights
        tokens, replaced = self._index._tokens, self._replaced
        cursor: int = _learn(tokens, length, may_break, self._first, self._tables.breaks, weights, replaced)
        return cursor

    def finish(self, remember: bool | Remember = False) -> None:
        """End the session; proposing or committing afterwards is an error. Finishing twice is not, and does nothing.

        Args:
            remember: what to add to the drafter's memory, under the session's namespace: "output" (or True), "both"
                for prompt and output as one text, False for nothing.

        Raises:
            ValueError: another value, or something to remember where the drafter has no memory. The session is
                finished all the same.
        """
        was_finished, self._is_finished = self._is_finished, True
        one_of("remember", remember, REMEMBER)
        if remember is False or was_finished:
            return
        if self._drafter.memory is None:
            raise ValueError("remember needs a drafter with a memory, got a drafter without")
        start = self._prompt_start if remember == "both" else self._output_start
        self._drafter.memory.add(self._index.token_ids[start:], self._namespace)

    def _check_running(self) -> None:
        if self._is_finished:
            raise RuntimeError("the session is finished; begin a new one")


def check_call(draft: Any, max_draft_tokens: Any, namespace: Any, remember: Any) -> None:
    """Raise a ValueError for what no call can ask of drafting; see ``zerodraft.attach`` for the four."""
    flag("draft", draft)
    if max_draft_tokens is not None:
        int_in("max_draft_tokens", max_draft_tokens, 0, MAX_DRAFT_TOKENS)
    check_namespace(namespace)
    one_of("remember", remember, REMEMBER)
