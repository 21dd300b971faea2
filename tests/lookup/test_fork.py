"""A process that forks beside threads at work: every child drafts, remembers and saves, and none hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import weakref

import pytest

from zerodraft.lookup.runtime import at_fork

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

WORK = """
import os, sys, threading, time, warnings
import numpy as np
from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.memory.draft_memory import DraftMemory

warnings.simplefilter("ignore")  # Python warns of forks beside threads; that is what is tried
NUM_CHILDREN, folder = int(sys.argv[1]), sys.argv[2]
memory = DraftMemory(20_000, directory=folder)
drafter = Drafter(memory=memory, recycle="shared")

def request(rng):
    text = rng.integers(0, 50, 200).astype(np.int32)
    session = drafter.begin(text, namespace="all")
    for _ in range(4):
        draft = session.propose(8)
        topk = np.tile(np.arange(8, dtype=np.int32), (1 + len(draft), 1))
        session.commit(draft, Outcome(path=(), new_ids=(int(rng.integers(50)),), stop="rejected", topk=topk))
    session.finish(remember="both")

def work(seed):
    rng = np.random.default_rng(seed)
    while not is_done.is_set():
        request(rng)
        if rng.random() < 0.1:
            drafter.save()

def child(number):
    rng = np.random.default_rng(1000 + number)
    request(rng)
    if number % 20 == 0:
        drafter.save()
    memory.check_integrity()

is_done = threading.Event()
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for thread in threads: thread.start()
codes = []
for number in range(NUM_CHILDREN):
    pid = os.fork()
    if pid == 0:
        try:
            child(number)
            os._exit(0)
        except BaseException:
            import traceback; traceback.print_exc()
            os._exit(1)
    end = time.monotonic() + 20
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            codes.append(os.waitstatus_to_exitcode(status))
            break
        if time.monotonic() > end:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            codes.append("hung")
            break
        time.sleep(0.002)
    if codes[-1] != 0:
        break
is_done.set()
for thread in threads: thread.join()
memory.check_integrity()
drafter.save()
print(len(codes), set(codes))
"""


@pytest.mark.slow
def test_two_hundred_forks_beside_four_threads_that_draft_and_save(tmp_path):
    """Case 54."""
    command = [sys.executable, "-c", WORK, "200", str(tmp_path / "memory")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip() == "200 {0}", done.stdout + done.stderr


def in_a_child(check) -> int:
    """Fork; return the exit status of the child, which is 0 if ``check`` is true there."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def hold(lock, until: threading.Event) -> threading.Thread:
    """Hold the lock in another thread."""
    is_held = threading.Event()

    def run() -> None:
        with lock:
            is_held.set()
            until.wait(30)

    thread = threading.Thread(target=run)
    thread.start()
    is_held.wait(30)
    return thread


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("order", [at_fork.FILES, at_fork.NEVER])
def test_a_child_finds_a_lock_free_that_another_thread_never_let_go(monkeypatch, order):
    monkeypatch.setattr(at_fork, "MAX_WAIT", 0.05)
    for kind in (threading.Lock, threading.RLock):
        until, lock = threading.Event(), at_fork.held_at_fork(kind(), order)
        thread = hold(lock, until)
        try:
            assert in_a_child(lambda lock=lock: lock.acquire(timeout=5)) == 0
            assert not lock.acquire(blocking=False)  # in the parent it is still the thread's
        finally:
            until.set()
            thread.join()
        assert lock.acquire(timeout=5)
        lock.release()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_waits_until_what_a_lock_guards_is_whole():
    lock, state, until = at_fork.held_at_fork(threading.Lock(), at_fork.TEXTS), [0, 0], threading.Event()
    is_half = threading.Event()

    def change() -> None:
        with lock:
            state[0] = 1
            is_half.set()
            until.wait(0.2)
            state[1] = 1

    thread = threading.Thread(target=change)
    thread.start()
    is_half.wait(30)
    assert in_a_child(lambda: state == [1, 1]) == 0
    thread.join()


def test_a_lock_is_forgotten_with_its_owner():
    lock = at_fork.held_at_fork(threading.Lock(), at_fork.TEXTS)
    ghost = weakref.ref(lock)
    assert lock in at_fork._locks[at_fork.TEXTS]
    del lock
    assert ghost() is None
