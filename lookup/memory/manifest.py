"""Manifest: the segment files of a shared memory directory, their order, what of each is alive, whose ids they hold."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from zerodraft.lookup.memory.segment_file import MemoryFileError
from zerodraft.lookup.runtime.whole_file import PARTIAL, write_whole

FORMAT: Final = "zerodraft-memory"
VERSIONS: Final = (1, 2)  # without and with a tokenizer
MANIFEST: Final = "manifest.json"
LOCK: Final = "lock"
SUFFIX: Final = ".zdseg"
_NAME: Final = re.compile(r"[0-9a-f]{1,64}\.zdseg")
_MAX_BYTES: Final = 1 << 26


@dataclass(frozen=True)
class Entry:
    """One segment file.

    Attributes:
        name: file name in the same directory.
        first_live: number of its texts that were dropped since it was written.
    """

    name: str
    first_live: int


@dataclass(frozen=True)
class Manifest:
    """What a directory holds.

    Attributes:
        entries: its segment files, oldest first.
        tokenizer: fingerprint of the tokenizer whose ids these are, None: nobody said.
    """

    entries: list[Entry] = field(default_factory=list)
    tokenizer: str | None = None


class NoMemoryError(MemoryFileError):
    """There is no memory in a directory, sound or not."""


class TokenizerError(MemoryFileError, ValueError):
    """A memory of one tokenizer's ids was to be used with another's: what it drafts would mean nothing there."""


def read_manifest(directory: Path) -> Manifest:
    """Return what the manifest says; an empty one where nothing was published yet.

    Raises:
        MemoryFileError: not a manifest, of another version, damaged, or missing where there are segment files.
    """
    path = directory / MANIFEST
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise MemoryFileError(f"{path}: too large for a manifest")
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        if segment_files(directory):  # the first thing that a writer writes is a manifest
            raise MemoryFileError(f"{path}: missing, but there are segment files") from None
        return Manifest()
    except (ValueError, RecursionError) as error:
        raise MemoryFileError(f"{path}: not a manifest: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise MemoryFileError(f"{path}: not a manifest of a zerodraft memory")
    if content.get("version") not in VERSIONS:
        found = content.get("version")
        raise MemoryFileError(f"{path}: version {found!r}, this zerodraft reads versions up to {VERSIONS[-1]}")
    segments, tokenizer = content.get("segments"), content.get("tokenizer")
    is_known = tokenizer is None or isinstance(tokenizer, str)
    if not isinstance(segments, list) or not is_known or content.get("crc32") != _sum(segments, tokenizer):
        raise MemoryFileError(f"{path}: damaged")
    return Manifest([_entry(path, fields) for fields in segments], tokenizer)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Replace the manifest as a whole; a crash leaves the old one or the new one. Call with the directory locked.

    One without a tokenizer is of version 1, which earlier zerodrafts read.
    """
    segments = [asdict(entry) for entry in manifest.entries]
    content: dict[str, Any] = {"format": FORMAT, "version": VERSIONS[0], "segments": segments}
    if manifest.tokenizer is not None:
        content |= {"version": VERSIONS[1], "tokenizer": manifest.tokenizer}
    content["crc32"] = _sum(segments, manifest.tokenizer)
    write_whole(directory / MANIFEST, json.dumps(content).encode())
    sync_directory(directory)


def recycler_path(directory: Path, namespace: str | None) -> Path:
    """Where the namespace's table of successors lies, if it has one; the name does not show the namespace."""
    name = b"" if namespace is None else b"=" + namespace.encode("utf-8", "surrogatepass")
    return directory / f"{hashlib.sha256(name).hexdigest()[:32]}.zdrec"


def remove_recycler(directory: Path, namespace: str | None) -> None:
    """Delete the namespace's table of successors, and what a writer that was killed left of one."""
    path = recycler_path(directory, namespace)
    path.unlink(missing_ok=True)
    path.with_name(path.name + PARTIAL).unlink(missing_ok=True)


def segment_files(directory: Path) -> list[Path]:
    """All complete segment files of a directory, listed in the manifest or not, by name."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))
    return []


def is_memory(directory: Path) -> bool:
    """True if a memory was kept here, sound or not. Others, too, call a file manifest.json: it alone is none."""
    if segment_files(directory):
        return True
    if not (directory / MANIFEST).exists():
        return False
    try:
        read_manifest(directory)
    except MemoryFileError:
        return (directory / LOCK).exists()  # which every writer leaves
    return True


def sync_directory(directory: Path) -> None:
    """Make renames in the directory durable, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_unlisted(directory: Path, entries: list[Entry]) -> None:
    """Delete segment files that no entry names: replaced ones, and what a killed writer left. Call when locked."""
    listed = {entry.name for entry in entries}
    for path in directory.iterdir():
        if path.name not in listed and _NAME.fullmatch(path.name.removesuffix(PARTIAL)):
            with contextlib.suppress(PermissionError):  # Windows: still mapped by somebody; a later save removes it
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the directory's writer lock; the system releases it when the process dies. Readers need no lock."""
    with open(directory / LOCK, "a+b") as file:
        _lock(file)
        try:
            yield
        finally:
            _unlock(file)


def _entry(path: Path, fields: Any) -> Entry:
    if (
        isinstance(fields, dict)
        and set(fields) == {"name", "first_live"}
        and isinstance(fields["name"], str)
        and _NAME.fullmatch(fields["name"])  # a name can never point out of the directory
        and type(fields["first_live"]) is int
        and fields["first_live"] >= 0
    ):
        return Entry(**fields)
    raise MemoryFileError(f"{path}: impossible entry {str(fields)[:80]!r}")


def _sum(segments: Any, tokenizer: str | None = None) -> int:
    covered = segments if tokenizer is None else [segments, tokenizer]
    return zlib.crc32(json.dumps(covered, sort_keys=True).encode())


try:
    import fcntl

    def _lock(file: Any) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)

    def _unlock(file: Any) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)

except ModuleNotFoundError:  # Windows
    import msvcrt

    def _lock(file: Any) -> None:
        file.seek(0)
        while True:
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined]  # waits for 10 s
                return
            except OSError:
                continue

    def _unlock(file: Any) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]
