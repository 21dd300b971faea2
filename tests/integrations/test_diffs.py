"""Diffs: two texts, one alignment, and what the real ``patch`` and ``git apply`` make of it."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerodraft.integrations.pipelines.line_diff import align, split_lines, unified_diff
from zerodraft.integrations.pipelines.source_file import SourceFile, diff_folder

LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "x\r\n"]) | st.text("uvwxyz\f\u2028", max_size=3).map(
    lambda text: f"{text}\n"
), max_size=25)  # fmt: skip


@given(LINES, LINES)
def test_the_pieces_are_both_texts_in_order(old: list[str], new: list[str]) -> None:
    pieces = align(old, new)
    assert [line for piece in pieces for line in old[piece.old_start : piece.old_end]] == old
    assert [line for piece in pieces for line in new[piece.new_start : piece.new_end]] == new
    for piece in pieces:
        same = old[piece.old_start : piece.old_end] == new[piece.new_start : piece.new_end]
        assert not piece.is_same or same
    assert all(a.is_same != b.is_same for a, b in itertools.pairwise(pieces))


def lcs(old: list[str], new: list[str]) -> int:
    """Length of the longest common subsequence, from its definition."""
    table = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i, a in enumerate(old):
        for j, b in enumerate(new):
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@given(LINES, st.data())
def test_an_edit_of_one_line_keeps_all_others(old: list[str], data: st.DataObject) -> None:
    if not old:
        return
    at = data.draw(st.integers(0, len(old) - 1))
    new = [*old[:at], "new\n", *old[at + 1 :]]
    kept = sum(piece.old_end - piece.old_start for piece in align(old, new) if piece.is_same)
    assert kept == lcs(old, new) == len(old) - 1


def test_large_texts_of_equal_lines_take_a_moment() -> None:
    """Counted, not timed: comparing lines is what costs. Quadratic would be 10**8 comparisons."""

    class Line(str):
        num_compared = 0

        def __eq__(self, other: object) -> bool:
            Line.num_compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    old = [Line("x")] * 10_000
    new = [*old[:3000], Line("y"), *old[3001:9000], Line("z"), *old[9000:]]
    pieces = align(old, new)
    assert len(pieces) < 8
    assert Line.num_compared < 40 * len(old)


CONTENTS = [
    b"\xef\xbb\xbfa\r\nb\r\nc\r\n",
    b"\xef\xbb\xbfa",
    b"a\nb\r\r\nc\rd",
    "x a\u2028y\n\x0cz\n".encode(),
    b"a\n" * 30 + b"\n\n",
]
NAMES = [
    "a.py",
    "my file.py",
    "ta\tb.py",
    "naïve 好.py",
    os.fsdecode(b"bad\xff.py"),
    'q"uote.py',
    "back\\slash.py",
    "new\nline.py",
    " lead.py",
    "trail ",
    "-n.py",
    "sub dir/x y.py",
    "$HOME 'x'.py",
]


@pytest.mark.parametrize("tool", [["patch", "-p1", "--silent", "--fuzz=0"], ["git", "apply"]], ids=["patch", "git"])
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_the_tools_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, tool: list[str]) -> None:
    for number, content in enumerate(CONTENTS):
        folder = tmp_path / str(number)
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        monkeypatch.chdir(folder)
        source = SourceFile.read(Path(name))
        new = source.text.replace("a", "AA", 1)
        diff = os.fsencode(source.diff(new))
        done = subprocess.run(tool, input=diff, capture_output=True, check=False)
        assert done.returncode == 0, (content, done.stdout + done.stderr)
        assert path.read_bytes() == source.encode(new)


@pytest.mark.parametrize("tool", [["patch", "-p1", "--silent", "--fuzz=0"], ["git", "apply"]], ids=["patch", "git"])
def test_a_diff_of_several_files_applies_from_the_folder_above_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: list[str]
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    paths = [Path("a.py"), Path("../there/b.py"), Path("link.py")]
    Path("link.py").symlink_to("../there/c.py")
    for path in paths:
        path.write_text("one\ntwo\n")
    folder = diff_folder(paths)
    assert folder == tmp_path
    diff = "".join(SourceFile.read(path).diff("one\n2\n", folder) for path in paths)
    assert ".." not in diff
    done = subprocess.run(tool, input=diff, text=True, capture_output=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.read_text() for path in paths] == ["one\n2\n"] * 3


def test_patch_takes_random_diffs(tmp_path: Path) -> None:
    rng = random.Random(1)
    for _ in range(60):
        old = [f"{rng.choice('abcdefgh')}\n" if rng.random() < 0.5 else f"u{i}\n" for i in range(rng.randrange(1, 60))]
        new = list(old)
        for _ in range(rng.randrange(6)):
            at = rng.randrange(len(new) + 1)
            new[at : at + rng.randrange(2)] = [f"{rng.choice('abz')}\n"] * rng.randrange(3)
        texts = ["".join(lines)[: -1 if rng.random() < 0.3 else None] for lines in (old, new)]
        diff = unified_diff(*texts, "a/f", "b/f")
        if texts[0] == texts[1]:
            assert diff == ""
            continue
        (tmp_path / "f").write_text(texts[0])
        patch = ["patch", "-p1", "--silent", "--fuzz=0", "-E"]
        done = subprocess.run(patch, input=diff, text=True, capture_output=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, (texts, diff, done.stdout)
        assert ((tmp_path / "f").read_text() if (tmp_path / "f").exists() else "") == texts[1]


def test_lines_are_split_at_line_feeds_only() -> None:
    assert split_lines("a\x0cb\u2028c\rd\n\ne") == ["a\x0cb\u2028c\rd\n", "\n", "e"]
