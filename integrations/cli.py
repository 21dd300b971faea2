"""The command line: thin shells over ``edit_text`` and ``generate_text``. The result goes to stdout, talk to stderr.

Only typer is imported here; torch and transformers come with the first command that needs them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zerodraft.integrations.commands.doctor import doctor
from zerodraft.integrations.commands.memory import memory
from zerodraft.integrations.commands.report import report
from zerodraft.integrations.commands.summarize import summarize
from zerodraft.integrations.commands.theory import theory
from zerodraft.integrations.terminal import (
    Compare,
    Device,
    Dtype,
    Json,
    Lookahead,
    Model,
    Recycle,
    Seed,
    ShowDrafts,
    Temperature,
    TopP,
    drafter_of,
    load,
    one_line_errors,
    print_json,
    status,
    summary,
    talk,
    write_out,
)

if TYPE_CHECKING:
    from zerodraft.integrations.editing import EditResult
    from zerodraft.integrations.generating import GenerateResult
    from zerodraft.integrations.models import LoadedModel

app = typer.Typer(
    name="zerodraft",
    help="Language models write faster, without changing a word of what they write.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich would double the time of --help
    # So would pydantic, which typer loads to check the None that a group's --help is when it is not given.
    context_settings={"default_map": {"help": False, "memory": {"help": False}}},
)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False) -> None:
    """Language models write faster, without changing a word of what they write."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(installed("zerodraft"))
        raise typer.Exit


@app.command()
def edit(
    file: Annotated[Path, typer.Argument(help="The file to edit, UTF-8.")],
    instruction: Annotated[str, typer.Option("--instruction", "-i", help="What to change.")],
    write: Annotated[bool, typer.Option("--write", "-w", help="Replace the file, atomically.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the edited file here.", show_default="none"),
    ] = None,
    model: Model = "demo",
    dtype: Dtype = "auto",
    device: Device = "auto",
    max_new_tokens: Annotated[
        int | None,
        typer.Option(help="Most tokens of the answer.", show_default="1.5 times the file's and 256"),
    ] = None,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    compare: Compare = False,
    recycle: Recycle = False,
    lookahead: Lookahead = None,
    show_drafts: ShowDrafts = False,
    as_json: Json = False,
) -> None:
    """Let a model edit a file. Prints the change as a unified diff."""
    from zerodraft.integrations.source_file import SourceFile, write_atomically

    with one_line_errors():
        _check(temperature, top_p, max_new_tokens)
        drafter = drafter_of(recycle, lookahead)
        source = SourceFile.read(file)
        if not source.text.strip():
            raise ValueError(f"there is nothing to edit: {file} is empty")
        if output is not None and output.resolve() == file.resolve():
            write, output = True, None
        if write:
            source.check_writable()
        if output is not None and not output.resolve().parent.is_dir():
            raise ValueError(f"cannot write {output}: no folder {output.resolve().parent}")
        loaded = load(model, dtype, device)
        from zerodraft.integrations.editing import edit_text

        with status("decoding three ways, zerodraft last" if compare else "writing") as streamer:
            result = edit_text(
                loaded.model,
                loaded.tokenizer,
                source.text,
                instruction,
                language=source.language,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                top_p=top_p,
                seed=seed,
                drafter=drafter,
                streamer=streamer,
                compare=compare,
                trace=show_drafts or as_json,
            )
        if output is not None:
            write_atomically(Path(output.resolve()), source.encode(result.text))
        if write and result.text != source.text:
            source.replace(result.text)
        diff = source.diff(result.text)
        if as_json:
            values = {"file": str(file), "text": result.text, "diff": diff, "spans": _spans(loaded, result)}
            print_json(loaded, result.stats, result.comparison, **values)
        else:
            _print_diff(diff)
        if show_drafts:
            _print_spans(_spans(loaded, result), stderr=True)
        summary(result.stats, result.comparison, "" if diff else "nothing changed; ")


@app.command()
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt.", show_default="from --file or stdin")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Read the prompt from this file.", show_default="none"),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is, without a chat template.")] = False,
    model: Model = "demo",
    dtype: Dtype = "auto",
    device: Device = "auto",
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens to write.")] = 256,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    compare: Compare = False,
    recycle: Recycle = False,
    lookahead: Lookahead = None,
    show_drafts: ShowDrafts = False,
    as_json: Json = False,
) -> None:
    """Let a model answer a prompt, and stream the text."""
    with one_line_errors():
        _check(temperature, top_p, max_new_tokens)
        drafter = drafter_of(recycle, lookahead)
        message = _read_prompt(prompt, file)
        loaded = load(model, dtype, device)
        from zerodraft.integrations.generating import generate_text
        from zerodraft.integrations.streaming import TextStream

        result = generate_text(
            loaded.model,
            loaded.tokenizer,
            message,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            raw=raw,
            drafter=drafter,
            streamer=None if as_json or show_drafts else TextStream(loaded.tokenizer, write_out),
            compare=compare,
            trace=show_drafts or as_json,
        )
        if as_json:
            values = {"text": result.text, "hit_limit": result.hit_limit, "spans": _spans(loaded, result)}
            print_json(loaded, result.stats, result.comparison, **values)
        if show_drafts:
            _print_spans(_spans(loaded, result), stderr=as_json)
        elif not as_json:
            write_out("\n")
        summary(result.stats, result.comparison, "stopped at --max-new-tokens; " if result.hit_limit else "")


