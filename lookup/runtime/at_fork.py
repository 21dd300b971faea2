"""Locks that a fork cannot leave locked: a child finds them free, and what they guard whole.

A child has only the thread that forked. A lock that another thread held would stay locked in it for ever, and what it
guards half changed. So a fork waits for these locks and takes them; afterwards both sides find them free.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from typing import Any, Final, TypeVar

Lock = TypeVar("Lock", bound=Any)

OUTER, FILES, TEXTS, NEVER = range(4)  # the order in which a thread may take them, so the order in which a fork does
MAX_WAIT: Final = 5.0  # seconds; a save that hangs on a dead disk delays a fork, it does not stop it

_locks: Final[tuple[weakref.WeakSet[Any], ...]] = tuple(weakref.WeakSet() for _ in range(4))
_registry: Final = threading.Lock()  # the sets, while they change or are copied
_forking: Final = threading.Lock()  # one fork at a time
_taken: Final[list[Any]] = []


def held_at_fork(lock: Lock, order: int) -> Lock:
    """Return the lock; from now on a fork waits for it, up to ``MAX_WAIT``, and a child finds it free.

    Args:
        lock: a ``threading.Lock`` or ``RLock``. It is forgotten when it dies.
        order: OUTER, FILES or TEXTS: a thread that holds one lock may take another of a later order only. NEVER: no
            fork waits for it, since it is held for seconds and what it guards is whole at any time.

    >>> held_at_fork(threading.Lock(), TEXTS).locked()
    False
    """
    with _registry:
        _locks[order].add(lock)
    return lock


def _all_locks() -> list[list[Any]]:
    with _registry:
        return [list(locks) for locks in _locks]


def _take() -> None:
    _forking.acquire()
    end = time.monotonic() + MAX_WAIT
    for lock in itertools.chain(*_all_locks()[:NEVER]):
        if lock.acquire(timeout=max(0.0, end - time.monotonic())):
            _taken.append(lock)


def _release() -> None:
    while _taken:
        _taken.pop().release()
    _forking.release()


def _free() -> None:
    for lock in (_registry, _forking):
        lock._at_fork_reinit()  # type: ignore[attr-defined]
    for lock in itertools.chain(*_all_locks()):
        lock._at_fork_reinit()  # those that a thread of the parent still held, too
    _taken.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take, after_in_parent=_release, after_in_child=_free)
