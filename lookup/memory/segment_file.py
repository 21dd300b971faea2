"""Segment files: written once, renamed into place, read through mmap, never trusted. The format: docs/memory.md."""

from __future__ import annotations

import mmap
import os
import struct
import sys
import zlib
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from zerodraft.lookup.copy._text import BARRIER, Text
from zerodraft.lookup.copy.ngram_index import NgramIndex
from zerodraft.lookup.memory.segment import Blocks, Segment
from zerodraft.lookup.runtime.whole_file import write_whole

MAGIC: Final = b"ZDRAFTSG"
VERSION: Final = 1
BLOCK_BYTES: Final = 1 << 16
SMALL_FILE: Final = 1 << 20  # smaller ones are read, not mapped
# magic, version, header bytes, arena length, number of texts, slots and used slots of both tables, block bytes,
# length of the namespace in bytes, CRC-32 of the header from here on with this field as zero.
_HEADER: Final = struct.Struct("<8sIIQQQQQQIII")
_NO_NAMESPACE: Final = 0xFFFFFFFF
_MAX_LENGTH: Final = 2**31 - 1
MAX_NAMESPACE: Final = 1 << 16


class MemoryFileError(RuntimeError):
    """A memory file that is cut, damaged, of another version or not one of ours; nothing of it was loaded."""


class Header(NamedTuple):
    """The header of a segment file, whose checksum was found right. Every block of the payload has its sum there.

    Attributes:
        header_bytes: bytes before the payload.
        length: positions of the arena.
        num_texts: texts in it.
        slots: of the tables of single tokens and of 4-grams.
        used: slots of these that are in use.
        namespace: whose texts these are.
        sums: uint32 (num_blocks,), the CRC-32 of each block of 64 KiB of the payload.
    """

    header_bytes: int
    length: int
    num_texts: int
    slots: tuple[int, int]
    used: tuple[int, int]
    namespace: str | None
    sums: npt.NDArray[np.uint32]

    @property
    def offsets(self) -> list[int]:
        """Byte offsets in the payload of tokens, both rows of links, both tables, ends, stamps, and of its end."""
        return _layout(self.length, self.num_texts, *self.slots)[0]

    def arrays(self, payload: memoryview) -> list[Any]:
        """The seven arrays of a payload that is there in full."""
        sizes = (*[self.length] * 3, *self.slots, *[self.num_texts] * 2)
        types = (*["<i4"] * 5, *["<i8"] * 2)
        return [np.frombuffer(payload, *which) for which in zip(types, sizes, self.offsets)]


