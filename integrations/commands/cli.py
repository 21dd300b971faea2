"""The command line: its commands by name. The result goes to stdout, talk to stderr.

Only typer is imported here; torch and transformers come with the first command that needs them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from zerodraft.integrations.commands.doctor import doctor
from zerodraft.integrations.commands.edit import edit
from zerodraft.integrations.commands.generate import generate
from zerodraft.integrations.commands.memory import memory
from zerodraft.integrations.commands.options import Device, Dtype, Json
from zerodraft.integrations.commands.report import report
from zerodraft.integrations.commands.summarize import summarize
from zerodraft.integrations.commands.terminal import load, one_line_errors, talk, write_out
from zerodraft.integrations.commands.theory import theory

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
        from zerodraft.integrations.pipelines.replaying import replay_traces
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
        from zerodraft.integrations.hf.cost_measure import measured_curve

        return measured_curve(loaded.model)
    if given is None:
        return "auto"
    from zerodraft.lookup.cost import CostCurve

    file, _, name = given.rpartition(":")
    if not file:
        raise ValueError(f"--curve must be FILE:NAME, got {given!r}")
    return CostCurve.load(file, name)


for command in (edit, generate, report, summarize, theory, doctor):
    app.command()(command)
app.add_typer(memory, name="memory")
