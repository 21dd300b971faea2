"""The command line: the result on stdout, talk on stderr, one-line errors, files replaced whole or not at all."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from zerodraft.integrations import models
from zerodraft.integrations.commands import cli

CODE = "def area(width, height):\n    return width * height\n"
NEW = CODE.replace("width", "breadth")


def zerodraft(*arguments: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], input=stdin)


@pytest.fixture
def answering(scripted: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``answering(text)`` makes every ``--model`` one that gives this answer."""

    def answer(text: str) -> Any:
        model = scripted(text)
        loaded = models.LoadedModel(model, tokenizer, "scripted", "a script")
        monkeypatch.setattr(models, "load_model", lambda *args, **options: loaded)
        return model

    return answer


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "area.py"
    path.write_text(CODE)
    return path


def test_edit_prints_a_diff_that_patch_takes(answering: Any, file: Path) -> None:
    answering(f"{NEW}```")
    result = zerodraft("edit", file, "-i", "Rename width.")
    assert result.exit_code == 0, result.output
    assert file.read_text() == CODE, "without --write the file stays"
    assert "tokens per forward" in result.stderr
    assert "zerodraft" not in result.stdout
    patch = subprocess.run(
        ["patch", "-p1", "-d", "/", "--dry-run"], input=result.stdout, text=True, capture_output=True, check=False
    )
    assert patch.returncode == 0, patch.stdout + patch.stderr


def test_diff_without_a_line_feed_at_the_end(answering: Any, file: Path) -> None:
    answering(f"{NEW}```")
    file.write_text(CODE.rstrip("\n"))
    result = zerodraft("edit", file, "-i", "Rename.", "--write")
    assert result.stdout.count("\\ No newline at end of file\n") == 2
    assert file.read_text() == NEW.rstrip("\n")


def test_write_keeps_mode_and_link(answering: Any, file: Path, tmp_path: Path) -> None:
    answering(f"{NEW}```")
    file.chmod(0o751)
    link = tmp_path / "link.py"
    link.symlink_to(file)
    result = zerodraft("edit", link, "-i", "Rename.", "--write")
    assert result.exit_code == 0, result.output
    assert link.is_symlink()
    assert file.read_text() == NEW
    assert stat.S_IMODE(file.stat().st_mode) == 0o751
    assert sorted(path.name for path in tmp_path.iterdir()) == ["area.py", "link.py"]


def test_windows_line_ends_and_byte_order_mark_survive(answering: Any, file: Path) -> None:
    answering(f"{NEW}```")
    file.write_bytes(b"\xef\xbb\xbf" + CODE.replace("\n", "\r\n").encode())
    assert zerodraft("edit", file, "-i", "Rename.", "--write").exit_code == 0
    assert file.read_bytes() == b"\xef\xbb\xbf" + NEW.replace("\n", "\r\n").encode()


def test_output_leaves_the_file(answering: Any, file: Path, tmp_path: Path) -> None:
    answering(f"{NEW}```")
    assert zerodraft("edit", file, "-i", "Rename.", "--output", tmp_path / "new.py").exit_code == 0
    assert (tmp_path / "new.py").read_text() == NEW
    assert file.read_text() == CODE


def test_output_onto_the_file_itself_is_write(answering: Any, file: Path) -> None:
    answering(f"{NEW}```")
    file.chmod(0o600)
    assert zerodraft("edit", file, "-i", "Rename.", "--output", file).exit_code == 0
    assert file.read_text() == NEW
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_output_into_no_folder_is_refused_before_any_forward(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "load_model", None)
    _refused(zerodraft("edit", file, "-i", "Rename.", "--output", tmp_path / "none" / "new.py"), "no folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is write-protected for root")
def test_a_write_protected_file_is_refused_before_any_forward(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "load_model", None)
    file.chmod(0o400)
    _refused(zerodraft("edit", file, "-i", "Rename.", "--write"), "write-protected")


def test_json_is_one_object_on_stdout(answering: Any, file: Path) -> None:
    answering(f"{NEW}```")
    document = json.loads(zerodraft("edit", file, "-i", "Rename.", "--json", "--compare").stdout)
    assert document["text"] == NEW
    assert document["diff"].startswith("--- a/")
    assert document["stats"]["num_emitted_tokens"] == len(NEW) + 4
    assert set(document["compare"]) == {"plain", "HF prompt lookup", "zerodraft"}
    assert document["compare"]["zerodraft"]["text"] == "identical"
    assert document["compare"]["plain"]["forwards"] == document["compare"]["plain"]["tokens"]


def test_compare_prints_its_table_on_stderr(answering: Any, file: Path) -> None:
    answering(f"{NEW}```")
    result = zerodraft("edit", file, "-i", "Rename.", "--compare")
    assert "identical" in result.stderr
    assert "prompt lookup" in result.stderr
    assert "identical" not in result.stdout


