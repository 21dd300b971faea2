"""Salvage: what a damaged segment file still holds that its checksums vouch for."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zerodraft.lookup.copy._text import BARRIER
from zerodraft.lookup.memory.segment import Segment
from zerodraft.lookup.memory.segment_file import BLOCK_BYTES, Header, map_file, read_header

_TOKENS_PER_BLOCK = BLOCK_BYTES // 4


class Salvaged(NamedTuple):
    """What was saved of a file, and what was not.

    Attributes:
        segment: a new segment, in memory, of the tokens in sound blocks; where a text has a hole, its parts are texts.
        num_lost_texts: texts that are gone or have a hole.
        num_lost_tokens: tokens in damaged blocks.
    """

    segment: Segment
    num_lost_texts: int
    num_lost_tokens: int


def salvage(path: Path, first_live: int = 0) -> Salvaged:
    """Save what can be saved of a damaged file. Only blocks whose checksums are right are read, and no index at all.

    Cost: a checksum of the file, and an index of what is left: tens of nanoseconds per token.

    Args:
        first_live: texts that were dropped from the file since; known to be such only where the text ends are sound.

    Raises:
        MemoryFileError: the header is damaged, so that not even the namespace is known. FileNotFoundError: no file.
    """
    mapped = map_file(path)
    header = read_header(path, mapped)
    payload = mapped[header.header_bytes : header.header_bytes + header.offsets[-1]]
    is_sound = _sound_blocks(payload, header)
    num_tokens = min(header.length, len(payload) // 4)
    tokens = np.frombuffer(payload, "<i4", num_tokens)
    checked = np.repeat(is_sound, _TOKENS_PER_BLOCK)[:num_tokens]
    is_token, is_end = checked & (tokens >= 0), checked & (tokens == BARRIER)
    ends, stamps = _ends_and_stamps(payload, header, is_sound)
    first_live = first_live if len(ends) and first_live <= header.num_texts else 0
    floor = int(ends[first_live - 1]) + 1 if first_live else 0
    is_token[:floor] = False
    edges = np.flatnonzero(np.diff(is_token.astype(np.int8), prepend=0, append=0))
    segment, num_whole, written = Segment(header.namespace), 0, path.stat().st_mtime_ns
    for start, stop in edges.reshape(-1, 2).tolist():
        stamp = int(stamps[np.searchsorted(ends, start)]) if len(ends) else written
        segment.add(np.ascontiguousarray(tokens[start:stop], np.int32), stamp)
        num_whole += bool((start == 0 or is_end[start - 1]) and stop < num_tokens and is_end[stop])
    num_live = header.num_texts - first_live
    return Salvaged(segment, num_live - num_whole, header.length - floor - num_live - int(is_token.sum()))


def _sound_blocks(payload: memoryview, header: Header) -> npt.NDArray[np.bool_]:
    """Which blocks are there in full and as they were written: bool (num_blocks,)."""
    total = header.offsets[-1]
    starts = range(0, total, BLOCK_BYTES)
    blocks = [payload[at : at + BLOCK_BYTES] for at in starts]
    sizes = [min(BLOCK_BYTES, total - at) for at in starts]
    return np.array([len(b) == n and zlib.crc32(b) == int(s) for b, n, s in zip(blocks, sizes, header.sums)], np.bool_)


def _ends_and_stamps(
    payload: memoryview, header: Header, is_sound: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where texts end and when they came, (num_texts,) each; both empty where that is damaged or impossible."""
    at = header.offsets[5]
    if is_sound[at // BLOCK_BYTES :].all():
        ends = np.frombuffer(payload, "<i8", header.num_texts, at)
        if ends[0] >= 1 and ends[-1] == header.length - 1 and (np.diff(ends) >= 2).all():
            return ends, np.frombuffer(payload, "<i8", header.num_texts, header.offsets[6])
    return np.empty(0, np.int64), np.empty(0, np.int64)
