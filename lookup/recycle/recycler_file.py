"""Recycler files: the lists of a TokenRecycler, written whole and renamed into place, never trusted."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Final

import numpy as np

from zerodraft.lookup.memory.segment_file import MemoryFileError
from zerodraft.lookup.recycle import _recycling_core as core
from zerodraft.lookup.recycle.token_recycler import MAX_KEYS, Lists, TokenRecycler
from zerodraft.lookup.runtime.whole_file import write_whole

MAGIC: Final = b"ZDRAFTRC"
VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sIIQ")  # magic, version, CRC-32 of all that follows the header, number of lists
_COUNTS: Final = np.dtype(("<f8", (core.NUM_CLASSES, core.K + 1)))
_LIST: Final = np.dtype([("key", "<i8"), ("level", "<i4"), ("row", "<i4", (core.K,))])  # the one written first, first


def write_recycler(path: Path, recycler: TokenRecycler) -> None:
    """Write the table and replace what was at ``path``. Call with the directory locked.

    Raises:
        OSError: it cannot be written; an old file is still there.
    """
    keys, levels, rows, counts = recycler.lists()
    lists = np.empty(len(keys), _LIST)
    lists["key"], lists["level"], lists["row"] = keys, levels, rows
    content = counts.astype("<f8").tobytes() + lists.tobytes()
    write_whole(path, _HEADER.pack(MAGIC, VERSION, zlib.crc32(content), len(lists)), content)


def read_recycler(path: Path, max_keys: int) -> TokenRecycler | None:
    """A table from a file, None where there is no file; where ``max_keys`` does not hold all lists, the newest stay.

    Raises:
        MemoryFileError: a file that is cut, damaged, foreign or of another version.
    """
    most = _HEADER.size + _COUNTS.itemsize + MAX_KEYS * _LIST.itemsize
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except FileNotFoundError:
        return None
    if len(content) < _HEADER.size or content[: len(MAGIC)] != MAGIC:
        raise MemoryFileError(f"{path}: not a table of successors")
    _, version, total, num_lists = _HEADER.unpack_from(content)
    if version != VERSION:
        raise MemoryFileError(f"{path}: version {version}, this zerodraft reads version {VERSION}")
    body = memoryview(content)[_HEADER.size :]
    if len(body) != _COUNTS.itemsize + num_lists * _LIST.itemsize or zlib.crc32(body) != total:
        raise MemoryFileError(f"{path}: damaged")
    lists = np.frombuffer(body, _LIST, num_lists, _COUNTS.itemsize)
    counts = np.frombuffer(body, "<f8", core.NUM_CLASSES * (core.K + 1)).reshape(core.NUM_CLASSES, core.K + 1)
    try:
        return TokenRecycler.from_lists(Lists(lists["key"], lists["level"], lists["row"], counts), max_keys)
    except ValueError as error:
        raise MemoryFileError(f"{path}: {error}") from None
