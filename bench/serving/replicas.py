"""Replicas that share a memory: four processes, one directory, one of them killed again and again.

    python bench replicas                 # two minutes
    python bench replicas --seconds 6 --cap 40000     # as the tests run it

Every process serves requests through sessions of its own, remembers what they wrote, and keeps its memory in step with
the directory by the thread that serving engines use. Two write under one namespace, two under another. Checked all the
while, an AssertionError ends it:

- what a replica has published is drafted by the other one of its namespace, until the cap has pushed it out;
- nothing of the other namespace is ever drafted;
- the directory never lists more tokens than the cap, and no process holds more;
- a replica killed at any moment loses nothing that was published, and the others go on.

Writes bench/results/replicas.csv.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measure
import numpy as np
from soak import knows_in, text_of

from zerodraft.integrations.serving.memory_sync import MemorySync
from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.memory.draft_memory import DraftMemory

NUM_REPLICAS = 4
LENGTH = 400
VICTIM = 3
NAMESPACES = ("a", "a", "b", "b")
# Columns of the board, one row per replica; every number has one writer, so that none needs a lock.
PUBLISHED, TOTAL_THEN, TOKENS, DRAFTED, FOUND, MISSED, FOREIGN, NUM_COLUMNS = range(8)


def serve(memory: DraftMemory, namespace: str, output: np.ndarray) -> int:
    """One request: the target writes ``output``; return how many tokens of it were drafted right."""
    session = Drafter(memory=memory).begin(output[:4], namespace=namespace)
    at, right = 4, 0
    while at < len(output):
        draft = session.propose(16)
        path: list[int] = []
        while at + len(path) < len(output) and (node := _child(draft, path, output[at + len(path)])) is not None:
            path.append(node)
        new = output[at : at + len(path) + 1].tolist()
        right += min(len(path), len(new))
        session.commit(draft, Outcome(path=tuple(path[: len(new)]), new_ids=tuple(new), stop="rejected"))
        at += len(new)
    session.finish("both")
    return right


def _child(draft: Draft, path: Sequence[int], token: int) -> int | None:
    above = path[-1] if path else -1
    for node, (parent, drafted) in enumerate(zip(draft.parents.tolist(), draft.token_ids.tolist())):
        if parent == above and drafted == token:
            return node
    return None


def replica(directory: str, cap: int, number: int, board: Any, until: float) -> None:
    """Write requests of its own, publish, and look for what the other one of the namespace has published."""
    table = np.frombuffer(board, np.int64).reshape(NUM_REPLICAS, NUM_COLUMNS)
    mine, namespace, other = table[number], NAMESPACES[number], number ^ 1
    memory = DraftMemory(cap, directory=directory)
    sync = MemorySync(memory, 0.05)
    rng = random.Random(os.getpid())
    written = int(mine[PUBLISHED])
    while time.time() < until:
        for _ in range(3):
            mine[TOKENS] += LENGTH
            mine[DRAFTED] += serve(memory, namespace, text_of(number, written, LENGTH))
            written += 1
        total = int(table[:, TOKENS].sum())
        memory.save()
        mine[TOTAL_THEN], mine[PUBLISHED] = total, written
        assert memory.num_tokens <= cap
        then = int(table[other, TOTAL_THEN])  # before what was published by then or later: an age is never too low
        published = int(table[other, PUBLISHED])
        if published:
            text = published - 1 - rng.randrange(3)
            memory.refresh()
            found = knows_in(memory, other, text, namespace, LENGTH)
            age = int(table[:, TOKENS].sum()) - then
            assert found or age > cap // 2, f"replica {number} misses text {text} of {other}, published before"
            mine[FOUND if found else MISSED] += 1
        stranger = (number + 2) % NUM_REPLICAS
        if table[stranger, PUBLISHED]:
            mine[FOREIGN] += knows_in(memory, stranger, int(table[stranger, PUBLISHED]) - 1, namespace, LENGTH)
        time.sleep(0.02)
    sync.close()
    memory.check_integrity()
    assert sync.num_failures == 0, "the directory was out of step"


def run(seconds: float, cap: int, directory: str) -> dict[str, Any]:
    """Four replicas for so long; the figures of the run."""
    context = multiprocessing.get_context("spawn")
    board = context.RawArray("q", NUM_REPLICAS * NUM_COLUMNS)
    table = np.frombuffer(board, np.int64).reshape(NUM_REPLICAS, NUM_COLUMNS)
    until = time.time() + seconds

    def start(number: int) -> Any:
        process = context.Process(target=replica, args=(directory, cap, number, board, until))
        process.start()
        return process

    processes = [start(number) for number in range(NUM_REPLICAS)]
    rng, kills, most_tokens, most_files = random.Random(1), 0, 0, 0
    seen: set[str] = set()
    pause = min(5.0, seconds / 6)
    while time.time() < until:
        time.sleep(min(pause * (0.5 + rng.random()), max(0.0, until - time.time())))
        files = {path.name for path in Path(directory).glob("*.zdseg")}
        seen |= files
        most_files, most_tokens = max(most_files, len(files)), max(most_tokens, listed_tokens(directory))
        assert most_tokens <= cap, f"the directory lists {most_tokens} tokens, the cap is {cap}"
        if table[VICTIM, PUBLISHED] and until - time.time() > 2:
            os.kill(processes[VICTIM].pid, signal.SIGKILL)
            processes[VICTIM].join()
            kills += 1
            check_published(directory, cap, table)
            processes[VICTIM] = start(VICTIM)
    for number, process in enumerate(processes):
        process.join()
        assert process.exitcode == 0, f"replica {number} ended with {process.exitcode}"
    check_published(directory, cap, table)
    assert table[:, FOREIGN].sum() == 0, "a text was drafted in another namespace"
    assert (table[:, FOUND] > 0).all(), f"a replica never drafted from another one: {table[:, FOUND].tolist()}"
    DraftMemory(cap, directory=directory).save()
    left = {path.name for path in Path(directory).iterdir()}
    assert not any(name.endswith(".partial") for name in left), f"left behind: {sorted(left)}"
    return {
        "seconds": round(seconds),
        "replicas": NUM_REPLICAS,
        "requests": int(table[:, TOKENS].sum()) // LENGTH,
        "tokens_written": int(table[:, TOKENS].sum()),
        "tokens_drafted_right": int(table[:, DRAFTED].sum()),
        "cap": cap,
        "most_tokens_listed": most_tokens,
        "most_files": most_files,
        "files_seen_and_gone": len(seen - left),
        "found_of_another_replica": int(table[:, FOUND].sum()),
        "already_pushed_out": int(table[:, MISSED].sum()),
        "found_of_another_namespace": int(table[:, FOREIGN].sum()),
        "kills": kills,
    }


def listed_tokens(directory: str) -> int:
    """Tokens that a newcomer with room for everything would see."""
    return DraftMemory(2**30, directory=directory).num_tokens


def check_published(directory: str, cap: int, table: np.ndarray) -> None:
    """The newest texts that each replica said were published are there, whatever was killed."""
    before = table.copy()
    memory = DraftMemory(cap, directory=directory)
    total = int(table[:, TOKENS].sum())
    for number in range(NUM_REPLICAS):
        if total - before[number, TOTAL_THEN] > cap // 2:
            continue  # the others may have pushed them out since
        for text in range(max(0, int(before[number, PUBLISHED]) - 3), int(before[number, PUBLISHED])):
            found = knows_in(memory, number, text, NAMESPACES[number], LENGTH)
            assert found, f"text {text} of replica {number} was published and is gone"
    memory.check_integrity()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--cap", type=int, default=200_000, help="tokens that the memory may hold")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures = run(options.seconds, options.cap, directory)
    for name, value in figures.items():
        print(f"{name}: {value}")
    if options.seconds >= 120:
        print(measure.write_csv("replicas", [figures]))
