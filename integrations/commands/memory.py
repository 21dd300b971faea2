"""``zerodraft memory``: make a memory of files before the first request, and look after it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zerodraft.integrations.commands.options import Json
from zerodraft.integrations.commands.terminal import one_line_errors, talk, write_out
from zerodraft.integrations.memories import MAX_TOKENS, naming_repair

if TYPE_CHECKING:
    from zerodraft.lookup.memory.draft_memory import DraftMemory
    from zerodraft.lookup.memory.repair import Examined

memory = typer.Typer(help="Look after a memory: build, inspect, verify, repair, merge, clear.", no_args_is_help=True)


def _folder(given: str) -> Path:
    """A path that somebody gave: an empty one, of a variable that is not set, would be the working directory."""
    if not given:
        raise typer.BadParameter("must be the path of a folder, got nothing")
    return Path(given)


Directory = Annotated[Path, typer.Argument(help="Where the memory is kept.", parser=_folder, metavar="DIRECTORY")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Whose texts.", show_default="those of nobody in particular")
]
MaxTokens = Annotated[int, typer.Option(help="Cap on the whole memory; the oldest texts go first.")]


@memory.command()
def build(
    directory: Directory,
    sources: Annotated[list[Path], typer.Argument(help="Files, and folders with all files below them, UTF-8.")],
    tokenizer: Annotated[str, typer.Option(help="The model's: a folder, a tokenizer.json or a hub id.")],
    namespace: Namespace = None,
    suffix: Annotated[
        list[str] | None, typer.Option(help="Of a folder, only files that end so; may be repeated.", show_default="all")
    ] = None,
    max_tokens: MaxTokens = MAX_TOKENS,
) -> None:
    """Add files to a memory, which is made where there is none. Texts that it has are skipped, and hidden files."""
    failures = 0
    with one_line_errors():
        from zerodraft.integrations.pipelines.file_tree import find_files
        from zerodraft.integrations.pipelines.source_file import SourceFile
        from zerodraft.integrations.vocabulary import encoder_of, load_tokenizer

        loaded = load_tokenizer(tokenizer, as_model=True)
        encode, kept = encoder_of(loaded), _opened(directory, max_tokens, loaded)
        num_texts = num_tokens = num_known = 0
        own = directory.resolve()
        for file, is_asked_for in find_files(sources, suffix or ()):
            if own in file.resolve().parents:
                continue
            try:
                ids = encode(SourceFile.read(file).text)
            except ValueError as error:
                if is_asked_for:
                    failures += 1
                    talk(str(error))
                continue
            if kept.add(ids, namespace, skip_known=True):
                num_texts, num_tokens = num_texts + 1, num_tokens + len(ids)
            elif ids:
                num_known += 1
        if num_texts:
            with naming_repair(directory):
                kept.save()
        skipped = f"skipped {num_known} texts it has; " if num_known else ""
        talk(f"added {num_texts} texts of {num_tokens} tokens; {skipped}{directory} holds {kept.num_tokens} tokens")
    if failures:
        raise typer.Exit(1)


@memory.command()
def inspect(directory: Directory, as_json: Json = False) -> None:
    """Print what each namespace holds; exit status 1 if something is damaged."""
    with one_line_errors():
        found = _examined(directory)
        rows = _by_namespace(found)
        if as_json:
            write_out(json.dumps(rows, ensure_ascii=False, indent=2) + "\n")
        else:
            lines: list[tuple[str, ...]] = [("namespace", "texts", "tokens", "files", "bytes")]
            for row in rows:
                name = "(none)" if row["namespace"] is None else json.dumps(row["namespace"], ensure_ascii=False)
                lines.append((name, *(str(row[key]) for key in ("texts", "tokens", "files", "bytes"))))
            table = "".join(f"{line[0]:24}" + "".join(f"{cell:>14}" for cell in line[1:]) + "\n" for line in lines)
            write_out(f"{table}tokenizer: {found.tokenizer or 'not known'}\n")
        _complain(directory, found)


@memory.command()
def verify(directory: Directory) -> None:
    """Check every byte; exit status 1 if something is damaged."""
    with one_line_errors():
        found = _examined(directory)
        talk(f"{len(found.sound)} of {len(found.files)} files are sound")
        _complain(directory, found)


@memory.command()
def repair(
    directory: Directory,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be lost.")] = False,
) -> None:
    """Drop what is damaged and say what is lost with it; what is sound stays."""
    with one_line_errors():
        from zerodraft.lookup.memory.repair import repair

        with naming_repair(directory):
            found = repair(directory, dry_run=dry_run)
        for problem in found.problems:
            talk(problem)
        num_tokens = sum(file.segment.num_live_tokens for file in found.files if file.segment is not None)
        held = f"{directory} {'would hold' if dry_run else 'holds'} {num_tokens} tokens"
        talk(f"repaired: {held}" if found.problems else f"nothing to repair: {held}")


@memory.command()
def merge(
    directory: Directory,
    others: Annotated[list[Path], typer.Argument(help="Memories whose texts are taken over; they stay as they are.")],
    max_tokens: MaxTokens = MAX_TOKENS,
) -> None:
    """Take over other memories' texts, each into its namespace, by age. Texts that are there already are skipped."""
    with one_line_errors():
        here = directory.resolve()
        if any(other.resolve() == here for other in others):
            raise ValueError(f"a memory cannot be merged into itself: {directory}")
        kept, texts = _opened(directory, max_tokens), []
        for other in others:
            found = _sound(other)
            if found.tokenizer is not None:
                _bind(kept, found.tokenizer, other)
            texts += [(at, part.namespace, ids) for part in found.sound for ids, at in part.live_texts()]
        texts.sort(key=lambda text: text[0])
        num_new = sum(kept.add(ids, namespace, skip_known=True) for _, namespace, ids in texts)
        with naming_repair(directory):
            kept.save()
        skipped = f"skipped {len(texts) - num_new} it has; " if num_new < len(texts) else ""
        talk(f"took over {num_new} texts; {skipped}{directory} holds {kept.num_tokens} tokens")


