"""``zerodraft memory`` on files and folders, and ``zerodraft doctor``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from zerodraft.integrations import models
from zerodraft.integrations.commands import cli
from zerodraft.lookup.memory.draft_memory import DraftMemory


def zerodraft(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, list(map(str, arguments)))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "inner").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "a.py").write_text("def first(): return 'alpha'\n")
    (folder / "inner" / "b.py").write_text("def second(): return 'beta'\n")
    (folder / "inner" / "c.md").write_text("a note on the third\n")
    (folder / "picture.bin").write_bytes(b"\xff\xfe\x00")
    (folder / ".git" / "config.py").write_text("hidden = True\n")
    return folder


def rows(directory: Path) -> list[dict[str, Any]]:
    result = zerodraft("memory", "inspect", directory, "--json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_what_was_built_is_drafted(project: Path, tiny_folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    place = tmp_path / "memory"
    result = zerodraft("memory", "build", place, project, "--tokenizer", tiny_folder, "-n", "team")
    assert result.exit_code == 0, result.output
    assert "added 3 texts" in result.stderr
    memory = DraftMemory.load(place)
    ids = tokenizer.encode("def second(): ", add_special_tokens=False)
    assert tokenizer.decode(memory.propose(ids, 10, "team").token_ids.tolist()).startswith("return 'be")
    assert len(memory.propose(ids, 10, None)) == 0
    size = sum(len(path.read_bytes()) for path in (project / "a.py", *(project / "inner").iterdir()))
    (row,) = rows(place)
    assert (row["namespace"], row["texts"], row["tokens"]) == ("team", 3, size)
    assert '"team"' in zerodraft("memory", "inspect", place).stdout


def test_suffixes_and_files_asked_for_by_name(project: Path, tiny_folder: Path, tmp_path: Path) -> None:
    build = ["memory", "build", tmp_path / "memory", "--tokenizer", tiny_folder]
    assert "added 2 texts" in zerodraft(*build, project, "--suffix", ".py").stderr
    result = zerodraft(*build, project / "picture.bin", project / "inner" / "c.md", tmp_path / "none.py")
    assert result.exit_code == 1
    assert [line for line in result.stderr.splitlines() if "picture.bin is not UTF-8" in line]
    assert [line for line in result.stderr.splitlines() if "none.py" in line]
    assert rows(tmp_path / "memory")[0]["texts"] == 3


def test_merge_keeps_namespaces_and_clear_drops_one(tmp_path: Path) -> None:
    for name, namespace in (("one", "x"), ("two", None)):
        memory = DraftMemory(directory=tmp_path / name)
        memory.add([1, 2, 3, 4, len(name)], namespace)
        memory.save()
    two = {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    assert zerodraft("memory", "merge", tmp_path / "one", tmp_path / "two").exit_code == 0
    assert {(row["namespace"], row["tokens"]) for row in rows(tmp_path / "one")} == {("x", 5), (None, 5)}
    assert {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()} == two
    unsaid = zerodraft("memory", "clear", tmp_path / "one")
    assert unsaid.exit_code == 1
    assert "--no-namespace" in unsaid.stderr
    assert zerodraft("memory", "clear", tmp_path / "one", "-n", "x").exit_code == 0
    assert [row["namespace"] for row in rows(tmp_path / "one")] == [None]
    assert "dropped 5 tokens" in zerodraft("memory", "clear", tmp_path / "one", "--no-namespace").stderr
    assert rows(tmp_path / "one") == []
    assert "into itself" in zerodraft("memory", "merge", tmp_path / "one", tmp_path / "one").stderr


def test_caps_are_kept_only_where_asked_for(tmp_path: Path) -> None:
    memory = DraftMemory(2_000_000, directory=tmp_path / "big")
    for start in range(0, 1_500_000, 100_000):
        memory.add(range(start, start + 100_000))
    memory.save()
    assert zerodraft("memory", "clear", tmp_path / "big", "-n", "nobody").exit_code == 0
    assert rows(tmp_path / "big")[0]["tokens"] == 1_500_000, "more than a memory's default cap"
    assert zerodraft("memory", "merge", tmp_path / "small", tmp_path / "big", "--max-tokens", "300000").exit_code == 0
    assert rows(tmp_path / "small")[0]["tokens"] <= 300_000


def test_verify_names_what_is_damaged(tmp_path: Path) -> None:
    memory = DraftMemory(directory=tmp_path / "m")
    memory.add(range(5000), "x")
    memory.save()
    sound = zerodraft("memory", "verify", tmp_path / "m")
    assert sound.exit_code == 0
    assert "1 of 1 files are sound" in sound.stderr
    (file,) = (tmp_path / "m").glob("*.zdseg")
    shutil.copy(file, tmp_path / "copy")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    damaged = zerodraft("memory", "verify", tmp_path / "m")
    assert damaged.exit_code == 1
    assert file.name in damaged.stderr
    file.unlink()
    assert "missing" in zerodraft("memory", "verify", tmp_path / "m").stderr
    assert zerodraft("memory", "verify", tmp_path / "nothing").exit_code == 1
    assert zerodraft("memory", "inspect", tmp_path / "m").exit_code == 1


def flipped(file: Path, place: int | None = None) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 1
    file.write_bytes(data)


def one_line(result: Result) -> str:
    """What a command says that refuses: one line, no traceback, no number of the system's, nothing twice."""
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.splitlines()
    assert "[Errno" not in line
    assert "Traceback" not in line
    names = [word for word in line.replace(":", " ").split() if "/" in word]
    assert len(names) <= 2
    return line


