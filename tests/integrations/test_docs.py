"""README and docs/ are true: commands run as they stand, Python does too, and what a comment promises is printed.

The machine they run on is made of stand-ins (``stand_ins.py``): tiny models under the real names, small files, a copy
of the repository. A command that is new in a page is run without further ado; one that cannot be has to be listed in
``NOT_AS_WRITTEN``, with the reason and with what is run in its place.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import stand_ins
from typer.main import get_command

from zerodraft.__main__ import main
from zerodraft.integrations.commands import cli

ROOT = stand_ins.ROOT
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = ("zerodraft ", "make ", "pip ", "python ", "vllm ", "bench/", ".ci/")

# What is not run as it is written: a pattern for the whole command, why not, and what is run instead.
NOT_AS_WRITTEN: list[tuple[str, str, list[str]]] = [
    (r"make (test|lint|types|doctest)", "it is what CI does, this test included", []),
    (r"\.ci/(run|pythons)", "it is what CI does, this test included", []),
    (r"pip install .*", "downloads; CI's own environment is made by the same command in the Makefile", []),
    (r"make bench", "needs the extra bench, which CI leaves out, and half a minute", ["make --dry-run bench"]),
    (r"make test-families", "20 minutes; a run of its own", ["make --dry-run test-families"]),
    (r"make test-vllm", "minutes, and 3.5 GB once; a run of its own", ["make --dry-run test-vllm"]),
    (r"python bench replicas", "two minutes", ["python bench replicas --seconds 7 --cap 30000"]),
    (r"make soak", "ten minutes; tests/lookup/test_soak.py runs it in small", ["make --dry-run soak"]),
    (r"(vllm|python bench vllm_check).*", "needs vLLM, minutes and 3.5 GB to install", []),
    (r"bench/gpu\.sh.*", "needs a GPU, or minutes without; tests/test_bench_gpu.py runs it in small", []),
]

# Python that imports one of these is only compiled where what it needs, named first, is not installed.
ABSENT_IN_CI = {
    "vllm": ("vllm", "an environment of its own, 3.5 GB"),
    "ray": ("ray", "617 MB"),
    "sglang": ("sglang", "CUDA"),
    "transformers.cli.serve": ("fastapi", "transformers[serving]; tests/integrations/test_hf_serve.py is run with it"),
}


@dataclass(frozen=True)
class Block:
    """Consecutive lines of code in a page: indented, fenced (``language`` says as what), or spans within its text."""

    page: Path
    line: int
    text: str
    language: str = ""

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def is_shell(self) -> bool:
        return self.language.startswith("sh") or (not self.language and self.text.startswith(PROGRAMS))

    @property
    def commands(self) -> list[str]:
        """One command per line, or over several by a backslash or a quotation; without the comment behind it."""
        found: list[str] = []
        begun = ""
        for line in self.text.replace("\\\n", " ").splitlines():
            begun += re.sub(r"\s+#.*", "", line).strip() + " "
            if begun.count("'") % 2 == 0 and begun.strip():
                found.append(begun.strip())
                begun = ""
        return found


def blocks_of(page: Path) -> list[Block]:
    """Every block of code of a page, and one more, at line 0, for the commands that stand in its text."""
    text = page.read_text("utf-8")
    fences = re.compile(r"^```([\w-]*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
    found = [(fence.start(), fence[2], fence[1] or "text") for fence in fences.finditer(text)]
    rest = fences.sub(lambda fence: re.sub(r"[^\n]", " ", fence[0]), text)
    for indented in re.finditer(r"(?:^ {4}\S[^\n]*\n(?:^ {4,}\S[^\n]*\n)*)", rest, flags=re.MULTILINE):
        found.append((indented.start(), re.sub(r"^ {4}", "", indented[0], flags=re.MULTILINE), ""))
    blocks = [Block(page, text[:start].count("\n") + 1, code, language) for start, code, language in sorted(found)]
    spans = re.findall(r"`((?:python bench/|python bench [a-z]|make \w|pip \w|bench/gpu\.sh -)[^`\n]*)`", text)
    return [*blocks, Block(page, 0, "".join(f"{span}\n" for span in spans), "sh")] if spans else blocks


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
SHELL = [block for block in BLOCKS if block.is_shell]
PYTHON = {page.name: [b for b in BLOCKS if b.page == page and b.language == "python"] for page in PAGES}


def replacement(command: str) -> list[str]:
    """What is run for a command: itself, as a rule."""
    for pattern, _, instead in NOT_AS_WRITTEN:
        if re.fullmatch(pattern, command):
            return instead
    return [command]


FIRST = next(command for block in SHELL for command in block.commands if command.startswith("zerodraft "))


def new_in(block: Block) -> list[str]:
    """The block's commands but those that an earlier block has."""
    earlier = SHELL[: SHELL.index(block)]
    return [line for line in dict.fromkeys(block.commands) if not any(line in other.commands for other in earlier)]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home directory whose caches hold the models and the workloads."""
    folder = tmp_path_factory.mktemp("home")
    cache = folder / ".cache"
    stand_ins.save_models(cache, cache / "huggingface" / "hub", folder / "model")
    stand_ins.save_workloads(ROOT / "bench", cache / "zerodraft" / "workloads")
    return folder


@pytest.fixture
def checkout(home: Path, tmp_path: Path) -> Path:
    """A copy of the repository with the files beside it that the pages name."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    stand_ins.save_checkout(folder)
    stand_ins.save_texts(folder)
    (folder / "path" / "to").mkdir(parents=True)
    (folder / "path" / "to" / "model").symlink_to(home / "model")
    return folder


