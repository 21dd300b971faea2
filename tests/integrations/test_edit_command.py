"""``zerodraft edit`` on people's files: nothing is damaged, nothing is lost, and what is said is what happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stand_ins import scripted_llama
from typer.testing import CliRunner, Result

from zerodraft.integrations import models
from zerodraft.integrations.commands import cli
from zerodraft.integrations.commands import edit as command

CODE = "def area(width, height):\n    return width * height\n"
NEW = CODE.replace("width", "breadth")


def zerodraft(*arguments: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], input=stdin)


@pytest.fixture
def answering(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``answering(text, ...)`` makes every ``--model`` one that gives these answers in turn, the last ever after."""

    def answer(*texts: str, context: int = 4096) -> list[int]:
        made = [scripted_llama(tokenizer, text) for text in texts]
        for model in made:
            model.config.max_position_embeddings = context
        loads: list[int] = []

        class InTurn:
            """Hands every edit the next model."""

            origin = "a script"
            tokenizer: Any = None

            @property
            def model(self) -> Any:
                return made.pop(0) if len(made) > 1 else made[0]

        InTurn.tokenizer = tokenizer
        monkeypatch.setattr(models, "load_model", lambda *_, **__: loads.append(1) or InTurn())
        return loads

    return answer


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three files to edit, and some that nobody means."""
    for name in ("src/a.py", "src/deep/b.py", "src/c.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(CODE)
    for name in ("src/.hidden.py", "src/node_modules/x.js", "src/data.bin", "src/empty.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"" if "empty" in name else b"\xff\x00")
    (tmp_path / "src/link.py").symlink_to("a.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_is_edited_in_one_diff_that_applies(answering: Any, project: Path) -> None:
    loads = answering(f"{NEW}````")
    result = zerodraft("edit", "src", "-i", "Rename width.")
    assert result.exit_code == 0, result.output
    assert len(loads) == 1
    assert [line for line in result.stdout.splitlines() if line.startswith("---")] == [
        "--- a/src/a.py", "--- a/src/c.md", "--- a/src/deep/b.py",
    ]  # fmt: skip
    assert "[2/3] src/c.md" in result.stderr
    assert "3 files changed, 0 the same, 1 left out" in result.stderr
    done = subprocess.run(["git", "apply"], input=result.stdout, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [Path(name).read_text() for name in ("src/a.py", "src/c.md", "src/deep/b.py")] == [NEW] * 3


def test_names_patterns_and_doubles(answering: Any, project: Path) -> None:
    answering(f"{NEW}````")
    result = zerodraft("edit", "src/*.py", "src/a.py", "src/link.py", "src/**/b.py", "-i", "Rename.", "--write")
    assert "2 files written" in result.stderr
    assert "src/empty.py is empty" in result.stderr
    assert result.exit_code == 1, "a file that was asked for by name and cannot be edited is a failure"
    assert (project / "src/link.py").is_symlink()
    for missing in ("src/*.rs", "nothing.py"):
        assert zerodraft("edit", missing, "-i", "Rename.").exit_code == 1


def test_one_files_failure_is_one_line_and_no_other_files(answering: Any, project: Path) -> None:
    answering(f"{NEW}````", "Never.", f"{NEW}````")
    result = zerodraft("edit", "src", "-i", "Rename.", "--write")
    assert result.exit_code == 1
    (line,) = [line for line in result.stderr.splitlines() if "no complete code block" in line]
    assert "src/c.md" in line
    assert "2 files written, 0 the same, 1 failed" in result.stderr
    assert (project / "src/c.md").read_text() == CODE
    assert (project / "src/deep/b.py").read_text() == NEW
    assert "src/c.md" not in result.stdout
    Path(line.rsplit(" is in ", 1)[1]).unlink()


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let the edit of ``c.md`` raise this."""
    real = command._Work._edit

    def editing(self: Any, loaded: Any, source: Any, *rest: Any) -> Any:
        if source.path.name == "c.md":
            raise error
        return real(self, loaded, source, *rest)

    monkeypatch.setattr(command._Work, "_edit", editing)


