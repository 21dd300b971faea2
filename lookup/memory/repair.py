"""Repair: find what is damaged in a memory's directory, and make a sound memory of what is not."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from zerodraft.lookup.memory import manifest as manifests
from zerodraft.lookup.memory.files import path_of, stamp_of, write_new
from zerodraft.lookup.memory.manifest import MANIFEST, Entry, Manifest, NoMemoryError
from zerodraft.lookup.memory.salvage import salvage
from zerodraft.lookup.memory.segment import Segment, text_digest
from zerodraft.lookup.memory.segment_file import MemoryFileError, open_segment

_NUM_REREADS: Final = 20


@dataclass
class Found:
    """One segment file of a directory.

    Attributes:
        name: its name.
        first_live: texts that the manifest says were dropped from it.
        segment: what it holds, every byte of it checked; of a damaged file what could be saved, None: nothing.
        damage: what is wrong with the file, in one line that names it; None: nothing.
        lost: what is lost with it, in words; empty: nothing.
    """

    name: str
    first_live: int
    segment: Segment | None = None
    damage: str | None = None
    lost: str = ""


@dataclass
class Examined:
    """What a directory holds, and what is wrong with it.

    Attributes:
        files: the segment files in order, oldest first, damaged and missing ones too.
        tokenizer: whose ids these are, None: not known.
        damage: what is wrong with the manifest, in one line; None: nothing.
        bad_tables: tables of successors that are damaged: path and what is wrong, in one line.
    """

    files: list[Found] = field(default_factory=list)
    tokenizer: str | None = None
    damage: str | None = None
    bad_tables: list[tuple[Path, str]] = field(default_factory=list)

    @property
    def sound(self) -> list[Segment]:
        """The segments of the files that nothing is wrong with."""
        return [file.segment for file in self.files if file.damage is None and file.segment is not None]

    @property
    def problems(self) -> list[str]:
        """All that is wrong, one line each; what is lost by it stands behind it."""
        lines = [] if self.damage is None else [f"{self.damage}; whose ids these are is not known any more"]
        lines += [f"{file.damage}; {file.lost}" for file in self.files if file.damage is not None]
        return lines + [f"{line}; the table is lost" for _, line in self.bad_tables]


def examine(directory: Path) -> Examined:
    """Check every byte of a memory's directory. Others may go on writing to it. Cost: about a second per gigabyte.

    Raises:
        NoMemoryError: there is no memory here.
    """
    for _ in range(_NUM_REREADS):
        before = stamp_of(directory / MANIFEST)
        examined = _examine(directory)
        if stamp_of(directory / MANIFEST) == before:  # or files may have been replaced meanwhile
            break
    return examined


def repair(directory: Path, *, dry_run: bool = False) -> Examined:
    """Drop what is damaged from a memory's directory; return what was found, before that.

    What is sound stays as it is. Of a damaged file whose header is sound, all tokens in sound blocks are written to a
    new file; a text with a hole becomes several. Without a sound manifest all segment files are listed again, so that
    texts that were dropped since a file was written may come back. A crash at any point leaves the directory as it was
    or repaired. Other processes may go on drafting and saving.

    Args:
        dry_run: only look; nothing is changed.

    Raises:
        NoMemoryError: there is no memory here. OSError: it cannot be read or written.
    """
    path = path_of(directory)
    if not manifests.is_memory(path):
        raise NoMemoryError(f"{directory}: no memory here")
    with manifests.locked(path):
        examined = _examine(path)
        if examined.problems and not dry_run:
            _rewrite(path, examined)
    return examined


def _examine(directory: Path) -> Examined:
    if not manifests.is_memory(directory):
        raise NoMemoryError(f"{directory}: no memory here")
    try:
        manifest = manifests.read_manifest(directory)
    except MemoryFileError as error:
        files = [_found(path, 0) for path in manifests.segment_files(directory)]
        return Examined(_once(files), None, str(error), _bad_tables(directory))
    files = [_found(directory / entry.name, entry.first_live) for entry in manifest.entries]
    return Examined(files, manifest.tokenizer, None, _bad_tables(directory))


def _found(path: Path, first_live: int) -> Found:
    found = Found(path.name, first_live)
    try:
        segment = open_segment(path)
        segment.blocks.check_all()
        if first_live > segment.num_texts:
            raise MemoryFileError(f"{path}: {first_live} of {segment.num_texts} texts dropped")
        segment.first_live = first_live
        found.segment = segment
    except FileNotFoundError:
        found.damage, found.lost = f"{path}: listed, but missing", "all of it is lost"
    except MemoryFileError as error:
        found.damage = str(error)
        try:
            saved = salvage(path, first_live)
        except MemoryFileError:
            found.lost = "all of it is lost, how much is not known"
        else:
            found.segment = saved.segment if saved.segment.num_texts else None
            found.lost = f"{saved.num_lost_tokens} tokens of {saved.num_lost_texts} texts are lost"
            found.lost += f", {saved.segment.num_live_tokens} tokens are not"
    return found


def _once(files: list[Found]) -> list[Found]:
    """Files that no manifest orders, the oldest first; without those that were merged into others already."""
    known: set[tuple[str | None, int, bytes]] = set()
    kept: list[Found] = []
    for file in sorted(
        files, key=lambda f: (0, 0) if f.segment is None else (-f.segment.num_texts, f.damage is not None)
    ):
        if file.segment is not None:
            texts = {(file.segment.namespace, stamp, text_digest(ids)) for ids, stamp in file.segment.live_texts()}
            if texts <= known:
                file.segment = None
                if file.damage is None:
                    continue
            known |= texts
        kept.append(file)
    return sorted(kept, key=lambda f: 0 if f.segment is None else f.segment.oldest_stamp)


def _bad_tables(directory: Path) -> list[tuple[Path, str]]:
    tables = sorted(directory.glob("*.zdrec"))
    if not tables:
        return []
    from zerodraft.lookup.recycle.recycler_file import read_recycler  # compiles: only where there is one
    from zerodraft.lookup.recycle.token_recycler import MAX_KEYS

    bad: list[tuple[Path, str]] = []
    for path in tables:
        try:
            read_recycler(path, MAX_KEYS)
        except MemoryFileError as error:
            bad.append((path, str(error)))
    return bad


def _rewrite(directory: Path, examined: Examined) -> None:
    """Write what was saved, then the manifest, and remove the rest; the directory is locked."""
    entries: list[Entry] = []
    for file in examined.files:
        if file.segment is None:
            continue
        if file.damage is None:
            entries.append(Entry(file.name, file.first_live))
            continue
        name = write_new(directory, file.segment)
        open_segment(directory / name).blocks.check_all()  # what was read back is what the manifest will name
        entries.append(Entry(name, 0))
    manifests.sync_directory(directory)
    manifests.write_manifest(directory, Manifest(entries, examined.tokenizer))
    manifests.remove_unlisted(directory, entries)
    for path, _ in examined.bad_tables:
        path.unlink(missing_ok=True)
