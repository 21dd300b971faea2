"""Damaged memories: what is found, what is dropped, and that all that is sound stays (cases 6, 7)."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerodraft.lookup.memory import manifest as manifest_module
from zerodraft.lookup.memory import repair as repair_module
from zerodraft.lookup.memory.draft_memory import DraftMemory
from zerodraft.lookup.memory.manifest import MANIFEST, NoMemoryError, read_manifest
from zerodraft.lookup.memory.repair import examine, repair
from zerodraft.lookup.memory.segment_file import BLOCK_BYTES, MemoryFileError, map_file, read_header

SIZES = {None: (40_000, 9_000, 300, 20), "a": (18_000, 3_000, 2)}  # each less than half of the one before: never merged
BLOCK = BLOCK_BYTES // 4  # tokens


def text_of(namespace: str | None, size: int) -> list[int]:
    return np.random.default_rng(size + (namespace == "a")).integers(0, 50_000, size).tolist()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A directory with one text per file."""
    directory = tmp_path_factory.mktemp("memory")
    memory = DraftMemory(directory=directory, tokenizer="ours")
    for namespace, sizes in SIZES.items():
        for size in sizes:
            memory.add(text_of(namespace, size), namespace)
            memory.save()
    assert len(list(directory.glob("*.zdseg"))) == sum(map(len, SIZES.values()))
    return directory


@pytest.fixture
def directory(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "memory"))


def file_of(directory: Path, namespace: str | None, size: int) -> Path:
    for path in directory.glob("*.zdseg"):
        header = read_header(path, map_file(path))
        if (header.namespace, header.length) == (namespace, size + 1):
            return path
    raise AssertionError(f"no file of {size} tokens")


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x40
    path.write_bytes(content)


def held(directory: Path) -> dict[str | None, list[list[int]]]:
    """The texts of a directory, every byte checked, by namespace, oldest first."""
    memory = DraftMemory.load(directory, verify=True)
    memory.check_integrity()
    texts: dict[str | None, list[list[int]]] = {namespace: [] for namespace in SIZES}
    for segment in memory._shelf:
        texts[segment.namespace] += [ids.tolist() for ids, _ in segment.live_texts()]
    return texts


def is_part(part: list[int], text: list[int]) -> bool:
    return any(text[at : at + len(part)] == part for at in range(len(text)) if text[at] == part[0])


def is_drafted(memory: DraftMemory, namespace: str | None, size: int) -> bool:
    text = text_of(namespace, size)
    at = len(text) // 2
    return memory.propose(text[max(0, at - 20) : at], 4, namespace).token_ids.tolist() == text[at : at + 4]


ALL = {namespace: [text_of(namespace, size) for size in sizes] for namespace, sizes in SIZES.items()}
kinds = st.sampled_from(["flip", "cut", "append", "zero", "version", "delete", "swap"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), kinds, st.floats(0, 1, exclude_max=True)), min_size=1, max_size=4))
def test_whatever_is_damaged_the_rest_is_drafted(whole, tmp_path_factory, damages):
    directory = Path(shutil.copytree(whole, tmp_path_factory.mktemp("damaged") / "memory"))
    files = [*sorted(directory.glob("*.zdseg"), key=lambda path: path.stat().st_size), directory / MANIFEST]
    intact = {path.name: path.read_bytes() for path in files}
    owner = {
        file_of(directory, namespace, size).name: (namespace, size) for namespace in SIZES for size in SIZES[namespace]
    }
    for number, kind, part in damages:
        path = files[number]
        content = bytearray(path.read_bytes()) if path.exists() else bytearray(1)
        at = int(part * len(content))
        if kind == "delete":
            path.unlink(missing_ok=True)
            continue
        if kind == "flip" and content:
            content[at] ^= 1 << (number % 8)
        elif kind == "version" and len(content) > 8:
            content[8] = 7
        elif kind == "swap":
            content = bytearray(files[number - 1].read_bytes()) if files[number - 1].exists() else content
        else:
            content = {"cut": content[:at], "append": content + b"x" * at, "zero": bytes(len(content))}.get(
                kind, content
            )
        path.write_bytes(content)
    if not any(path.exists() for path in files):
        return
    unhurt = [
        owner[n]
        for n in intact
        if n in owner and (directory / n).exists() and (directory / n).read_bytes() == intact[n]
    ]
    repair(directory)
    assert examine(directory).problems == []
    texts, memory = held(directory), DraftMemory.load(directory, min_match_len=2)
    for namespace, size in unhurt:
        assert text_of(namespace, size) in texts[namespace]
        assert size < 10 or is_drafted(memory, namespace, size)
    for namespace, parts in texts.items():
        assert all(any(is_part(part, text) for text in ALL[namespace]) for part in parts), "a text nobody added"
    assert not list(directory.glob("*.partial"))
    memory.add([1, 2, 3], "new")
    memory.save()
    assert DraftMemory.load(directory, verify=True).propose([1, 2], 1, "new").token_ids.tolist() == [3]


def test_a_sound_memory_is_left_alone(directory):
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert repair(directory).problems == []
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_what_is_in_sound_blocks_is_saved(directory):
    path = file_of(directory, None, 40_000)
    flip(path, read_header(path, map_file(path)).header_bytes + 4 * (BLOCK + 5))
    found = repair(directory)
    (problem,) = found.problems
    assert path.name in problem
    assert f"{BLOCK} tokens of 1 texts are lost" in problem
    assert not path.exists()
    text = text_of(None, 40_000)
    assert held(directory)[None][:2] == [text[:BLOCK], text[2 * BLOCK :]], "its two sound parts, in the old place"
    assert held(directory)["a"] == ALL["a"]
    assert DraftMemory.load(directory).tokenizer == "ours"