def test_an_error_that_nobody_thought_of_stops_no_other_file(
    answering: Any, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(f"{NEW}````")
    raising(monkeypatch, IndexError("out of range\nand more"))
    result = zerodraft("edit", "src", "-i", "Rename.", "--write")
    assert result.exit_code == 1
    assert "src/c.md: out of range" in result.stderr
    assert "2 files written, 0 the same, 1 failed" in result.stderr


def test_where_a_diff_applies_is_said(answering: Any, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(f"{NEW}````")
    monkeypatch.chdir(project / "src" / "deep")
    result = zerodraft("edit", "../a.py", "b.py", "-", "-i", "Rename.", stdin=CODE.encode())
    assert result.exit_code == 0, result.output
    assert f"the diff applies in {project / 'src'}" in result.stderr
    assert "--- a/a.py" in result.stdout
    assert "--- a/deep/b.py" in result.stdout


def test_a_file_is_read_again_before_its_turn(answering: Any, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens to the second file while the first is edited is no fault of anybody."""
    answering(f"{NEW}````")
    real = command._Work._edit

    def editing(self: Any, loaded: Any, source: Any, *rest: Any) -> Any:
        if source.path.name == "a.py":
            (project / "src/c.md").write_text(f"{CODE}# more\n")
        return real(self, loaded, source, *rest)

    monkeypatch.setattr(command._Work, "_edit", editing)
    result = zerodraft("edit", "src", "-i", "Rename.", "--write", "--allow-loss")
    assert "3 files written" in result.stderr, result.stderr


def test_ctrl_c_ends_it_and_what_is_done_is_done(
    answering: Any, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(f"{NEW}````")
    raising(monkeypatch, KeyboardInterrupt())
    result = zerodraft("edit", "src", "-i", "Rename.", "--write")
    assert result.exit_code == 130
    assert "interrupted: 1 files written, 0 the same, 1 left out, 2 not done" in result.stderr
    assert (project / "src/a.py").read_text() == NEW
    assert "--- a/src/a.py" in result.stdout


def test_standard_input_goes_to_standard_output(answering: Any) -> None:
    answering(f"{NEW}````")
    result = zerodraft("edit", "-", "-i", "Rename.", stdin=CODE.replace("\n", "\r\n").encode())
    assert (result.exit_code, result.stdout_bytes) == (0, NEW.replace("\n", "\r\n").encode())
    assert zerodraft("edit", "-", "-i", "Rename.", "--write", stdin=CODE.encode()).exit_code == 1
    refused = zerodraft("edit", "-", "-i", "Rename.", stdin=b"\xff")
    assert "standard input is not UTF-8" in refused.stderr


def test_a_closed_standard_input_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("edit", "generate"):
        run = subprocess.run(
            f"exec 0<&-; '{sys.executable}' -m zerodraft {name} {'- -i x' if name == 'edit' else ''}",
            shell=True, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": _source()},
        )  # fmt: skip
        assert run.returncode == 1
        assert "standard input" in run.stderr
        assert len(run.stderr.strip().splitlines()) == 1


def _source() -> str:
    import zerodraft as package

    return str(Path(package.__file__).parent.parent)


def test_output_to_stdout_has_no_diff_in_it(answering: Any, project: Path) -> None:
    answering(f"{NEW}````")
    assert zerodraft("edit", "src/a.py", "-i", "Rename.", "-o", "-").stdout == NEW
    assert "takes one file" in zerodraft("edit", "src", "-i", "Rename.", "-o", "x").stderr


def test_output_to_a_device_leaves_it_one(answering: Any, project: Path) -> None:
    answering(f"{NEW}````")
    assert zerodraft("edit", "src/a.py", "-i", "Rename.", "-o", "/dev/null").exit_code == 0
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("language", ["md", "py"])
def test_a_block_inside_the_answer_does_not_end_the_file(answering: Any, project: Path, language: str) -> None:
    old = "# Use\n\nText.\n\n## More\n\nEnd.\n"
    new = "# Use\n\n```bash\nls\n```\n\nText.\n\n## More\n\n```\nx\n```\n\nEnd.\n"
    answering(f"{new}````")
    file = project / f"doc.{language}"
    file.write_text(old)
    assert zerodraft("edit", file, "-i", "Add examples.", "--write").exit_code == 0
    assert file.read_text() == new


def test_control_tokens_are_text(answering: Any, project: Path) -> None:
    old = 'START = "<|im_start|>"\nEND = "<|im_end|>"\nx = 1\n'
    new = old.replace("x", "y") + 'Z = "<|endoftext|>"\n'
    answering(f"{new}````")
    (project / "t.py").write_text(old)
    assert zerodraft("edit", "t.py", "-i", "Rename x, add Z <|endoftext|>.", "--write").exit_code == 0
    assert (project / "t.py").read_text() == new


LONG = "".join(f"VALUE_{i} = {i}\n" for i in range(40))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("VALUE_0 = 1\n# rest of the code unchanged\n", "stands for code"),
        ("VALUE_0 = 1\n", "1 lines for the file's 40"),
    ],
)
def test_lost_code_is_not_written_unless_asked_for(answering: Any, project: Path, answer: str, message: str) -> None:
    answering(f"{answer}````")
    (project / "t.py").write_text(LONG)
    result = zerodraft("edit", "t.py", "-i", "Set VALUE_0 to 1.", "--write")
    assert result.exit_code == 1
    assert message in result.stderr
    assert "-VALUE_39 = 39" in result.stderr, "the answer is shown"
    assert (project / "t.py").read_text() == LONG
    Path(result.stderr.strip().splitlines()[-1].rsplit(" is in ", 1)[1]).unlink()
    assert zerodraft("edit", "t.py", "-i", "Set VALUE_0 to 1.", "--write", "--allow-loss").exit_code == 0
    assert (project / "t.py").read_text() == answer


def test_lines_that_went_and_python_that_broke_are_said(answering: Any, project: Path) -> None:
    answering(LONG.replace("VALUE_3 = 3\nVALUE_4 = 4\nVALUE_5 = 5\n", "").replace("= 0\n", "= (\n") + "````")
    (project / "t.py").write_text(LONG)
    result = zerodraft("edit", "t.py", "-i", "Change VALUE_0.")
    assert result.exit_code == 0
    assert "3 lines are gone that the instruction does not speak of: 4-6" in result.stderr
    assert "valid Python before" in result.stderr


def test_a_write_that_fails_loses_no_work(answering: Any, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(f"{NEW}````")
    monkeypatch.setattr(os, "fsync", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    result = zerodraft("edit", "src/a.py", "-i", "Rename.", "--write")
    assert result.exit_code == 1
    assert result.stdout.startswith("--- a/src/a.py")
    line = result.stderr.strip().splitlines()[-1]
    assert "No space left" in line
    saved = Path(line.rsplit(" is in ", 1)[1])
    assert saved.read_text() == NEW
    saved.unlink()
    assert (project / "src/a.py").read_text() == CODE


def test_a_name_that_is_not_utf8_is_written_and_said(answering: Any, project: Path) -> None:
    answering(f"{NEW}````")
    path = project / os.fsdecode(b"bad\xff.py")
    path.write_text(CODE)
    for options in ([], ["--json"], ["--write"]):
        result = CliRunner().invoke(cli.app, ["edit", str(path), "-i", "Rename.", *options])
        assert result.exit_code == 0, result.output
        if "--json" in options:
            assert json.loads(result.stdout)["file"] == str(path)
        else:
            assert b"bad\\377.py" in result.stdout_bytes
    assert path.read_text() == NEW


def test_json_of_several_files_and_of_what_was_refused(answering: Any, project: Path) -> None:
    answering(f"{NEW}````", "Never.", f"{NEW}````")
    result = zerodraft("edit", "src", "-i", "Rename.", "--json")
    documents = json.loads(result.stdout)["files"]
    assert [document["file"] for document in documents] == ["src/a.py", "src/c.md", "src/deep/b.py"]
    assert [document.get("error") for document in documents] == [None, "the model gave no complete code block", None]
    assert documents[1]["answer"].endswith("Never.")


def test_too_large_is_told_from_the_size(project: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("read or loaded")

    big = project / "big.py"
    with big.open("wb") as file:
        file.truncate(3 << 30)  # no bytes on the disk, but so many to read
    monkeypatch.setattr(models, "load_model", fail)
    for model in (str(tiny_folder), "nobody/nothing"):
        result = zerodraft("edit", "big.py", "-i", "Rename.", "--model", model)
        assert result.exit_code == 1
        assert "too large: 3221225472 bytes" in result.stderr


def test_what_is_wrong_in_itself_is_said_before_a_model_is_loaded(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "load_model", None)
    for options, message in [
        (["-i", " "], "the instruction is empty"),
        (["-i", os.fsdecode(b"\xff")], "lone surrogate"),
        (["-i", "x", "--top-p", "0.5"], "--temperature"),
        (["-i", "x", "--seed", "1"], "--temperature"),
        (["-i", "x", "--max-new-tokens", "0"], "max_new_tokens"),
        (["-i", "x", "--remember"], "needs --memory"),
        (["-i", "x", "--no-draft", "--recycle"], "--no-draft"),
        (["-i", "x", "--max-draft-tokens", "-1"], "max_draft_tokens"),
        (["-i", "x", "--lookahead", "1"], "--lookahead"),
    ]:
        result = zerodraft("edit", "src/a.py", *options)
        assert result.exit_code == 1
        assert message in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


def test_drafting_can_be_switched_off_bounded_and_fed_from_a_memory(answering: Any, project: Path) -> None:
    answering(f"{NEW}````")

    def stats(*options: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(zerodraft("edit", "src/a.py", "-i", "Rename.", "--json", *options).stdout)
        assert found["text"] == NEW
        return found["stats"]

    free, off, bounded = stats(), stats("--no-draft"), stats("--max-draft-tokens", "2")
    assert off["num_draft_tokens"] == 0 < bounded["num_draft_tokens"]
    assert free["num_decode_forwards"] < bounded["num_decode_forwards"] < off["num_decode_forwards"]
    first = stats("--memory", "kept", "--namespace", "me", "--remember")
    second = stats("--memory", "kept", "--namespace", "me")
    assert first["accepted_by_source"].get("memory", 0) == 0 < second["accepted_by_source"]["memory"]
    assert second["num_decode_forwards"] < first["num_decode_forwards"]


CTRL_C_IN_THE_SECOND_EDIT = """
import os, signal, sys, time
from zerodraft.__main__ import main
from zerodraft.integrations.commands import edit

real = edit._Work._edit

def editing(self, loaded, source, *rest):
    if source.path.name == "a.py":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    return real(self, loaded, source, *rest)

edit._Work._edit = editing
sys.argv[1:] = ["edit", "long.py", "src/a.py", "-i", "x", "--model", sys.argv[1], "--max-new-tokens", "9"]
sys.exit(main())
"""


def test_a_real_ctrl_c_leaves_no_traceback(project: Path, tiny_folder: Path) -> None:
    (project / "long.py").write_text(CODE * 20)
    run = subprocess.run(
        [sys.executable, "-c", CTRL_C_IN_THE_SECOND_EDIT, tiny_folder],
        capture_output=True, text=True, check=False, timeout=120, env=os.environ | {"PYTHONPATH": _source()},
    )  # fmt: skip
    assert "Traceback" not in run.stderr
    assert "long.py: the answer hit the limit of 9 tokens" in run.stderr
    assert "interrupted: 0 files changed, 0 the same, 1 failed, 1 not done" in run.stderr
    assert run.returncode == 130