class FileBlocks(Blocks):
    """The checksums of one mapped file, verified block by block when a block is first read."""

    shift = BLOCK_BYTES.bit_length() - 1

    def __init__(self, path: Path, payload: memoryview, header: Header, ends: npt.NDArray[np.int64]) -> None:
        self.checked = np.zeros(len(header.sums), np.uint8)
        self.bases = np.array(header.offsets[:5], np.int64)
        self._path, self._payload, self._sums, self._ends = path, payload, header.sums, ends
        self._is_whole = False

    def check(self, block: int) -> None:
        """Verify one block of 64 KiB.

        Raises:
            MemoryFileError: its checksum is wrong.
        """
        data = self._payload[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
        if zlib.crc32(data) != int(self._sums[block]):
            raise MemoryFileError(f"{self._path}: block {block} of {len(self._sums)} is damaged")
        self.checked[block] = 1

    def check_all(self) -> None:
        """Verify every block that has not been verified yet, and that the tokens are texts that end in barriers.

        Cost: about a millisecond per megabyte.

        Raises:
            MemoryFileError: a wrong checksum, or tokens that this package never wrote.
        """
        if self.checked.all() and self._is_whole:
            return
        for block in np.flatnonzero(self.checked == 0):
            self.check(int(block))
        tokens = np.frombuffer(self._payload, "<i4", int(self.bases[1]) // 4)
        barriers = np.flatnonzero(tokens < 0)
        if not np.array_equal(barriers, self._ends) or (tokens[barriers] != BARRIER).any():
            raise MemoryFileError(f"{self._path}: its tokens are impossible")
        self._is_whole = True


def write_segment(path: Path, segment: Segment) -> int:
    """Write all live texts of a segment to a new file; return its size in bytes.

    The file appears under its name complete or not at all: it is written beside it, synced and renamed.
    """
    _refuse_big_endian()
    segment = compacted(segment)
    index = segment.index
    *rows, heads_1, heads_n = index.arrays
    arrays = [*(row[: len(index)] for row in rows), heads_1, heads_n]
    arrays += [np.asarray(numbers, np.int64) for numbers in (segment.ends, segment.stamps)]
    data = b"".join(array.tobytes() for array in arrays)
    header = _header(segment, [zlib.crc32(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)])
    write_whole(path, header, data)
    return len(header) + len(data)


def open_segment(path: Path) -> Segment:
    """Open a segment file: map it, or read one below a mebibyte.

    Cost: its header, text ends and stamps are read; of a mapped file the rest when it is first used.

    Raises:
        FileNotFoundError: it is missing; with a memory in use that means it was replaced just now.
        MemoryFileError: it is cut, of another version, or its header is damaged or impossible.
    """
    mapped = map_file(path)
    header = read_header(path, mapped)
    if len(mapped) != header.header_bytes + header.offsets[-1]:
        raise MemoryFileError(f"{path}: cut or impossible: its sizes do not fit together")
    payload = mapped[header.header_bytes :]
    *arrays, ends, stamps = header.arrays(payload)
    blocks = FileBlocks(path, payload, header, ends)
    for block in range(header.offsets[5] >> blocks.shift, len(header.sums)):  # ends and stamps are needed at once
        blocks.check(block)
    if ends[0] < 1 or ends[-1] != header.length - 1 or (np.diff(ends) < 2).any():
        raise MemoryFileError(f"{path}: its text ends are impossible")
    index = NgramIndex.over(Text(*arrays), header.used)
    return Segment(header.namespace, index, ends, stamps, blocks=blocks, name=path.name)


def map_file(path: Path) -> memoryview:
    """Map a segment file, or read one below a mebibyte.

    Raises:
        FileNotFoundError: it is missing. MemoryFileError: it is too short for a header.
    """
    _refuse_big_endian()
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _HEADER.size:
            raise MemoryFileError(f"{path}: too short to be a memory file")
        if size < SMALL_FILE:  # a mapping holds a file descriptor, and there may be thousands of namespaces
            return memoryview(file.read())
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def compacted(segment: Segment) -> Segment:
    """The segment itself if all its texts are alive, else a new one of those that are."""
    if segment.first_live == 0:
        return segment
    fresh = Segment(segment.namespace)
    for ids, stamp in segment.live_texts():
        fresh.add(ids, stamp)
    return fresh


def read_header(path: Path, mapped: memoryview) -> Header:
    """Read and check a file's header; the payload may still be cut or damaged.

    Raises:
        MemoryFileError: another version, or a header that is cut, damaged or impossible.
    """
    magic, version, header_bytes, length, num_texts, *tables, block_bytes, name_bytes, crc = _HEADER.unpack_from(mapped)
    slots, used = (tables[0], tables[1]), (tables[2], tables[3])
    if magic != MAGIC:
        raise MemoryFileError(f"{path}: not a memory file of zerodraft")
    if version != VERSION:
        raise MemoryFileError(f"{path}: version {version}, this zerodraft reads version {VERSION}")
    name_bytes = -1 if name_bytes == _NO_NAMESPACE else name_bytes
    is_possible = block_bytes == BLOCK_BYTES and 0 < num_texts < length <= _MAX_LENGTH and name_bytes < MAX_NAMESPACE
    is_possible = is_possible and all(map(_is_table, slots, used))
    num_blocks = _layout(length, num_texts, *slots)[1] if is_possible else 0
    expected = _header_bytes(max(name_bytes, 0), num_blocks)
    if not is_possible or header_bytes != expected or len(mapped) < header_bytes:
        raise MemoryFileError(f"{path}: cut or impossible: its sizes do not fit together")
    head = bytearray(mapped[:header_bytes])
    head[_HEADER.size - 4 : _HEADER.size] = bytes(4)
    if zlib.crc32(head) != crc:
        raise MemoryFileError(f"{path}: its header is damaged")
    try:
        namespace = None if name_bytes < 0 else head[_HEADER.size : _HEADER.size + name_bytes].decode()
    except UnicodeDecodeError:
        raise MemoryFileError(f"{path}: its namespace is not text") from None
    sums = np.frombuffer(mapped, "<u4", num_blocks, header_bytes - 4 * num_blocks)
    return Header(header_bytes, length, num_texts, slots, used, namespace, sums)


def _layout(length: int, num_texts: int, slots_1: int, slots_n: int) -> tuple[list[int], int]:
    """Byte offsets of tokens, both rows of links, both tables, ends, stamps and of the end; the number of blocks."""
    offsets = [0]
    for size in (*[4 * length] * 3, 4 * slots_1, 4 * slots_n, *[8 * num_texts] * 2):
        offsets.append(offsets[-1] + size)
    return offsets, -(-offsets[-1] // BLOCK_BYTES)


def _header_bytes(name_bytes: int, num_blocks: int) -> int:
    """Header, namespace and block checksums, padded so that the payload is aligned."""
    return -(-(_HEADER.size + name_bytes + 4 * num_blocks) // 64) * 64


def _header(segment: Segment, sums: list[int]) -> bytes:
    index, name = segment.index, (segment.namespace or "").encode()
    header = bytearray(_header_bytes(len(name), len(sums)))
    slots = len(index.arrays.heads_1), len(index.arrays.heads_n)
    name_bytes = _NO_NAMESPACE if segment.namespace is None else len(name)
    sizes = len(header), len(index), segment.num_texts, *slots, *index.used, BLOCK_BYTES, name_bytes
    header[_HEADER.size : _HEADER.size + len(name)] = name
    header[len(header) - 4 * len(sums) :] = np.array(sums, "<u4").tobytes()
    _HEADER.pack_into(header, 0, MAGIC, VERSION, *sizes, 0)
    _HEADER.pack_into(header, 0, MAGIC, VERSION, *sizes, zlib.crc32(header))
    return bytes(header)


def _is_table(slots: int, used: int) -> bool:
    return 2 <= slots <= 2**31 and slots & (slots - 1) == 0 and used < slots


def _refuse_big_endian() -> None:
    if sys.byteorder != "little":
        raise MemoryFileError("memory files are little-endian and are read in place: not on this machine")
