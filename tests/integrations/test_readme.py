"""README's Python is run as it stands, with a tiny model in the place of the one it names; its commands exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from zerodraft.integrations import cli

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


def test_the_first_example_runs(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, count = re.subn(r'name = "[^"]+"', f"name = {str(tiny_folder)!r}", BLOCKS[0])
    assert count == 1
    exec(compile(code, "README.md", "exec"), {})
    assert float(capsys.readouterr().out.split()[-1]) >= 1.0


def test_the_edit_example_runs(scripted: Any, tokenizer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import zerodraft

    model = scripted("count = 1\ny = count + 1\n```")
    exec(compile(BLOCKS[1], "README.md", "exec"), {"zerodraft": zerodraft, "model": model, "tokenizer": tokenizer})
    assert capsys.readouterr().out.startswith("count = 1\ny = count + 1\n")


@pytest.mark.parametrize("line", re.findall(r"^    zerodraft (.*?)(?:  +#.*)?$", TEXT, flags=re.MULTILINE))
def test_the_commands_options_exist(line: str) -> None:
    command, *rest = line.split()
    options = {word for word in rest if re.fullmatch(r"--?[a-z-]+", word)}
    result = CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert all(re.search(rf"(?<![\w-]){option}(?![\w-])", result.output) for option in options)


def test_the_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for name in ("README.md", "CONTRIBUTING.md"):
        targets = set(re.findall(r"^    make ([a-z-]+)", (ROOT / name).read_text("utf-8"), flags=re.MULTILINE))
        assert targets
        assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)