def test_no_change_is_said(answering: Any, file: Path) -> None:
    answering(f"{CODE}```")
    before = file.stat()
    result = zerodraft("edit", file, "-i", "Nothing.", "--write")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "nothing changed" in result.stderr
    assert file.stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    ("answer", "options", "message"),
    [
        (f"{NEW}```", ["--temperature", "-1"], "temperature"),
        (f"{NEW}```", ["--top-p", "1.5"], "top_p"),
        (f"{NEW}```", ["-i", ""], "instruction"),
    ],
)
def test_errors_leave_the_file(answering: Any, file: Path, answer: str, options: list[str], message: str) -> None:
    answering(answer)
    _refused(zerodraft("edit", file, "-i", "Rename.", "--write", *options), message)
    assert file.read_text() == CODE


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "empty"), (b"\n \n", "empty"), (b"x = '\xff'\n", "not UTF-8"), (b"x = 1\n" * 500, "too long")],
)
def test_files_that_cannot_be_edited(answering: Any, file: Path, content: bytes, message: str) -> None:
    answering(f"{NEW}```")
    file.write_bytes(content)
    _refused(zerodraft("edit", file, "-i", "Rename.", "--write"), message)
    assert file.read_bytes() == content


def test_absent_files_and_folders(answering: Any, tmp_path: Path) -> None:
    answering("")
    _refused(zerodraft("edit", tmp_path / "none.py", "-i", "Rename."), "none.py")
    _refused(zerodraft("edit", tmp_path, "-i", "Rename."), "no file below")


@pytest.mark.parametrize(
    ("answer", "options", "message", "saved", "shown"),
    [
        (
            f"{NEW}````",
            ["--max-new-tokens", "40"],
            "hit the limit of 40 tokens",
            NEW.splitlines(True)[0],
            "+def area(b",
        ),
        ("I would rather not.", [], "no complete code block", "````python\nI would rather not.", ""),
        (f"{NEW}```\nIt is done.", [], "no complete code block", f"{NEW}```\nIt is done.\n", "+def area(b"),
    ],
)
def test_what_is_no_file_is_shown_and_kept(
    answering: Any, file: Path, answer: str, options: list[str], message: str, saved: str, shown: str
) -> None:
    answering(answer)
    result = zerodraft("edit", file, "-i", "Rename.", "--write", *options)
    assert (result.exit_code, result.stdout, file.read_text()) == (1, "", CODE)
    assert message in result.stderr
    assert shown in result.stderr
    assert _kept(result) == saved


def test_a_file_that_changed_meanwhile_is_left(answering: Any, file: Path) -> None:
    model = answering(f"{NEW}```")
    model.register_forward_pre_hook(lambda *_: file.write_text("# mine\n") and None)
    result = zerodraft("edit", file, "-i", "Rename.", "--write")
    assert result.exit_code == 1
    assert "changed" in result.stderr
    assert result.stdout.startswith("--- a/"), "the diff is given all the same"
    assert _kept(result) == NEW
    assert file.read_text() == "# mine\n"
    assert [path.name for path in file.parent.iterdir()] == ["area.py"]


def test_a_file_that_was_removed_meanwhile_stays_removed(answering: Any, file: Path) -> None:
    model = answering(f"{NEW}```")
    model.register_forward_pre_hook(lambda *_: file.unlink(missing_ok=True))
    result = zerodraft("edit", file, "-i", "Rename.", "--write")
    assert result.exit_code == 1
    assert "area.py" in result.stderr
    assert _kept(result) == NEW
    assert list(file.parent.iterdir()) == []


def _kept(result: Result) -> str:
    """What was written, from the file that the last line on stderr names."""
    line = result.stderr.strip().splitlines()[-1]
    path = Path(line.rsplit(" is in ", 1)[1])
    text = path.read_text()
    path.unlink()
    return text


def _refused(result: Result, message: str) -> None:
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("zerodraft: ")
    assert message in lines[0]


def test_generate_streams_what_json_reports(tiny_folder: Path) -> None:
    options = ["--model", str(tiny_folder), "--max-new-tokens", "30"]
    streamed = zerodraft("generate", "hello", *options)
    assert streamed.exit_code == 0, streamed.output
    document = json.loads(zerodraft("generate", "hello", "--json", *options).stdout)
    assert streamed.stdout == document["text"] + "\n"
    assert document["hit_limit"] is True
    assert document["model"] == str(tiny_folder)
    assert "stopped at --max-new-tokens" in streamed.stderr


def test_the_prompt_comes_from_argument_file_or_stdin(tiny_folder: Path, tmp_path: Path) -> None:
    options = ["--model", str(tiny_folder), "--max-new-tokens", "8"]
    (tmp_path / "prompt.txt").write_text("héllo")
    texts = {
        zerodraft("generate", "héllo", *options).stdout,
        zerodraft("generate", "-f", tmp_path / "prompt.txt", *options).stdout,
        zerodraft("generate", *options, stdin="héllo".encode()).stdout,
    }
    assert len(texts) == 1
    assert zerodraft("generate", "héllo", "--raw", *options).stdout not in texts
    _refused(zerodraft("generate", "a", "-f", tmp_path / "prompt.txt", *options), "not both")
    _refused(zerodraft("generate", *options, stdin=b" \n"), "empty")
    _refused(zerodraft("generate", *options, stdin=b"\xff"), "not UTF-8")


