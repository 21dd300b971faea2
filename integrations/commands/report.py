"""``zerodraft report``: one page about a run, to look at in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zerodraft.integrations.commands.terminal import one_line_errors, talk


def report(
    file: Annotated[Path, typer.Argument(help="What edit or generate --json printed, or traces as for replay.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("report.html"),
    tokenizer: Annotated[
        str | None, typer.Option(help="For traces: a folder, a tokenizer.json or a hub id.", show_default="none")
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave traces out that cannot be replayed.")] = False,
) -> None:
    """Make a page about a run. Shows its text by source, what was accepted, what it cost."""
    with one_line_errors():
        from zerodraft.integrations.pipelines.file_writer import check_writable, write_file
        from zerodraft.integrations.report.page import read_run, render, replay_run

        check_writable(output)
        run = read_run(file)
        if run is None:
            run = replay_run(file, tokenizer=tokenizer, skip_bad=skip_bad)
        elif tokenizer is not None:
            raise ValueError("--tokenizer is for traces; a run has its text with it")
        write_file(output, render(run).encode("utf-8", "replace"))
        talk(f"wrote {output}")
