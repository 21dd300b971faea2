"""``zerodraft edit``: one file or many, one diff; what fails is said in a line and costs no other file its edit."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zerodraft.integrations.commands.options import (
    Compare,
    Device,
    Dtype,
    Json,
    Lookahead,
    MaxDraftTokens,
    Memory,
    Model,
    Namespace,
    NoDraft,
    Recycle,
    Remember,
    Seed,
    ShowDrafts,
    Temperature,
    TopP,
    drafting_of,
    sampling_of,
    save_memory,
)
from zerodraft.integrations.commands.terminal import (
    json_values,
    load,
    one_line_errors,
    print_diff,
    print_json,
    print_spans,
    spans_of,
    status,
    summary,
    talk,
    write_out,
)

if TYPE_CHECKING:
    from zerodraft.integrations.models import LoadedModel
    from zerodraft.integrations.pipelines.editing import EditError, EditResult
    from zerodraft.integrations.pipelines.source_file import SourceFile

STDOUT = Path("-")


def edit(
    files: Annotated[
        list[Path], typer.Argument(help="Files, folders, or - for the standard input; UTF-8.", show_default=False)
    ],
    instruction: Annotated[str, typer.Option("--instruction", "-i", help="What to change.")],
    write: Annotated[bool, typer.Option("--write", "-w", help="Replace each file as soon as it is edited.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the edited file here; -: to stdout.", show_default="none"),
    ] = None,
    allow_loss: Annotated[
        bool,
        typer.Option("--allow-loss", help="Take an answer that leaves most of a file out, or writes 'rest unchanged'."),
    ] = False,
    model: Model = "demo",
    dtype: Dtype = "auto",
    device: Device = "auto",
    max_new_tokens: Annotated[
        int | None,
        typer.Option(help="Most tokens of an answer.", show_default="1.5 times the file's and 256"),
    ] = None,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    compare: Compare = False,
    no_draft: NoDraft = False,
    max_draft_tokens: MaxDraftTokens = None,
    recycle: Recycle = False,
    lookahead: Lookahead = None,
    memory: Memory = None,
    namespace: Namespace = None,
    remember: Remember = False,
    show_drafts: ShowDrafts = False,
    as_json: Json = False,
) -> None:
    """Let a model edit files. Prints the changes as one unified diff."""
    with one_line_errors():
        from zerodraft.integrations.pipelines.editing import check_request

        sampling = sampling_of(temperature, top_p, seed)
        make_drafting = drafting_of(
            recycle=recycle, lookahead=lookahead, memory=memory, namespace=namespace, remember=remember,
            no_draft=no_draft, max_draft_tokens=max_draft_tokens, trace=show_drafts or as_json,
        )  # fmt: skip
        check_request("x", instruction, max_new_tokens=max_new_tokens)
        work = _work(files, write, output, model)
        loaded = load(model, dtype, device)
        drafting = make_drafting(loaded.tokenizer)
        work.options = {
            "max_new_tokens": max_new_tokens, "sampling": sampling, "drafting": drafting,
            "compare": compare, "allow_loss": allow_loss,
        }  # fmt: skip
        try:
            work.run(loaded, instruction, show_drafts, as_json)
        finally:
            save_memory(drafting)
    if work.num_failed:
        raise typer.Exit(1)


def _work(files: list[Path], write: bool, output: Path | None, model: str) -> _Work:
    """Read what is to be edited and refuse what cannot be, before a model is loaded."""
    from zerodraft.integrations.models import most_bytes
    from zerodraft.integrations.pipelines.file_tree import find_files
    from zerodraft.integrations.pipelines.file_writer import FileError, check_writable
    from zerodraft.integrations.pipelines.source_file import LANGUAGES, STDIN, SourceFile, diff_folder

    found = [(STDIN, True)] if STDIN in files else []
    found += find_files([path for path in files if path != STDIN], tuple(LANGUAGES))
    if output is not None and (len(found) != 1 or write):
        raise ValueError("--output takes one file and no --write")
    if output not in (None, STDOUT) and found[0][0] != STDIN and output.resolve() == found[0][0].resolve():
        write, output = True, None
    if output not in (None, STDOUT):
        check_writable(output)
    work = _Work(write, output, len(found), diff_folder([path for path, _ in found if path != STDIN]))
    limit = most_bytes(model, [path for path, _ in found])
    for path, is_asked_for in found:
        try:
            source = SourceFile.read(path, max_bytes=limit)
            if not source.text.strip():
                raise FileError(f"there is nothing to edit: {path} is empty")
            if write:
                source.check_writable()
            work.sources.append(source)
        except FileError as error:
            if len(found) == 1:
                raise
            work.num_failed += is_asked_for
            work.num_left_out += not is_asked_for
            if is_asked_for:
                talk(str(error))
    if not work.sources:
        raise ValueError("there is nothing to edit")
    return work


@dataclass
class _Work:
    """The files of one command, and what became of them."""

    write: bool
    output: Path | None
    num_files: int
    folder: Path
    sources: list[SourceFile] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    num_changed: int = 0
    num_same: int = 0
    num_failed: int = 0
    num_left_out: int = 0
    documents: list[dict[str, Any]] = field(default_factory=list)

    def run(self, loaded: LoadedModel, instruction: str, show_drafts: bool, as_json: bool) -> None:
        """Edit one file after the other. Ctrl-C ends it: what is done stays done, and is said."""
        from zerodraft.integrations.pipelines.editing import EditError
        from zerodraft.integrations.pipelines.file_writer import FileError
        from zerodraft.integrations.pipelines.source_file import STDIN, SourceFile
        from zerodraft.lookup.checks import first_line

        what = "decoding three ways, zerodraft last" if self.options["compare"] else "writing"
        try:
            for number, first_read in enumerate(self.sources, 1):
                source = first_read
                try:
                    if number > 1 and source.path != STDIN:  # the files before it took their time
                        source = SourceFile.read(source.path)
                    with status(what) as shown:
                        result = self._edit(loaded, source, instruction, shown)
                    self._finish(loaded, source, result, number, show_drafts, as_json)
                except EditError as error:
                    self._refused(source, error, as_json)
                except FileError as error:
                    self._fail(source, str(error))
                except Exception as error:
                    if self.num_files == 1 or isinstance(error, BrokenPipeError):
                        raise
                    self._fail(source, first_line(error))
        except KeyboardInterrupt:
            talk(f"interrupted: {self._tally()}")
            raise typer.Exit(130) from None
        finally:
            if as_json:
                many = {"files": self.documents, "model": loaded.origin}
                print_json(many if self.num_files > 1 else self.documents[0] if self.documents else many)
        if self.num_files > 1:
            talk(self._tally())
        if self.num_changed and not self.write and self.output is None and self.folder != Path.cwd():
            talk(f"the diff applies in {self.folder}")

    def _edit(self, loaded: LoadedModel, source: SourceFile, instruction: str, streamer: Any) -> EditResult:
        from zerodraft.integrations.pipelines.editing import edit_text

        return edit_text(
            loaded.model,
            loaded.tokenizer,
            source.text,
            instruction,
            language=source.language,
            streamer=streamer,
            **self.options,
        )

    def _finish(
        self, loaded: LoadedModel, source: SourceFile, result: EditResult, number: int, show_drafts: bool, as_json: bool
    ) -> None:
        """Write what is to be written, print the diff all the same, say what it took."""
        from zerodraft.integrations.pipelines.file_writer import FileError, write_file

        is_filter = source.path == Path("-")
        diff = "" if is_filter else source.diff(result.text, self.folder)
        is_changed = result.text != source.text
        failure: FileError | None = None
        try:
            if self.output not in (None, STDOUT):
                write_file(self.output, source.encode(result.text))
            elif self.write and is_changed:
                source.replace(result.text)
        except FileError as error:
            failure = error
        if as_json:
            values = {"file": str(source.path), "text": result.text, "diff": diff, "remarks": list(result.remarks)}
            self.documents.append(json_values(loaded, result, **values))
        elif self.output == STDOUT or (is_filter and self.output is None):
            write_out(source.encode(result.text).decode("utf-8"))
        elif not _is_stdout(self.output):
            print_diff(diff)
        if show_drafts:
            print_spans(spans_of(loaded, result), stderr=True)
        name = "" if self.num_files == 1 else f"[{number}/{len(self.sources)}] {source.path}: "
        for remark in result.remarks:
            talk(f"{name}{remark}")
        if failure is not None:
            raise FileError(f"{failure}; {_saved(source, result.text)}")
        if result.left_out and number == 1:
            talk(f"the checkpoint's own {', '.join(result.left_out)} had no say")
        self.num_changed += is_changed
        self.num_same += not is_changed
        summary(result.stats, result.comparison, name + ("" if is_changed else "nothing changed; "))

    def _refused(self, source: SourceFile, error: EditError, as_json: bool) -> None:
        """An answer that is no file: the file stays, and what was written is shown and kept."""
        if as_json:
            kept = {"error": str(error), "answer": error.answer, "text": error.text, "diff": error.diff}
            self.documents.append({"file": str(source.path)} | kept)
        elif error.completed is not None and self.num_files == 1:
            print_diff(source.diff(error.completed, self.folder), stderr=True)
        saved = f"; {_saved(source, error.answer if error.text is None else error.text)}" if error.answer else ""
        self._fail(source, f"{error}{saved}")

    def _fail(self, source: SourceFile, message: str) -> None:
        self.num_failed += 1
        talk(message if self.num_files == 1 else f"{source.path}: {message}")

    def _tally(self) -> str:
        done = f"{self.num_changed} files {'written' if self.write else 'changed'}, {self.num_same} the same"
        left = self.num_files - self.num_changed - self.num_same - self.num_failed - self.num_left_out
        return done + "".join(
            f", {number} {what}"
            for number, what in ((self.num_failed, "failed"), (self.num_left_out, "left out"), (left, "not done"))
            if number
        )


def _is_stdout(path: Path | None) -> bool:
    """True if a path leads to where our own output goes, such as /dev/stdout."""
    try:
        return path is not None and os.path.samestat(os.stat(path), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError, AttributeError):
        return False


def _saved(source: SourceFile, text: str) -> str:
    """Keep what was written where it is in nobody's way, and say where."""
    try:
        handle, name = tempfile.mkstemp(prefix="zerodraft-", suffix=source.path.suffix)
        with os.fdopen(handle, "wb") as file:
            file.write(source.encode(text))
    except OSError as error:
        return f"what was written could not be saved ({error.strerror or error})"
    return f"what was written is in {name}"
