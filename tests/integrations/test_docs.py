"""The Python of docs/ runs, its commands and scripts exist, and what a comment promises is what is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from zerodraft.integrations import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = sorted(
    {
        line
        for page in PAGES
        for line in re.findall(r"^    zerodraft (.*?)(?: +[#>].*)?$", page.read_text("utf-8"), flags=re.MULTILINE)
    }
)


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / name).read_text("utf-8"), flags=re.DOTALL)


def test_the_theorys_figures_are_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    found = blocks("theory.md")
    assert len(found) == 2
    for block in found:
        exec(compile(block, "theory.md", "exec"), {})
        printed = capsys.readouterr().out.splitlines()
        promised = re.findall(r"^print.*#.*$", block, flags=re.MULTILINE)
        assert len(printed) == len(promised) >= 2
        for line, comment in zip(printed, promised):
            first = comment.split("#", 1)[1]
            assert all(re.search(rf"(?<![\d.]){re.escape(word)}(?![\d.]*\d)", first) for word in line.split()), comment


def test_the_summary_example_runs(tiny_model: Any, tokenizer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import zerodraft

    (block,) = blocks("cli.md")
    exec(compile(block, "cli.md", "exec"), {"zerodraft": zerodraft, "model": tiny_model, "tokenizer": tokenizer})
    assert float(capsys.readouterr().out.split()[-1]) >= 1.0


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_and_their_options_exist(line: str) -> None:
    words = line.split()
    path = words[:2] if words[0] == "memory" else words[:1]
    result = CliRunner().invoke(cli.app, [*path, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    options = {word for word in words if re.fullmatch(r"--?[a-z-]+", word)}
    assert all(re.search(rf"(?<![\w-]){option}(?![\w-])", result.output) for option in options)


def test_there_are_commands_to_check() -> None:
    assert {line.split()[0] for line in COMMANDS} >= {
        command.name or command.callback.__name__  # type: ignore[union-attr]
        for command in cli.app.registered_commands
    }


def test_every_script_that_is_named_is_there() -> None:
    for page in PAGES:
        for script in re.findall(r"bench/\w+\.(?:py|sh|json)", page.read_text("utf-8")):
            assert (ROOT / script).exists(), f"{page.name}: {script}"
        for other in re.findall(r"`(?:docs/)?(\w+\.md)`", page.read_text("utf-8")):
            assert any((place / other).exists() for place in (ROOT, ROOT / "docs")), f"{page.name}: {other}"


def test_the_theorys_commands_give_the_theorys_figures() -> None:
    def theory(*options: str) -> str:
        return CliRunner().invoke(cli.app, ["theory", *options]).stdout

    assert "2.80x" in theory("--alpha", "0.8", "--gamma", "4", "--cost", "0.05")
    card = ["--weight-gb", "16.05", "--bandwidth", "3350", "--tflops", "990", "--gflop", "15", "--batch", "64"]
    assert "4.79 ms" in theory("--alpha", "0.8", *card)
