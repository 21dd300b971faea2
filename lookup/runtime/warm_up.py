"""warm_up: compile (once per machine) and load now what the first requests would else wait for."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from zerodraft.lookup.checks import instance_of
from zerodraft.lookup.policy import DraftPolicy

if TYPE_CHECKING:
    from zerodraft.lookup.sources.phrases import PhraseBook

_TEXT: Final = (1, 2, 3, 4, 5, 1, 2)  # what followed 1, 2 is drafted


def warm_up(policy: DraftPolicy | None = None) -> float:
    """Run one session of every kind, so import every kernel file, which compiles it or loads it from its cache.

    Afterwards the first session of a process, with whatever options, costs what the hundredth does. The first time on a
    machine takes 10 to 70 seconds (a warning says so), later processes about one, a second call a millisecond or two.

    Args:
        policy: whose tables are to be solved, too; None: the default one's. A policy with a cost curve of its own costs
            milliseconds for every power of two of rows and context when it first meets it.

    Returns:
        The seconds it took; ``num_compiled`` says whether anything was compiled.
    """
    start = time.perf_counter()
    instance_of("policy", policy, DraftPolicy)
    _try_sessions(policy or DraftPolicy())
    _try_lines()
    return time.perf_counter() - start


def num_compiled() -> int:
    """Kernels that this process compiled so far because no cache had them."""
    from zerodraft.lookup.runtime._jit import compilations

    return compilations.num_kernels


def _try_sessions(policy: DraftPolicy) -> None:
    """Draft and commit a little with every source; nothing of it is kept."""
    from zerodraft.lookup.drafter import Drafter
    from zerodraft.lookup.lookahead.beside import Beside
    from zerodraft.lookup.lookahead.lookahead import Lookahead
    from zerodraft.lookup.measure.replay import replay
    from zerodraft.lookup.memory.draft_memory import DraftMemory

    memory = DraftMemory(64)
    plain = Drafter(policy=policy)
    with_all = Drafter(policy=policy, memory=memory, phrases=_phrases(), recycle="shared", suffix_tree=True)
    for drafter in (plain, with_all, Lookahead(), Beside(Drafter(recycle=True), Lookahead())):
        session = drafter.begin(_TEXT, _TEXT)
        replay(session, (3, 4, 9, 1, 2, 3, 8), max_tokens=8)
        session.finish(remember=drafter is with_all)
    memory.propose(_TEXT[:4], 2)


def _phrases() -> PhraseBook | None:
    from zerodraft.lookup.sources.phrases import PhraseBook

    with contextlib.suppress(ModuleNotFoundError):  # pyahocorasick is not installed
        return PhraseBook([_TEXT])
    return None


def _try_lines() -> None:
    """One row of a serving engine's batch, which is stepped by a kernel of its own."""
    from zerodraft.lookup.drafter import Drafter
    from zerodraft.lookup.serving.lines import SessionLines

    lines = SessionLines(Drafter(policy=DraftPolicy(max_branches=1)), 4)
    rows = np.array([[*_TEXT, 3, 0, 0]], np.int32)
    line = np.array([lines.begin(rows[0, : len(_TEXT)])], np.int64)
    lengths, one, status = np.array([len(_TEXT) + 1]), np.ones(1, np.int64), np.zeros(1, np.int64)
    lines.step(rows, lengths, one, line, status, rows.shape[1], True)
    lines.finish(int(line[0]))
