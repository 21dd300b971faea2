"""``zerodraft memory``: make a memory of files before the first request, and look after it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from zerodraft.integrations.command_options import Json
from zerodraft.integrations.terminal import one_line_errors, talk, write_out

if TYPE_CHECKING:
    from zerodraft.lookup.memory import DraftMemory
    from zerodraft.lookup.segment import Segment

memory = typer.Typer(help="Look after a memory: build, inspect, verify, merge, clear.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(help="Where the memory is kept.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Whose texts.", show_default="those of nobody in particular")
]
MaxTokens = Annotated[int, typer.Option(help="Cap on the whole memory; the oldest texts go first.")]

_MOST: Final = 2**30


@memory.command()
def build(
    directory: Directory,
    sources: Annotated[list[Path], typer.Argument(help="Files, and folders with all files below them, UTF-8.")],
    tokenizer: Annotated[str, typer.Option(help="The model's: a folder, a tokenizer.json or a hub id.")],
    namespace: Namespace = None,
    suffix: Annotated[
        list[str] | None, typer.Option(help="Of a folder, only files that end so; may be repeated.", show_default="all")
    ] = None,
    max_tokens: MaxTokens = _MOST,
) -> None:
    """Add files to a memory, which is made where there is none. Hidden files of a folder are left out."""
    failures = 0
    with one_line_errors():
        from zerodraft.integrations.replaying import load_tokenizer
        from zerodraft.integrations.source_file import SourceFile
        from zerodraft.lookup.memory import DraftMemory

        encode = load_tokenizer(tokenizer)
        kept = DraftMemory(max_tokens, directory=directory)
        num_texts = num_tokens = 0
        for file, is_asked_for in _files(sources, tuple(suffix or ())):
            try:
                ids = encode(SourceFile.read(file).text)
            except ValueError as error:
                if is_asked_for:
                    failures += 1
                    talk(str(error))
                continue
            if ids:
                kept.add(ids, namespace)
                num_texts, num_tokens = num_texts + 1, num_tokens + len(ids)
        if num_texts:
            kept.save()
        talk(f"added {num_texts} texts of {num_tokens} tokens; {directory} holds {kept.num_tokens} tokens")
    if failures:
        raise typer.Exit(1)


@memory.command()
def inspect(directory: Directory, as_json: Json = False) -> None:
    """Print what each namespace holds."""
    with one_line_errors():
        rows = _by_namespace([segment for _, segment in _segments(directory)])
        if as_json:
            write_out(json.dumps(rows, ensure_ascii=False, indent=2) + "\n")
            return
        lines: list[tuple[str, ...]] = [("namespace", "texts", "tokens", "files", "bytes")]
        for row in rows:
            name = "(none)" if row["namespace"] is None else json.dumps(row["namespace"], ensure_ascii=False)
            lines.append((name, *(str(row[key]) for key in ("texts", "tokens", "files", "bytes"))))
        write_out("".join(f"{line[0]:24}" + "".join(f"{cell:>14}" for cell in line[1:]) + "\n" for line in lines))


@memory.command()
def verify(directory: Directory) -> None:
    """Check every byte; exit status 1 if a file is damaged."""
    num_damaged = num_files = 0
    with one_line_errors():
        from zerodraft.lookup.segment_file import MemoryFileError

        for name, segment in _segments(directory, tolerant=True):
            num_files += 1
            try:
                if isinstance(segment, MemoryFileError):
                    raise segment
                segment.blocks.check_all()
            except MemoryFileError as error:
                num_damaged += 1
                talk(f"{name}: {error}")
        talk(f"{num_files - num_damaged} of {num_files} files are sound")
    if num_damaged:
        raise typer.Exit(1)


@memory.command()
def merge(
    directory: Directory,
    others: Annotated[list[Path], typer.Argument(help="Memories whose texts are taken over; they stay as they are.")],
    max_tokens: MaxTokens = _MOST,
) -> None:
    """Take over other memories' texts. Each goes into its namespace, by age."""
    with one_line_errors():
        from zerodraft.lookup.memory import DraftMemory

        here = directory.resolve()
        if any(other.resolve() == here for other in others):
            raise ValueError(f"a memory cannot be merged into itself: {directory}")
        texts = []
        for other in others:
            for _, segment in _segments(other):
                segment.blocks.check_all()
                texts += [(stamp, segment.namespace, ids) for ids, stamp in segment.live_texts()]
        kept = DraftMemory(max_tokens, directory=directory)
        for _, namespace, ids in sorted(texts, key=lambda text: text[0]):
            kept.add(ids, namespace)
        kept.save()
        talk(f"took over {len(texts)} texts; {directory} holds {kept.num_tokens} tokens")


@memory.command()
def clear(
    directory: Directory,
    namespace: Namespace = None,
    no_namespace: Annotated[
        bool, typer.Option("--no-namespace", help="Drop the texts of nobody in particular.")
    ] = False,
) -> None:
    """Drop everything of one namespace."""
    with one_line_errors():
        if (namespace is None) != no_namespace:
            raise ValueError("say which: give either --namespace or --no-namespace")
        num_tokens = _open(directory).clear(namespace)
        talk(f"dropped {num_tokens} tokens")


def _open(directory: Path) -> DraftMemory:
    """A memory that is there, whatever its size: opened with a smaller cap it would lose its oldest texts."""
    from zerodraft.lookup.memory import DraftMemory

    return DraftMemory.load(directory, _MOST)


def _segments(directory: Path, *, tolerant: bool = False) -> Iterator[tuple[str, Any]]:
    """(file name, segment) for every file that the manifest lists; if ``tolerant``, errors in a segment's place."""
    from zerodraft.lookup.manifest import MANIFEST, read_manifest
    from zerodraft.lookup.segment_file import MemoryFileError, open_segment

    if not (directory / MANIFEST).exists():
        raise MemoryFileError(f"{directory}: no memory here")
    for entry in read_manifest(directory):
        found: Segment | MemoryFileError
        try:
            found = open_segment(directory / entry.name)
            found.first_live = max(found.first_live, min(entry.first_live, found.num_texts))
        except (MemoryFileError, FileNotFoundError) as error:
            if not tolerant:
                raise
            found = error if isinstance(error, MemoryFileError) else MemoryFileError("listed, but missing")
        yield entry.name, found


def _by_namespace(segments: list[Segment]) -> list[dict[str, Any]]:
    rows: dict[str | None, dict[str, Any]] = {}
    for segment in segments:
        empty = {"namespace": segment.namespace, "texts": 0, "tokens": 0, "files": 0, "bytes": 0}
        row = rows.setdefault(segment.namespace, empty)
        row["texts"] += segment.num_texts - segment.first_live
        row["tokens"] += segment.num_live_tokens
        row["files"] += 1
        row["bytes"] += segment.index.nbytes
    return list(rows.values())


def _files(sources: list[Path], suffixes: tuple[str, ...]) -> Iterator[tuple[Path, bool]]:
    """(file, whether it was asked for by name), folders in the order of their names."""
    for source in sources:
        if not source.is_dir():
            yield source, True
            continue
        for path in sorted(source.rglob("*")):
            is_hidden = any(part.startswith(".") for part in path.relative_to(source).parts)
            if not is_hidden and path.is_file() and (not suffixes or path.name.endswith(suffixes)):
                yield path, False
