"""Token streams for the micro-benchmarks: the same on every machine with the same Python, nothing is downloaded."""

from __future__ import annotations

import functools
import re
import sysconfig
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]

VOCAB = 150_000
_PIECE = re.compile(r"\w+|\s+|[^\w\s]")


def code(length: int) -> Tokens:
    """Source files of the standard library, one after another, cut into words, blanks and signs."""
    return np.concatenate(_files(length))[:length]


def agents(length: int) -> Tokens:
    """What an agent's context looks like: windows of files, some shown before, and edited copies of them (seed 1)."""
    rng = np.random.default_rng(1)
    files = [file for file in _files(length) if len(file) > 400]
    parts: list[Tokens] = []
    total = 0
    while total < length:
        file = files[int(rng.zipf(1.5)) % len(files)]
        start = int(rng.integers(0, len(file) - 200))
        window = file[start : start + int(rng.integers(200, 800))]
        parts += [window, _edited(window, rng)]
        total += len(parts[-2]) + len(parts[-1])
    return np.concatenate(parts)[:length]


def repetitive(length: int) -> Tokens:
    """One block of 500 tokens over and over, every hundredth token replaced by a random one (seed 2)."""
    rng = np.random.default_rng(2)
    stream = np.resize(rng.integers(0, VOCAB, 500), length)
    noisy = rng.random(length) < 0.01
    stream[noisy] = rng.integers(0, VOCAB, int(noisy.sum()))
    return stream.astype(np.int32)


def uniform(length: int) -> Tokens:
    """Independent tokens of a vocabulary of 32,000 (seed 3): nothing to find."""
    return np.random.default_rng(3).integers(0, 32_000, length).astype(np.int32)


def same(length: int) -> Tokens:
    """One token for ever."""
    return np.full(length, 7, np.int32)


STREAMS: dict[str, Callable[[int], Tokens]] = {
    "code": code,
    "agents": agents,
    "repetitive": repetitive,
    "uniform": uniform,
    "same": same,
}


@functools.lru_cache(maxsize=4)
def _files(num_tokens: int) -> list[Tokens]:
    """Files of the standard library until there are enough tokens."""
    files: list[Tokens] = []
    total = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        pieces = _PIECE.findall(path.read_text(encoding="utf-8", errors="replace"))
        files.append(np.array([zlib.crc32(piece.encode()) % VOCAB for piece in pieces], np.int32))
        total += len(pieces)
        if total >= num_tokens:
            break
    return files


def _edited(window: Tokens, rng: np.random.Generator) -> Tokens:
    """A copy with one place in fifty changed: replaced, left out, or something new put in."""
    copy: list[int] = []
    for token in window.tolist():
        change = int(rng.integers(0, 150))
        if change != 0:
            copy.append(token if change != 1 else int(rng.integers(0, VOCAB)))
        if change == 2:
            copy.append(int(rng.integers(0, VOCAB)))
    return np.array(copy, np.int32)
