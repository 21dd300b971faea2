"""The files of a shared memory directory, as DraftMemory reads and writes them: one shelf's segments and a manifest."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from zerodraft.lookup.memory import manifest as manifests
from zerodraft.lookup.memory.manifest import MANIFEST, SUFFIX, Entry, Manifest
from zerodraft.lookup.memory.segment import Segment
from zerodraft.lookup.memory.segment_file import MemoryFileError, open_segment, write_segment
from zerodraft.lookup.memory.shelf import Shelf

Stamp = tuple[int, int, int]


def list_files(directory: Path, shelf: Shelf, tokenizer: str | None) -> Stamp | None:
    """Make the directory hold exactly the files of the shelf; it is locked. Returns the manifest's stamp."""
    manifest = Manifest([Entry(segment.name, segment.first_live) for segment in shelf if segment.name], tokenizer)
    if not (directory / MANIFEST).exists() or manifest != manifests.read_manifest(directory):
        manifests.sync_directory(directory)
        manifests.write_manifest(directory, manifest)
    manifests.remove_unlisted(directory, manifest.entries)
    return stamp_of(directory / MANIFEST)


def write_new(directory: Path, segment: Segment) -> str:
    """Write a segment to a new file; return the file's name."""
    name = uuid.uuid4().hex + SUFFIX
    write_segment(directory / name, segment)
    return name


def path_of(directory: object) -> Path:
    """The path of a directory, or a ValueError for what can be none."""
    given = directory.__fspath__() if isinstance(directory, os.PathLike) else directory
    if not isinstance(given, str) or not given or "\0" in given:
        raise ValueError(f"directory must be the path of a folder, got {directory!r}")
    return Path(given)


def opened(directory: Path, entry: Entry, known: dict[str, Segment]) -> Segment:
    """The segment of an entry, from ``known`` or from its file, with a floor of its own."""
    segment = known.get(entry.name)
    if segment is None:
        segment = open_segment(directory / entry.name)
    if entry.first_live > segment.num_texts:
        raise MemoryFileError(f"{directory / entry.name}: {entry.first_live} of {segment.num_texts} texts dropped")
    segment = segment.copy()
    segment.first_live = max(segment.first_live, entry.first_live)
    return segment


def merged_with_small(shelf: Shelf, segment: Segment) -> Segment:
    """``segment`` after the last ones of its namespace that are at most twice its size, taken off the shelf."""
    older: list[Segment] = []
    num_tokens = segment.num_live_tokens
    for before in reversed(shelf.of(segment.namespace)):
        total = num_tokens + before.num_live_tokens
        if before.num_live_tokens > 2 * num_tokens or total > shelf.max_segment_tokens:
            break
        try:
            before.blocks.check_all()
        except MemoryFileError:
            break  # a damaged file is left to itself, so that it does not stop every save
        num_tokens = total
        older.append(before)
    if not older:
        return segment
    merged = Segment(segment.namespace)
    for part in (*reversed(older), segment):
        for ids, stamp in part.live_texts():
            merged.add(ids, stamp)
    for before in older:
        shelf.remove(before)
    return merged


def stamp_of(path: Path) -> Stamp | None:
    """What changes whenever a file is replaced; None where there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