@memory.command()
def clear(
    directory: Directory,
    namespace: Namespace = None,
    no_namespace: Annotated[
        bool, typer.Option("--no-namespace", help="Drop the texts of nobody in particular.")
    ] = False,
) -> None:
    """Drop everything of one namespace. A damaged memory is repaired first, as damaged files may be anybody's."""
    with one_line_errors():
        from zerodraft.lookup.memory.draft_memory import DraftMemory
        from zerodraft.lookup.memory.repair import repair
        from zerodraft.lookup.memory.segment_file import MemoryFileError

        if (namespace is None) != no_namespace:
            raise ValueError("say which: give either --namespace or --no-namespace")
        with naming_repair(directory):
            try:
                kept = DraftMemory.load(directory, MAX_TOKENS)
            except MemoryFileError:
                for problem in repair(directory).problems:
                    talk(problem)
                kept = DraftMemory.load(directory, MAX_TOKENS)
            num_tokens = kept.clear(namespace)
        talk(f"dropped {num_tokens} tokens")


def _opened(directory: Path, max_tokens: int, tokenizer: Any = None) -> DraftMemory:
    """The memory, or a new one, after every byte of it was checked: what is added must not stand beside damage."""
    from zerodraft.integrations.memories import open_memory
    from zerodraft.lookup.memory.manifest import is_memory

    if is_memory(directory):
        _sound(directory)
    return open_memory(directory, tokenizer, max_tokens=max_tokens)


def _sound(directory: Path) -> Examined:
    """What a directory holds, refused if anything there is damaged."""
    from zerodraft.lookup.memory.segment_file import MemoryFileError

    found = _examined(directory)
    with naming_repair(directory):
        if found.problems:
            raise MemoryFileError(found.problems[0])
    return found


def _examined(directory: Path) -> Examined:
    from zerodraft.lookup.memory.repair import examine

    with naming_repair(directory):
        return examine(directory)


def _complain(directory: Path, found: Examined) -> None:
    """Say what is damaged, and what to do about it; end the command with exit status 1 then."""
    for problem in found.problems:
        talk(problem)
    if found.problems:
        talk(f"this drops what is damaged: zerodraft memory repair {shlex.quote(str(directory))}")
        raise typer.Exit(1)


def _bind(kept: DraftMemory, tokenizer: str, other: Path) -> None:
    """Take another memory's tokenizer for one's own, or refuse both by name."""
    from zerodraft.lookup.memory.manifest import TokenizerError

    try:
        kept.bind_tokenizer(tokenizer)
    except TokenizerError as error:
        raise TokenizerError(f"{error} in {other}") from None


def _by_namespace(found: Examined) -> list[dict[str, Any]]:
    rows: dict[str | None, dict[str, Any]] = {}
    for segment in found.sound:
        empty = {"namespace": segment.namespace, "texts": 0, "tokens": 0, "files": 0, "bytes": 0}
        row = rows.setdefault(segment.namespace, empty | {"tokenizer": found.tokenizer})
        row["texts"] += segment.num_texts - segment.first_live
        row["tokens"] += segment.num_live_tokens
        row["files"] += 1
        row["bytes"] += segment.index.nbytes
    return list(rows.values())