def test_building_twice_leaves_the_memory_as_it_was(project: Path, tiny_folder: Path, tmp_path: Path) -> None:
    place = project / "memory"  # in the folder that is read: it is no text of its own
    (project / "copy.py").write_bytes((project / "a.py").read_bytes())
    build = ["memory", "build", place, project, "--tokenizer", tiny_folder]
    first = zerodraft(*build)
    assert "added 3 texts" in first.stderr
    assert "skipped 1 texts it has" in first.stderr
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    again = zerodraft(*build)
    assert again.exit_code == 0, again.output
    assert "added 0 texts" in again.stderr
    assert "skipped 4 texts it has" in again.stderr
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before
    assert "added 3 texts" in zerodraft(*build, "-n", "team").stderr
    for _ in range(2):
        merged = zerodraft("memory", "merge", tmp_path / "other", place)
        assert merged.exit_code == 0, merged.output
        assert {row["texts"] for row in rows(tmp_path / "other")} == {3}
    assert "skipped 6 it has" in merged.stderr


def test_a_memory_is_of_one_tokenizer(project: Path, tiny_folder: Path, tmp_path: Path) -> None:
    from stand_ins import byte_tokenizer

    byte_tokenizer(["return"]).save_pretrained(tmp_path / "other tokenizer")
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    assert zerodraft("memory", "build", ours, project, "--tokenizer", tiny_folder).exit_code == 0
    named = str(DraftMemory.load(ours).tokenizer)
    refused = one_line(zerodraft("memory", "build", ours, project, "--tokenizer", tmp_path / "other tokenizer"))
    assert named in refused
    assert zerodraft("memory", "build", theirs, project, "--tokenizer", tmp_path / "other tokenizer").exit_code == 0
    for name in (named, str(DraftMemory.load(theirs).tokenizer), str(theirs)):
        assert name in one_line(zerodraft("memory", "merge", ours, theirs))
    assert one_line(zerodraft("memory", "merge", tmp_path / "new", ours, theirs))
    assert not list((tmp_path / "new").iterdir())
    assert rows(ours)[0]["tokenizer"] == named
    assert f"tokenizer: {named}" in zerodraft("memory", "inspect", ours).stdout
    zerodraft("memory", "merge", tmp_path / "new", ours)
    assert DraftMemory.load(tmp_path / "new").tokenizer == named


@pytest.mark.parametrize("damage", ["block", "header", "cut", "missing", "manifest", "no manifest", "empty manifest"])
def test_a_damaged_memory_is_no_dead_end(project: Path, tiny_folder: Path, tmp_path: Path, damage: str) -> None:
    place = tmp_path / "m"
    memory = DraftMemory(directory=place)
    memory.add(range(40_000), "x")
    memory.save()
    memory.add(range(300), "y")
    memory.save()
    file = max(place.glob("*.zdseg"), key=lambda path: path.stat().st_size)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:1000])
    elif damage == "missing":
        file.unlink()
    elif damage == "no manifest":
        (place / "manifest.json").unlink()
    elif damage == "empty manifest":
        (place / "manifest.json").write_bytes(b"")
    else:
        flipped(*{"block": (file,), "header": (file, 30), "manifest": (place / "manifest.json", 70)}[damage])
    shutil.copytree(place, tmp_path / "cleared")
    is_of_file = "manifest" not in damage
    named = file.name if is_of_file else "manifest.json"
    for command in (["inspect", place], ["inspect", place, "--json"], ["verify", place]):
        shown = zerodraft("memory", *command)
        assert shown.exit_code == 1
        assert named in shown.stderr
        assert f"zerodraft memory repair {place}" in shown.stderr
        assert '"y"' in shown.stdout or command[0] == "verify"
    for command in (
        ["build", place, project, "--tokenizer", str(tiny_folder)],
        ["merge", place, tmp_path / "cleared"],
        ["merge", tmp_path / "new", place],
    ):
        line = one_line(zerodraft("memory", *command))
        assert named in line
        assert f"zerodraft memory repair {place}" in line
    looked = zerodraft("memory", "repair", place, "--dry-run")
    assert looked.exit_code == 0
    assert zerodraft("memory", "inspect", place).exit_code == 1
    repaired = zerodraft("memory", "repair", place)
    assert repaired.exit_code == 0, repaired.output
    assert named in repaired.stderr
    assert ("lost" in repaired.stderr) == is_of_file
    assert "nothing to repair" in zerodraft("memory", "repair", place).stderr
    assert {row["namespace"]: row["tokens"] for row in rows(place)}["y"] == 300
    assert zerodraft("memory", "build", place, project, "--tokenizer", tiny_folder).exit_code == 0
    cleared = zerodraft("memory", "clear", tmp_path / "cleared", "-n", "x")
    assert cleared.exit_code == 0, cleared.output
    assert [row["namespace"] for row in rows(tmp_path / "cleared")] == ["y"]
    assert damage == "missing" or not (tmp_path / "cleared" / file.name).exists()