def test_every_sampling_option_has_an_effect(tiny_folder: Path) -> None:
    def text(*options: str) -> str:
        return zerodraft("generate", "hi", "--model", tiny_folder, "--max-new-tokens", "24", *options).stdout

    sampled = ["--temperature", "1.0", "--seed", "1"]
    assert text(*sampled) == text(*sampled)
    assert len({text(), text(*sampled), text(*sampled[:3], "2"), text("--top-p", "0.01", *sampled)}) >= 3
    assert text("--top-p", "0.5", *sampled) != text(*sampled)
    assert text("--temperature", "3.0", "--seed", "1") != text(*sampled)


def test_model_errors_are_one_line(tmp_path: Path, file: Path) -> None:
    for name, message in [
        (str(tmp_path / "none"), "no folder"),
        (str(tmp_path), "cannot load"),
        ("nobody/no-such-model", "nobody/no-such-model"),
        ("not a name!", "not a name!"),
    ]:
        _refused(zerodraft("edit", file, "-i", "x", "--model", name), message)


def test_a_missing_package_is_one_line(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    _refused(
        zerodraft("generate", "hi", "--model", tiny_folder), "this needs transformers: pip install 'zerodraft[hf]'"
    )


def test_dtype_and_device_are_checked(tiny_folder: Path) -> None:
    _refused(zerodraft("generate", "x", "--model", tiny_folder, "--dtype", "int4"), "dtype")
    _refused(zerodraft("generate", "x", "--model", tiny_folder, "--device", "abacus"), "device")
    loaded = models.load_model(str(tiny_folder), dtype="bfloat16")
    assert str(loaded.model.dtype) == "torch.bfloat16"
    assert str(models.load_model(str(tiny_folder)).model.dtype) == "torch.float32"


def test_help_states_the_defaults_of_the_code() -> None:
    import inspect

    from zerodraft.integrations.pipelines.editing import edit_text
    from zerodraft.integrations.pipelines.generating import generate_text
    from zerodraft.integrations.pipelines.settings import Drafting, Sampling

    for command, function in ((cli.edit, edit_text), (cli.generate, generate_text)):
        mine = {name: parameter.default for name, parameter in inspect.signature(command).parameters.items()}
        theirs = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
        theirs |= vars(Sampling()) | vars(Drafting())
        shared = set(mine) & set(theirs) - {"prompt", "instruction", "model"}
        assert {name: mine[name] for name in shared} == {name: theirs[name] for name in shared}
        assert {"max_new_tokens", "temperature", "top_p", "seed", "compare", "max_draft_tokens", "namespace"} <= shared


def test_the_installed_command_runs_and_says_its_version(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "zerodraft", "--version"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, env=os.environ | {})
    import zerodraft as package

    assert run.stdout.strip() == package.__version__


def test_characters_of_several_tokens_stream_whole(tokenizer: Any) -> None:
    """Bytes are tokens here, so a burst of accepted tokens may end inside a character."""
    import torch

    from zerodraft.integrations.pipelines.streaming import TextStream

    text = "naïve 你好 👩‍👩‍👧 done"
    ids, pieces = tokenizer.encode(text, add_special_tokens=False), []
    for width in (1, 2, 3, 7, 50):
        pieces.clear()
        stream = TextStream(tokenizer, pieces.append)
        stream.put(torch.tensor([[5, 6]]))
        for at in range(0, len(ids), width):
            stream.put(torch.tensor(ids[at : at + width]))
        assert not any("\ufffd" in piece for piece in pieces)
        assert "".join(pieces) == text, "everything was shown as soon as it was whole"
        stream.end()
        assert "".join(pieces) == text


@pytest.mark.parametrize(
    "options", [["--recycle"], ["--lookahead", "3,3,3"], ["--recycle", "--lookahead", "4,3,2"]], ids=" ".join
)
def test_other_sources_of_guesses_change_the_statistics_not_the_text(
    answering: Any, file: Path, tiny_folder: Path, options: Any
) -> None:
    written = ["generate", "Write.", "--json", "--max-new-tokens", "30", "--model", tiny_folder]
    plain, other = zerodraft(*written), zerodraft(*written, *options)
    assert other.exit_code == 0, other.output
    before, after = json.loads(plain.stdout), json.loads(other.stdout)
    assert after["text"] == before["text"]
    counted = [run["stats"]["drafted_by_source"] for run in (before, after)]
    windows = [run["stats"]["num_window_nodes"] for run in (before, after)]
    assert counted[0] != counted[1] or windows[0] != windows[1]
    answering(f"{NEW}```")
    edited = zerodraft("edit", file, "-i", "Rename.", *options)
    assert edited.exit_code == 0, edited.output
    assert edited.stdout == zerodraft("edit", file, "-i", "Rename.").stdout


@pytest.mark.parametrize("given", ["3", "3,3", "a,b,c", "3,3,-1", "0,3,3"])
def test_a_bad_lookahead_is_refused_before_the_model_is_loaded(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "load_model", lambda *args, **options: pytest.fail("loaded"))
    result = zerodraft("generate", "Write.", "--lookahead", given)
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1
