"""Soak the memory: far more tokens than it holds, writers killed while they save, and processes that share a directory.

    python bench soak            # 10 million tokens, 200 killed saves, a minute of two writers and two readers
    python bench soak --small    # the same in about a minute, as the tests run it

Prints one line per part; exits with an AssertionError where something was lost, grew or could not be read.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from zerodraft.lookup.memory.draft_memory import DraftMemory

VOCABULARY = 50_000


def text_of(writer: int, number: int, length: int = 400) -> np.ndarray:
    """A text that can be made again from its number: half fresh tokens, half a stretch that all texts may share."""
    rng = np.random.default_rng((writer, number))
    fresh = rng.integers(0, VOCABULARY, length // 2)
    shared = np.random.default_rng(number % 50).integers(0, VOCABULARY, length - length // 2)
    return np.concatenate([fresh, shared]).astype(np.int32)


def knows(memory: DraftMemory, writer: int, number: int) -> bool:
    """True if the memory drafts this text from its middle."""
    return knows_in(memory, writer, number, None)


def knows_in(memory: DraftMemory, writer: int, number: int, namespace: str | None, length: int = 400) -> bool:
    """The same in a namespace."""
    text = text_of(writer, number, length)
    return memory.propose(text[20:40], 4, namespace).token_ids.tolist() == text[40:44].tolist()


def resident_mib() -> float:
    """Resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def stream(num_tokens: int, max_tokens: int) -> str:
    """Send tokens through a memory that holds a part of them; resident memory must stay flat over the last half."""
    memory, done, number, resident = DraftMemory(max_tokens), 0, 0, []
    start = time.perf_counter()
    while done < num_tokens:
        text = text_of(0, number, 1000 + 400 * (number % 7))
        memory.add(text, str(number % 3))
        memory.propose(text[:30], 16, str(number % 3))
        assert memory.num_tokens <= max_tokens
        done, number = done + len(text), number + 1
        if done >= num_tokens // 2 and number % 50 == 0:
            resident.append(resident_mib())
    memory.check_integrity()
    seconds = time.perf_counter() - start
    quarter = max(1, len(resident) // 4)
    before, after = np.median(resident[:quarter]), np.median(resident[-quarter:])
    assert after <= before * 1.05 + 8, f"resident memory grew from {before:.0f} to {after:.0f} MiB"
    return (
        f"{done / 1e6:.1f} M tokens through {max_tokens / 1e6:.2f} M in {seconds:.0f} s: resident {before:.0f} -> "
        f"{after:.0f} MiB over the last half, {memory.nbytes / memory.num_tokens:.1f} B per live token"
    )


def killed_saves(num_saves: int) -> str:
    """Kill a writer with SIGKILL at random points of its saves; what was saved before must be there every time."""
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as directory:
        code = f"import soak; soak.save_for_ever({directory!r})"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        writer, kills, num_texts = None, 0, 0
        while kills < num_saves:
            writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
            assert writer.stdout is not None
            writer.stdout.readline()  # it is running and about to save
            time.sleep(rng.random() * 0.06)
            writer.send_signal(signal.SIGKILL)
            announced = [int(line) for line in writer.stdout.read().split()]
            writer.wait()
            memory = DraftMemory(10**7, directory=directory)
            for segment in memory._shelf:
                segment.blocks.check_all()
            memory.check_integrity()
            saved = max([num_texts, *(number + 1 for number in announced)])
            lost = [number for number in range(saved) if not knows(memory, 1, number)]
            assert not lost, f"texts {lost[:5]} were saved and are gone after kill {kills}"
            num_texts = next(number for number in range(saved, saved + 10**6) if not knows(memory, 1, number))
            kills += 1
        files = len(list(Path(directory).iterdir()))
    return f"{kills} kills during saves: {num_texts} texts, all there after every one of them; {files} files left"


def save_for_ever(directory: str) -> None:
    """Add and save one text after another, saying which ones are safe; run in a process of its own."""
    memory = DraftMemory(10**7, directory=directory)
    number = 0
    while knows(memory, 1, number):
        number += 1
    print("ready", flush=True)
    while True:
        memory.add(text_of(1, number))
        memory.save()
        print(number, flush=True)
        number += 1


def _write(directory: str, writer: int, until: float, counts: multiprocessing.Queue[tuple[int, int]]) -> None:
    memory, number = DraftMemory(10**7, directory=directory), 0
    while time.time() < until:
        memory.add(text_of(writer, number))
        number += 1
        if number % 5 == 0:
            memory.save()
    memory.save()
    counts.put((writer, number))


def _read(directory: str, reader: int, until: float, counts: multiprocessing.Queue[tuple[int, int]]) -> None:
    memory, lookups, highest = DraftMemory(10**7, directory=directory), 0, [0, 0]
    while time.time() < until:
        memory.refresh()
        for writer in (1, 2):
            while knows(memory, writer, highest[writer - 1]):
                highest[writer - 1] += 1
            if highest[writer - 1]:  # what was seen once stays
                assert knows(memory, writer, random.randrange(highest[writer - 1]))
        lookups += 2
    memory.check_integrity()
    counts.put((-reader, lookups))


def shared_directory(seconds: float) -> str:
    """Two writers and two readers in one directory; every text of both writers must be there in the end."""
    context = multiprocessing.get_context("spawn")
    counts: multiprocessing.Queue[tuple[int, int]] = context.Queue()
    with tempfile.TemporaryDirectory() as directory:
        until = time.time() + seconds
        work: list[tuple[Callable[..., None], int]] = [(_write, 1), (_write, 2), (_read, 1), (_read, 2)]
        processes = [context.Process(target=f, args=(directory, i, until, counts)) for f, i in work]
        for process in processes:
            process.start()
        results = dict(counts.get(timeout=seconds + 120) for _ in processes)
        for process in processes:
            process.join()
            assert process.exitcode == 0, f"a process ended with {process.exitcode}"
        memory = DraftMemory.load(directory, 10**7, verify=True)
        memory.check_integrity()
        for writer in (1, 2):
            lost = [number for number in range(results[writer]) if not knows(memory, writer, number)]
            assert not lost, f"{len(lost)} texts of writer {writer} are gone, such as {lost[:5]}"
        files = len(list(Path(directory).glob("*.zdseg")))
    texts, lookups = results[1] + results[2], results[-1] + results[-2]
    return (
        f"two writers and two readers for {seconds:.0f} s: {texts} texts, none lost, {files} files, {lookups} refreshes"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="about a minute")
    small = parser.parse_args().small
    print(stream(600_000 if small else 10_000_000, 100_000 if small else 1_000_000), flush=True)
    print(killed_saves(10 if small else 200), flush=True)
    print(shared_directory(10 if small else 60), flush=True)