def test_what_cannot_be_a_memory_is_one_line(project: Path, tiny_folder: Path, tmp_path: Path) -> None:
    file, tokenizer = project / "a.py", ["--tokenizer", str(tiny_folder)]
    for command in (
        ["build", file, project, *tokenizer],
        ["build", file / "below", project, *tokenizer],
        ["build", tmp_path / "m", project, *tokenizer, "--max-tokens", "1"],
        ["build", tmp_path / "m", project, *tokenizer, "--max-tokens", "0"],
        ["build", tmp_path / "m", project, "--tokenizer", tmp_path / "none"],
        ["merge", file, tmp_path],
        *([name, place] for name in ("inspect", "verify", "repair") for place in (file, tmp_path / "none", tmp_path)),
        ["clear", file, "-n", "x"],
        ["clear", tmp_path / "none", "--no-namespace"],
    ):
        one_line(zerodraft("memory", *command))
    nothing = zerodraft("memory", "build", "", project, *tokenizer)
    assert nothing.exit_code == 2
    assert "must be the path of a folder" in nothing.stderr
    assert file.read_text().startswith("def first")
    assert not (tmp_path / "none").exists()


def test_the_doctor_knows_versions_kernels_and_prospects() -> None:
    result = zerodraft("doctor")
    assert result.exit_code == 0, result.output
    assert "torch" in result.stdout
    assert "kernels" in result.stdout
    found = json.loads(zerodraft("doctor", "--json").stdout)
    import torch

    from zerodraft.lookup.cost import DEFAULT_CURVE
    from zerodraft.lookup.measure.theory import expected_tokens

    assert found["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert found["cost_curve"]["points"] == DEFAULT_CURVE.as_dict()["points"]
    speeds = [row["speedup"] for row in found["prospects"]]
    assert speeds == sorted(speeds)
    last = found["prospects"][-1]
    bound = max(expected_tokens(0.95, gamma) / DEFAULT_CURVE.cost(gamma + 1) for gamma in range(65))
    assert last["speedup"] == pytest.approx(bound)


def test_the_doctor_says_where_things_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    assert json.loads(zerodraft("doctor", "--json").stdout)["user_cache"] == {
        "path": str(tmp_path / "new" / "zerodraft"),
        "is_writable": True,
    }
    assert not (tmp_path / "new").exists()  # asking makes nothing
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert json.loads(zerodraft("doctor", "--json").stdout)["user_cache"]["is_writable"] is False
    assert "NOT writable" in zerodraft("doctor").stdout


def test_the_doctor_measures_a_model(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from zerodraft.integrations.hf import cost_measure
    from zerodraft.lookup.cost import CostCurve

    steep = CostCurve([(1, 1.0), (2, 2.0)])
    monkeypatch.setattr(cost_measure, "measured_curve", lambda model: steep)
    found = json.loads(zerodraft("doctor", "--model", tiny_folder, "--json").stdout)
    assert found["cost_curve"]["points"] == [[1, 1.0], [2, 2.0]]
    assert all(row["gamma"] == 0 for row in found["prospects"])
    assert "do not draft" in zerodraft("doctor", "--model", tiny_folder).stdout
    monkeypatch.setattr(models, "load_model", lambda *args, **options: pytest.fail("loaded"))
    assert zerodraft("doctor").exit_code == 0
