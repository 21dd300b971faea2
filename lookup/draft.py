"""The two values that travel between the rooms: a Draft goes out to the target model, an Outcome comes back."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from zerodraft.lookup._block import (
    CONTEXT,
    CUSTOM,
    MATCH,
    MEMORY,
    ORIGIN,
    PARENT,
    PHRASE,
    PREDICTION,
    PROB,
    RECYCLED,
    SOURCE,
    SOURCE_NAMES,
    TOKEN,
    WINDOW,
)
from zerodraft.lookup.checks import int_in, shown

__all__ = [
    "CONTEXT",
    "CUSTOM",
    "MEMORY",
    "PHRASE",
    "PREDICTION",
    "RECYCLED",
    "SOURCE_NAMES",
    "WINDOW",
    "Draft",
    "IntArray",
    "Outcome",
    "Session",
    "StopReason",
    "as_token_ids",
]

IntArray = npt.NDArray[np.int32]
INT32: Final = np.dtype(np.int32)  # makes an array in two thirds of the time that np.int32 takes: for small ones, often
_new: Final = object.__new__
StopReason = Literal["rejected", "full", "eos", "stop", "length"]
_STOPS: Final = get_args(StopReason)

MAX_TOKEN_ID: Final = 2**31 - 1


def as_token_ids(ids: object, what: str = "token ids") -> IntArray:
    """Return ``ids`` as a contiguous int32 array (n,), or raise a ValueError that names what was given.

    Accepts a sequence of ints or a 1-D integer array (or tensor). Never wraps: ids outside [0, 2**31 - 1], floats,
    bools and arrays of other than one dimension are refused before anything is stored. Cost: one pass.

    >>> as_token_ids([0, 151935]).tolist()
    [0, 151935]
    >>> as_token_ids([3, -100])
    Traceback (most recent call last):
    ValueError: token ids must be in [0, 2147483647], got -100 at position 1
    """
    if isinstance(ids, (tuple, list)) and 0 < len(ids) <= _FEW and type(ids[0]) is int:
        try:  # the tokens of one step: four microseconds less than by way of numpy
            few = array("i", ids)
        except (TypeError, OverflowError):
            few = array("i", (-1,))
        if min(few) >= 0:
            return np.frombuffer(few, np.int32)
    given = np.asarray(ids)
    if given.ndim != 1:
        raise ValueError(f"{what} must be one-dimensional, got shape {given.shape}")
    if given.size == 0:
        return np.empty(0, np.int32)
    if given.dtype.kind not in "iu":
        raise ValueError(f"{what} must be integers, got dtype {given.dtype}")
    if given.dtype != np.int32 or given.min() < 0:
        outside = np.flatnonzero((given < 0) | (given > MAX_TOKEN_ID))
        if outside.size:
            at = int(outside[0])
            raise ValueError(f"{what} must be in [0, {MAX_TOKEN_ID}], got {given[at]} at position {at}")
    return np.ascontiguousarray(given, dtype=np.int32)


_FEW: Final = 64
_FLOAT32: Final = np.dtype(np.float32)
_UINT8: Final = np.dtype(np.uint8)
_BOOL: Final = np.dtype(np.bool_)
_TRUE: Final = np.ones(4096, _BOOL)  # of drafts that kernels make; shared, so it cannot be written
_TRUE.flags.writeable = False
_FIELDS: Final = {
    "token_ids": INT32,
    "parents": INT32,
    "probs": _FLOAT32,
    "match_len": INT32,
    "source": _UINT8,
    "origin": INT32,
    "verify": _BOOL,
}


@dataclass(frozen=True, eq=False)
class Draft:
    """Proposed next tokens: a chain, or a tree that hangs from the last emitted token.

    Node i is drafted token i. The root, the last emitted token, is not a node: ``parents[i] == -1`` means "right after
    it". Parents come before their children, verifiable siblings have different token ids, and the ancestors of a
    ``verify`` node are ``verify`` nodes.

    Attributes (n = number of drafted nodes):
        token_ids: int32 (n,).
        parents: int32 (n,), ``-1 <= parents[i] < i``. A chain is ``arange(n) - 1``.
        probs: float32 (n,), estimated probability in [0, 1] that the node is reached and accepted.
        match_len: int32 (n,), length of the suffix match that the node continues, 0 where there was none.
        source: uint8 (n,), one of the constants of this module (``CONTEXT`` ... ``CUSTOM``).
        origin: int32 (n,), position in the session's token arena the node was copied from; -1: not from there.
        verify: bool (n,), False for window nodes of Lookahead: computed in the forward, never accepted.
    """

    token_ids: IntArray
    parents: IntArray
    probs: npt.NDArray[np.float32]
    match_len: IntArray
    source: npt.NDArray[np.uint8]
    origin: IntArray
    verify: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        n = len(self.token_ids) if isinstance(self.token_ids, np.ndarray) else -1
        for name, dtype in _FIELDS.items():
            value = self.__dict__[name]
            if not isinstance(value, np.ndarray) or value.dtype != dtype or value.shape != (n,):
                got = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
                raise ValueError(f"{name} must be an array {dtype} (n,), all of one n, got {got}; see Draft.tree")

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        """True if every node is the only child of the one before it."""
        return bool(np.array_equal(self.parents, np.arange(len(self), dtype=np.int32) - 1))

    @classmethod
    def from_block(cls, block: IntArray) -> Draft:
        """Return the draft whose fields are the rows of ``block``, int32 (NUM_ROWS, n), without checks.

        For drafting kernels (``_block``): every node is to be verified. The block belongs to the draft from then on.
        """
        n = block.shape[1]
        if n == 0:
            return _EMPTY
        probs, source = block[PROB].view(_FLOAT32), block[SOURCE].astype(_UINT8)
        verify = _TRUE[:n] if n <= len(_TRUE) else np.ones(n, np.bool_)
        fields = block[TOKEN], block[PARENT], probs, block[MATCH], source, block[ORIGIN], verify
        draft = _new(cls)
        draft.__dict__.update(zip(_FIELDS, fields))
        return draft

    @classmethod
    def empty(cls) -> Draft:
        """The draft that proposes nothing; the step then is plain decoding."""
        return _EMPTY

    @classmethod
    def chain(cls, token_ids: Sequence[int] | npt.NDArray[np.integer], *, source: int = CUSTOM) -> Draft:
        """Return the draft that proposes these tokens one after another.

        Raises:
            ValueError: ids that are not integers in [0, 2**31 - 1].
        """
        ids = as_token_ids(token_ids, "draft token ids")
        return cls.tree(ids, np.arange(len(ids), dtype=np.int32) - 1, source=source)

    @classmethod
    def tree(
        cls,
        token_ids: Sequence[int] | npt.NDArray[np.integer],
        parents: Sequence[int] | npt.NDArray[np.integer],
        *,
        source: int = CUSTOM,
        verify: Sequence[bool] | npt.NDArray[np.bool_] | None = None,
    ) -> Draft:
        """Return a checked tree draft; the way for drafters of one's own.

        Raises:
            ValueError: lengths that differ, a parent that does not come before its child, two verifiable siblings
                with the same token, or a verifiable node below one that is not.

        >>> Draft.tree([5, 6, 7], [-1, -1, 0]).is_chain
        False
        """
        ids = as_token_ids(token_ids, "draft token ids")
        up = np.asarray(parents)
        if up.size and up.dtype.kind not in "iu":
            raise ValueError(f"parents must be integers, got dtype {up.dtype}")
        up = up.astype(np.int32)
        n = len(ids)
        may = np.ones(n, np.bool_) if verify is None else np.asarray(verify)
        if may.size and may.dtype.kind != "b":
            raise ValueError(f"verify must be True and False, got dtype {may.dtype}")
        may = may.astype(np.bool_)
        int_in("source", source, 0, len(SOURCE_NAMES) - 1)
        if up.shape != (n,) or may.shape != (n,):
            raise ValueError(f"token_ids, parents and verify must have one length, got {n}, {up.shape}, {may.shape}")
        draft = cls(
            token_ids=ids,
            parents=up,
            probs=np.ones(n, np.float32),
            match_len=np.zeros(n, np.int32),
            source=np.full(n, source, np.uint8),
            origin=np.full(n, -1, np.int32),
            verify=may,
        )
        draft.check()
        return draft

    def only(self, kept: npt.NDArray[np.bool_]) -> Draft:
        """Return the draft without some of its nodes.

        Args:
            kept: bool (n,), True for the nodes that stay; the ancestors of a node that stays must stay, too.

        >>> Draft.tree([5, 6, 7], [-1, -1, 1]).only(np.array([False, True, True])).parents.tolist()
        [-1, 0]
        """
        if kept.all():
            return self
        if not kept.any():
            return Draft.empty()
        parents = self.parents[kept]
        new_index = np.cumsum(kept, dtype=np.int32) - 1
        return Draft(
            token_ids=self.token_ids[kept],
            parents=np.where(parents < 0, -1, new_index[parents]).astype(np.int32),
            probs=self.probs[kept],
            match_len=self.match_len[kept],
            source=self.source[kept],
            origin=self.origin[kept],
            verify=self.verify[kept],
        )

    def check(self) -> None:
        """Raise a ValueError unless this is a tree as the class docstring says. Cost: one Python pass."""
        seen: set[tuple[int, int]] = set()
        parents, verify = self.parents.tolist(), self.verify.tolist()
        for node, (parent, token) in enumerate(zip(parents, self.token_ids.tolist())):
            if not -1 <= parent < node:
                raise ValueError(f"parents[{node}] must be in [-1, {node - 1}], got {parent}")
            if not verify[node]:
                continue
            if parent >= 0 and not verify[parent]:
                raise ValueError(f"node {node} is to be verified but its parent {parent} is not")
            if (parent, token) in seen:
                raise ValueError(f"two siblings below node {parent} propose the same token {token}")
            seen.add((parent, token))


_EMPTY: Final = Draft(
    token_ids=np.empty(0, np.int32),
    parents=np.empty(0, np.int32),
    probs=np.empty(0, np.float32),
    match_len=np.empty(0, np.int32),
    source=np.empty(0, np.uint8),
    origin=np.empty(0, np.int32),
    verify=np.empty(0, np.bool_),
)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of one Draft.

    Attributes:
        path: accepted node indices, from the root's child downwards. A drafted token that ends the row is among them.
        new_ids: emitted token ids in order: the accepted tokens, then the target's own next token (the bonus) unless
            the row stopped on an accepted node.
        num_accepted: number of drafted tokens that were emitted, ``len(path)``; may be left out.
        stop: why the walk ended. "rejected": the target chose a token that was not drafted there; "full": it went
            down to a leaf; "eos", "stop" (a stopping criterion), "length": cut for a reason that says
            nothing about the draft, so nothing is learned from the cut.
        topk: int32 (1 + n, k), the target's k likeliest tokens after the root and after each node, or None.

    Raises:
        ValueError: a ``num_accepted`` that is not the length of ``path``, or a field of another type.
    """

    path: tuple[int, ...]
    new_ids: tuple[int, ...]
    num_accepted: int = -1
    stop: StopReason = "full"
    topk: IntArray | None = None

    def __post_init__(self) -> None:
        fields = self.__dict__  # arrays and lists are taken, too; plain tuples are what the code works with
        for name in ("path", "new_ids"):
            if type(fields[name]) is not tuple:
                fields[name] = tuple(as_token_ids(fields[name], name).tolist())
        if self.stop not in _STOPS:
            raise ValueError(f"stop must be one of {', '.join(map(repr, _STOPS))}, got {self.stop!r}")
        if self.topk is not None and getattr(self.topk, "ndim", 0) != 2:
            raise ValueError(f"topk must be an array (1 + n, k), got {shown(self.topk)}")
        if self.num_accepted == -1:
            fields["num_accepted"] = len(self.path)
        elif self.num_accepted != len(self.path):
            raise ValueError(f"num_accepted must be the length of path, {len(self.path)}, got {self.num_accepted}")

    @property
    def stopped_on_accepted(self) -> bool:
        """True if the row ended on a drafted token, so that there was no bonus token."""
        return len(self.path) == len(self.new_ids)


class Session(Protocol):
    """One request being drafted for, by whatever drafter: ``begin`` of every drafter returns one.

    A drafter of one's own needs no more than an object with these three methods. A session may also have ``num_topk``,
    how many of the target's likeliest tokens it wants in ``Outcome.topk``, and ``stand_down_reason``.
    """

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Draft:
        """Return at most ``max_tokens`` nodes, none deeper than ``max_depth``."""

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        """Take in what became of a draft: ``outcome.new_ids`` go on the text."""

    def finish(self, remember: Any = False) -> None:
        """End the request; keep its text for later ones if asked to."""
