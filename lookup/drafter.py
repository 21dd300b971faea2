"""Drafter: what requests share, and the start of each."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

# First, since it reads a file: if that is missing, it is missed before the kernels compile.
from zerodraft.lookup.policy import MAX_DRAFT_TOKENS, DraftPolicy

# isort: split
from zerodraft.lookup.checks import flag, instance_of, int_in, one_of, shown
from zerodraft.lookup.draft import Draft, IntArray, as_token_ids
from zerodraft.lookup.memory.draft_memory import DraftMemory, check_namespace
from zerodraft.lookup.serving.budget import share_budget
from zerodraft.lookup.session.draft_session import REMEMBER, DraftSession, Remember
from zerodraft.lookup.sources.phrase_source import PhraseSource
from zerodraft.lookup.sources.phrases import PhraseBook
from zerodraft.lookup.sources.source import Source

if TYPE_CHECKING:
    from typing_extensions import Self

    from zerodraft.lookup.recycle.recycler_shelf import RecyclerShelf
    from zerodraft.lookup.recycle.token_recycler import TokenRecycler

__all__ = ["REMEMBER", "DraftSession", "Drafter", "Remember", "check_call"]

TokenIds = Sequence[int] | npt.NDArray[np.integer]
MakeSource = Callable[[IntArray], Source]


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
        sources: Sequence[MakeSource] = (),
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
            sources: sources of one's own: each is called with a request's prompt, int32 (n,), and returns its
                ``Source``. Nothing that a source drafts changes the text: the target checks it like all the rest.

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
        if not isinstance(sources, (list, tuple)) or not all(map(callable, sources)):
            raise ValueError(f"sources must be a list of functions that make a Source, got {shown(sources)}")
        self.sources: tuple[MakeSource, ...] = tuple(sources)
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
            import zerodraft.lookup.recycle.recycled_source  # noqa: F401
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

    def with_sources(self, *makes: MakeSource) -> Self:
        """A drafter like this one whose requests draft from these sources, too."""
        other = copy.copy(self)
        other.sources = (*self.sources, *makes)
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
        return DraftSession(self, prompt, prediction, namespace, self.sources_for(prompt, prediction, namespace))

    def sources_for(self, prompt: IntArray, prediction: IntArray, namespace: str | None) -> list[Source]:
        """What a request drafts from beside its own text and the memory, in the order in which they are asked."""
        made: list[Source] = []
        if self.suffix_tree:
            from zerodraft.lookup.suffix.tree_source import TreeSource

            made.append(TreeSource(prediction, prompt))
        if self.phrases is not None:
            made.append(PhraseSource(self.phrases, prompt, self.policy.prompt_lookup_min))
        for number, make in enumerate(self.sources):
            source = make(prompt)
            if not isinstance(source, Source):
                raise ValueError(f"sources[{number}] must return a Source, got {shown(source)}")
            made.append(source)
        recycler = self.recycler(namespace)
        if recycler is not None:
            from zerodraft.lookup.recycle.recycled_source import RecycledSource

            made.append(RecycledSource(recycler, prompt))
        return made

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


def check_call(draft: Any, max_draft_tokens: Any, namespace: Any, remember: Any) -> None:
    """Raise a ValueError for what no call can ask of drafting; see ``zerodraft.attach`` for the four."""
    flag("draft", draft)
    if max_draft_tokens is not None:
        int_in("max_draft_tokens", max_draft_tokens, 0, MAX_DRAFT_TOKENS)
    check_namespace(namespace)
    one_of("remember", remember, REMEMBER)