@pytest.fixture
def shell(
    home: Path, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[str], str]:
    """``shell(line)`` runs a line in the checkout, as that home's owner, and returns what it said.

    ``zerodraft`` itself runs within this process, which has loaded torch already; its first line in README does not.
    """
    variables = stand_ins.environment(home, tmp_path / "bin") | stand_ins.virtual_environment(tmp_path / "venv")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / ".cache" / "huggingface" / "hub"))
    monkeypatch.chdir(checkout)

    def inside(line: str) -> str:
        words = shlex.split(line)
        words, target = (words[:-2], words[-1]) if ">" in words[-2:] else (words, None)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", words)
            for name in ("HOME", "XDG_CACHE_HOME"):
                patch.setenv(name, variables[name])
            capfd.readouterr()
            with pytest.raises(SystemExit) as done:
                main()
        out, err = capfd.readouterr()
        assert not done.value.code, f"{line}\n{err}"
        if target is not None:
            Path(target).write_text(out)
        return out + err

    def outside(line: str) -> str:
        quiet: dict[str, Any] = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "check": False}
        run = subprocess.run(["bash", "-c", line], env=variables, **quiet)
        assert run.returncode == 0, f"{line}\n{run.stderr[-3000:]}"
        return str(run.stdout + run.stderr)

    return lambda line: inside(line) if line.startswith("zerodraft ") and line != FIRST else outside(line)


@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in SHELL if any(map(replacement, new_in(block)))], ids=str)
def test_the_commands_run_as_they_are_written(block: Block, shell: Callable[[str], str]) -> None:
    for command in new_in(block):
        for line in replacement(command):
            said = shell(line)
            assert said, f"{block}: {line} says nothing"
            assert "Traceback" not in said, said[-3000:]


def test_what_is_not_run_is_still_in_the_pages() -> None:
    commands = [command for block in SHELL for command in block.commands]
    for pattern, why, _ in NOT_AS_WRITTEN:
        assert why
        assert any(re.fullmatch(pattern, command) for command in commands), pattern


def test_every_line_of_a_block_of_commands_is_one() -> None:
    assert len(SHELL) > 12
    for block in SHELL:
        assert all(f"{command} ".startswith(PROGRAMS) for command in block.commands), f"{block}: {block.text}"


def test_no_code_hides_among_the_figures() -> None:
    """Indented text that is no command is a picture: rooms, layouts, steps. Python stands in fences, and is run."""
    for block in BLOCKS:
        if not block.language and not block.is_shell:
            assert not re.search(r"^(import|from|print|zerodraft\.|\w+ = zerodraft\.)", block.text, re.M), str(block)
        assert block.is_shell or block.language in ("", "python", "text", "toml", "json"), str(block)