@app.command()
def replay(
    traces: Annotated[Path, typer.Argument(help="JSONL: prompt, output and, optionally, prediction; texts or ids.")],
    tokenizer: Annotated[
        str | None, typer.Option(help="For texts: a folder, a tokenizer.json or a hub id.", show_default="none")
    ] = None,
    curve: Annotated[
        str | None,
        typer.Option(
            help="Cost curve for drafting and speed-up: FILE:NAME, from a JSON file of named curves.",
            show_default="27 more positions cost as much as one forward",
        ),
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(help="Measure the curve on this model: folder, hub id or 'demo'.", show_default="none"),
    ] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    max_draft_tokens: Annotated[int, typer.Option(help="Most nodes of one draft.")] = 255,
    max_branches: Annotated[int, typer.Option(help="Most copies drafted side by side; 1: chains only.")] = 8,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave lines out that cannot be replayed.")] = False,
    as_json: Json = False,
) -> None:
    """Replay recorded texts. Says, without a model, what drafting would bring on them."""
    with one_line_errors():
        from zerodraft.integrations.replaying import replay_traces
        from zerodraft.lookup.policy import DraftPolicy

        cost = _curve(curve, measure, dtype, device)
        policy = DraftPolicy(cost=cost, max_draft_tokens=max_draft_tokens, max_branches=max_branches)
        report = replay_traces(traces, tokenizer=tokenizer, policy=policy, skip_bad=skip_bad)
        for line in report.bad_lines:
            talk(f"left out {line}")
        write_out(json.dumps(report.as_dict(), indent=2) + "\n" if as_json else report.as_text())


def _curve(given: str | None, measure: str | None, dtype: str, device: str) -> Any:
    """The cost curve asked for: "auto" for the default one."""
    if given is not None and measure is not None:
        raise ValueError("give --curve or --measure, not both")
    if measure is not None:
        loaded = load(measure, dtype, device)
        from zerodraft.integrations.cost_measure import measured_curve

        return measured_curve(loaded.model)
    if given is None:
        return "auto"
    from zerodraft.lookup.cost import CostCurve

    file, _, name = given.rpartition(":")
    if not file:
        raise ValueError(f"--curve must be FILE:NAME, got {given!r}")
    return CostCurve.load(file, name)


def _check(temperature: float, top_p: float, max_new_tokens: int | None) -> None:
    """Refuse bad numbers before a model is loaded for them."""
    from zerodraft.integrations.generating import Sampling

    Sampling(1 if max_new_tokens is None else max_new_tokens, temperature, top_p)


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    from zerodraft.integrations.source_file import SourceFile

    if prompt is not None and file is not None:
        raise ValueError("give the prompt as an argument or with --file, not both")
    if file is not None:
        prompt = SourceFile.read(file).text
    elif prompt is None:
        prompt = sys.stdin.buffer.read().decode("utf-8")
    if not prompt.strip():
        raise ValueError("the prompt is empty")
    return prompt


def _spans(loaded: LoadedModel, result: EditResult | GenerateResult) -> list[tuple[str, str]]:
    """The answer in runs of tokens of one source."""
    from zerodraft.integrations.colouring import spans

    trace = result.stats.trace
    assert trace is not None
    return spans(loaded.tokenizer, result.token_ids, trace.sources())


def _print_spans(found: list[tuple[str, str]], *, stderr: bool) -> None:
    from zerodraft.integrations.colouring import print_spans

    print_spans(found, stderr=stderr)


def _print_diff(diff: str) -> None:
    colours = {"+": typer.colors.GREEN, "-": typer.colors.RED, "@": typer.colors.CYAN}
    if sys.stdout.isatty():
        lines = diff.split("\n")
        diff = "\n".join(typer.style(line, fg=colours[line[0]]) if line[:1] in colours else line for line in lines)
    write_out(diff)


for command in (report, summarize, theory, doctor):
    app.command()(command)
app.add_typer(memory, name="memory")