def test_an_index_is_built_again_from_its_tokens(directory):
    path = file_of(directory, None, 40_000)
    flip(path, path.stat().st_size // 2)  # among the links
    assert "0 tokens of 0 texts are lost" in repair(directory).problems[0]
    assert held(directory) == ALL


def test_the_part_before_a_cut_is_saved(directory):
    path = file_of(directory, None, 40_000)
    header = read_header(path, map_file(path))
    path.write_bytes(path.read_bytes()[: header.header_bytes + 2 * BLOCK_BYTES + 99])
    repair(directory)
    assert text_of(None, 40_000)[: 2 * BLOCK] in held(directory)[None]


def test_texts_that_were_dropped_stay_dropped(directory):
    memory = DraftMemory(directory=directory)
    for size in (40_001, 40_002):
        memory.add(text_of("b", size), "b")
    memory.save()
    memory.evict(memory.num_tokens - 40_002)
    memory.save()
    (entry,) = read_manifest(directory).entries
    assert entry.first_live == 1
    path = directory / entry.name
    flip(path, read_header(path, map_file(path)).header_bytes + 4 * 80_000)  # near the end of the second text
    repair(directory)
    (segment,) = examine(directory).sound
    (start,) = [ids.tolist() for ids, _ in segment.live_texts()]
    assert start == text_of("b", 40_002)[: len(start)]
    assert len(start) > BLOCK


@pytest.mark.parametrize("content", [b"", b"{", b"\xff" * 99, b'{"format": "zerodraft-memory", "version": 9}', None])
def test_without_a_manifest_all_files_are_listed_again(directory, content):
    (directory / MANIFEST).unlink()
    if content is not None:
        (directory / MANIFEST).write_bytes(content)
    for door in (DraftMemory, DraftMemory.load):
        with pytest.raises(MemoryFileError, match=MANIFEST):
            door(directory=directory)
    (problem,) = repair(directory).problems
    assert "whose ids these are is not known" in problem
    assert held(directory) == ALL


def test_a_lost_manifest_never_costs_the_files(directory):
    memory = DraftMemory.load(directory)
    (directory / MANIFEST).unlink()
    memory.add([1, 2, 3])
    with pytest.raises(MemoryFileError, match="missing, but there are segment files"):
        memory.save()
    repair(directory)
    memory.save()
    assert held(directory)[None] == [*ALL[None], [1, 2, 3]]


def test_files_that_were_merged_into_others_are_not_listed_twice(directory):
    memory = DraftMemory(directory=directory)
    old = {path.name: path.read_bytes() for path in directory.glob("*.zdseg")}
    memory.add(text_of(None, 25_000))
    memory.save()
    for name, content in old.items():  # as if their removal had been cut short
        (directory / name).write_bytes(content)
    (directory / MANIFEST).unlink()
    repair(directory)
    texts = held(directory)
    assert sorted(map(len, texts[None])) == [20, 300, 9_000, 25_000, 40_000]
    assert texts["a"] == ALL["a"]


@pytest.mark.parametrize("has_manifest", [True, False])
@pytest.mark.parametrize("at", ["open_segment", "write_manifest", "remove_unlisted", "sync_directory", "replace"])
def test_a_repair_that_is_killed_can_be_done_again(directory, monkeypatch, at, has_manifest):
    path = file_of(directory, None, 40_000)
    flip(path, read_header(path, map_file(path)).header_bytes + 9)
    if not has_manifest:
        flip(directory / MANIFEST, 40)

    class Killed(BaseException):
        pass

    def die(*args, **options):
        raise Killed

    opened = repair_module.open_segment
    late = lambda path: opened(path) if path.stat().st_size > 0 and path.name in names else die()  # noqa: E731
    names = {path.name for path in directory.iterdir()}
    with monkeypatch.context() as patch:
        if at == "open_segment":
            patch.setattr(repair_module, at, late)
        else:
            patch.setattr(manifest_module, "write_whole" if at == "replace" else at, die)
        with pytest.raises(Killed):
            repair(directory)
    repair(directory)
    texts = held(directory)
    assert texts["a"] == ALL["a"]
    assert texts[None] == [text_of(None, 40_000)[BLOCK:], *ALL[None][1:]]
    assert examine(directory).problems == []


def test_a_dry_run_changes_nothing(directory):
    flip(file_of(directory, "a", 3_000), 500)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert len(repair(directory, dry_run=True).problems) == 1
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_what_is_no_memory_is_left_alone(tmp_path):
    (tmp_path / MANIFEST).write_text('{"name": "a web page"}')
    for call in (repair, examine, DraftMemory.load):
        with pytest.raises(NoMemoryError, match="no memory here"):
            call(tmp_path)
    assert (tmp_path / MANIFEST).read_text() == '{"name": "a web page"}'
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]
    with pytest.raises(NoMemoryError):
        repair(tmp_path / "nothing")


def test_a_damaged_table_of_successors_is_dropped(directory):
    from zerodraft.lookup.drafter import Drafter

    drafter = Drafter(memory=DraftMemory(directory=directory), recycle="shared")
    drafter.recycler("a")
    drafter.save()
    (table,) = directory.glob("*.zdrec")
    flip(table, 20)
    (problem,) = repair(directory).problems
    assert table.name in problem
    assert not table.exists()
    assert held(directory) == ALL