@pytest.mark.parametrize("page", [name for name, found in PYTHON.items() if found])
def test_the_python_runs_and_prints_what_its_comments_say(
    page: str, home: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page's blocks share their names; ``model``, ``tokenizer`` and ``inputs`` are there before the first."""
    import transformers

    import zerodraft

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / ".cache" / "huggingface" / "hub"))
    monkeypatch.chdir(checkout)
    model = transformers.AutoModelForCausalLM.from_pretrained(home / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(home / "model")
    inputs = tokenizer("x = 1\ny = x\nx = 1\n", return_tensors="pt")
    names = {"zerodraft": zerodraft, "model": model, "tokenizer": tokenizer, "inputs": inputs}
    for block in PYTHON[page]:
        capsys.readouterr()
        code = compile("\n" * block.line + block.text, str(block.page), "exec")
        imported = set(re.findall(r"^ *(?:import|from) ([\w.]+)", block.text, flags=re.MULTILINE))
        if any(find_spec(ABSENT_IN_CI[name][0]) is None for name in imported & ABSENT_IN_CI.keys()):
            continue
        exec(code, names)
        promised = re.findall(r"^print.*#.*$", block.text, flags=re.MULTILINE)
        printed = capsys.readouterr().out.splitlines()
        assert len(printed) >= len(promised)
        if promised:
            assert len(printed) == block.text.count("print("), f"{block}: a line for each print"
        for line, comment in zip(printed, promised):
            words = comment.split("#", 1)[1]
            assert all(re.search(rf"(?<![\d.]){re.escape(word)}(?![\d.]*\d)", words) for word in line.split()), comment


def options_of(path: list[str]) -> set[str]:
    command: Any = get_command(cli.app)
    for name in path:
        command = command.commands[name]
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_the_text_names_exists(page: Path) -> None:
    """Commands and options, scripts, make targets, extras and pages, wherever they are mentioned."""
    text = re.sub(r"<!--.*?-->", "", page.read_text("utf-8"))
    for span in re.findall(r"`zerodraft ([a-z][^`]*)`", text):
        words = span.split()
        path = words[:2] if words[0] == "memory" and len(words) > 1 else words[:1]
        assert {word for word in words if word.startswith("-")} <= options_of(path), span
    for script in re.findall(r"bench/[\w/]+\.(?:py|sh|json)", text):
        assert (ROOT / script).exists(), script
    for script in re.findall(r"python bench ([a-z]\w*)", text):
        assert list((ROOT / "bench").rglob(f"{script}.py")), script
    for test in re.findall(r"tests/[\w/]+\.py", text):
        assert (ROOT / test).exists(), test
    for other in re.findall(r"`(?:docs/)?(\w+\.md)`", text):
        assert any((place / other).exists() for place in (ROOT, ROOT / "docs")), other
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"(?:^    |`)make ([a-z-]+)", text, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    extras = set(re.findall(r"^([\w-]+) = \[", (ROOT / "pyproject.toml").read_text("utf-8"), flags=re.MULTILINE))
    for named in re.findall(r"(?:\.|zerodraft)\[([\w,-]+)\]'", text):
        assert set(named.split(",")) <= extras, named


def test_every_command_is_documented() -> None:
    documented = {
        command.split()[1] for block in SHELL for command in block.commands if command.startswith("zerodraft ")
    }
    assert documented >= set(get_command(cli.app).commands)  # type: ignore[attr-defined]


def test_the_theorys_commands_give_the_theorys_figures() -> None:
    from typer.testing import CliRunner

    def theory(*options: str) -> str:
        return CliRunner().invoke(cli.app, ["theory", *options]).stdout

    assert "2.80x" in theory("--alpha", "0.8", "--gamma", "4", "--cost", "0.05")
    card = ["--weight-gb", "16.05", "--bandwidth", "3350", "--tflops", "990", "--gflop", "15", "--batch", "64"]
    assert "4.79 ms" in theory("--alpha", "0.8", *card)
