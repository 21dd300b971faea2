"""Tables of successors on disk: what was learned is there again, and no file can make them wrong."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zerodraft
from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.memory.manifest import recycler_path
from zerodraft.lookup.memory.segment_file import MemoryFileError
from zerodraft.lookup.recycle.recycler_file import read_recycler, write_recycler
from zerodraft.lookup.recycle.recycler_shelf import RecyclerShelf
from zerodraft.lookup.recycle.token_recycler import TokenRecycler
from zerodraft.lookup.runtime.whole_file import PARTIAL

TOPK = np.array([[5, 9, 2, 3, 4, 6, 7, 8]], np.int32)


def taught(seed=0, steps=300, max_keys=1 << 17):
    """A table that has seen random forwards over few tokens."""
    rng, recycler = np.random.default_rng(seed), TokenRecycler(max_keys)
    recycler.read(rng.integers(0, 30, 100))
    for _ in range(steps):
        topk = np.array([rng.permutation(40)[:8]], np.int32)
        outcome = Outcome(path=(), new_ids=(int(topk[0, rng.integers(8)]),), stop="full", topk=topk)
        recycler.update((int(rng.integers(-1, 40)), int(rng.integers(40))), Draft.empty(), outcome)
    return recycler


def trees(recycler, seed=1):
    """What it drafts in many places."""
    rng = np.random.default_rng(seed)
    drafts = [recycler.propose((int(rng.integers(-1, 40)), int(rng.integers(40))), 12) for _ in range(60)]
    return [(d.token_ids.tolist(), d.parents.tolist(), d.probs.tolist()) for d in drafts]


@pytest.mark.parametrize("steps", [0, 1, 300])
def test_a_table_comes_back_as_it_was(tmp_path, steps):
    before, path = taught(steps=steps), tmp_path / "table.zdrec"
    write_recycler(path, before)
    after = read_recycler(path, 1 << 17)
    after.check_integrity()
    assert len(after) == len(before) > 0
    for first in range(-1, 40):
        for second in range(40):
            assert after.successors(first, second) == before.successors(first, second)
    after._common[:] = before._common  # the commonest tokens are the requests' own, they are not kept
    assert trees(after) == trees(before)
    assert [file.name for file in tmp_path.iterdir()] == ["table.zdrec"]


def test_of_too_many_lists_the_newest_stay(tmp_path):
    before, path = taught(), tmp_path / "table.zdrec"
    write_recycler(path, before)
    small = read_recycler(path, 64)
    small.check_integrity()
    assert 16 <= len(small) <= 64
    newest = before.lists().keys[-8:]
    assert set(newest.tolist()) <= set(small.lists().keys.tolist())


def test_no_file_is_no_table(tmp_path):
    assert read_recycler(tmp_path / "none.zdrec", 64) is None


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_file_is_refused_as_a_whole(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damaged") / "table.zdrec"
    write_recycler(path, taught(steps=20))
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    elif data.draw(st.booleans()):
        content += data.draw(st.binary(min_size=1, max_size=50))
    else:
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(content))
    with pytest.raises(MemoryFileError, match=r"table\.zdrec"):
        read_recycler(path, 1 << 17)


def forged(lists, counts=None):
    """A file with sound sums around whatever is given."""
    counts = np.ones((11, 9)) if counts is None else counts
    body = counts.astype("<f8").tobytes() + b"".join(struct.pack("<qi8i", *entry) for entry in lists)
    return struct.pack("<8sIIQ", b"ZDRAFTRC", 1, zlib.crc32(body), len(lists)) + body


ROW = (1, 2, 3, -1, -1, -1, -1, -1)


@pytest.mark.parametrize(
    "content",
    [
        forged([(-1, 0, *ROW)]),
        forged([(3, -1, *ROW)]),
        forged([(3, 4, *ROW)]),
        forged([(3, 0, -1, *ROW[1:])]),
        forged([(3, 0, 1, -1, 3, *ROW[3:])]),
        forged([(3, 0, -7, *ROW[1:])]),
        forged([], np.zeros((11, 9))),
        forged([], np.full((11, 9), np.nan)),
        forged([], np.full((11, 9), -1.0)),
        forged([], np.full((11, 9), 1e9)),
        struct.pack("<8sIIQ", b"ZDRAFTRC", 1, 0, 2**60),
        struct.pack("<8sIIQ", b"ZDRAFTRC", 2, 0, 0),
        b"",
        b"ZDRAFTSG" + bytes(100),
    ],
)
def test_a_hostile_file_is_refused(tmp_path, content):
    path = tmp_path / "table.zdrec"
    path.write_bytes(content)
    with pytest.raises(MemoryFileError, match=r"table\.zdrec"):
        read_recycler(path, 64)


def test_keys_that_stand_twice_are_one(tmp_path):
    path = tmp_path / "table.zdrec"
    path.write_bytes(forged([(3, 2, *ROW), (3, 1, 7, *ROW[1:]), (2**62, 0, *ROW)]))
    recycler = read_recycler(path, 64)
    recycler.check_integrity()
    assert len(recycler) == 2
    assert recycler.successors(-1, 3) == [7, 2, 3]


def teach(drafter, namespace):
    """One request: 4 is followed by 5."""
    session = drafter.begin([1, 4], namespace=namespace)
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(5,), stop="full", topk=TOPK))
    session.finish()


def first_after_four(drafter, namespace):
    draft = drafter.begin([7, 4], namespace=namespace).propose(2)
    return draft.token_ids.tolist()


def drafter_in(directory):
    return zerodraft.Drafter(memory=zerodraft.DraftMemory(directory=directory), recycle="shared")


def test_successors_are_saved_with_the_memory(tmp_path):
    """A new process knows what the target said to earlier requests of the namespace, and of no other."""
    first = drafter_in(tmp_path)
    teach(first, "alice")
    assert first_after_four(first, "alice") == [5, 9]
    assert first_after_four(drafter_in(tmp_path), "alice") == []  # nothing is saved yet
    first.save()
    second = drafter_in(tmp_path)
    assert first_after_four(second, "alice") == [5, 9]
    assert first_after_four(second, "bob") == first_after_four(second, None) == []
    assert second.memory.refresh() in (True, False)  # the tables are no trouble to the memory's own files
    second.save()
    assert recycler_path(tmp_path, "alice").exists()


@pytest.mark.parametrize("through", ["drafter", "memory"])
def test_clearing_a_namespace_drops_its_successors(tmp_path, through):
    drafter = drafter_in(tmp_path)
    teach(drafter, "alice")
    teach(drafter, "bob")
    drafter.save()
    partial = tmp_path / (recycler_path(tmp_path, "alice").name + PARTIAL)
    partial.write_bytes(b"what a killed writer left")
    (drafter if through == "drafter" else drafter.memory).clear("alice")
    assert not recycler_path(tmp_path, "alice").exists()
    assert not partial.exists()
    assert first_after_four(drafter_in(tmp_path), "alice") == []
    assert first_after_four(drafter_in(tmp_path), "bob") == [5, 9]
    if through == "drafter":
        assert first_after_four(drafter, "alice") == []


def test_a_damaged_table_is_logged_and_replaced(tmp_path, caplog):
    drafter = drafter_in(tmp_path)
    teach(drafter, "alice")
    drafter.save()
    recycler_path(tmp_path, "alice").write_bytes(b"nonsense")
    again = drafter_in(tmp_path)
    assert first_after_four(again, "alice") == []
    assert "not a table of successors" in caplog.text
    teach(again, "alice")
    again.save()
    assert first_after_four(drafter_in(tmp_path), "alice") == [5, 9]


def test_what_a_killed_writer_left_is_written_over(tmp_path):
    drafter = drafter_in(tmp_path)
    teach(drafter, "alice")
    left = tmp_path / (recycler_path(tmp_path, "alice").name + PARTIAL)
    left.write_bytes(b"half a table")
    drafter.save()
    assert not list(tmp_path.glob(f"*{PARTIAL}"))
    assert first_after_four(drafter_in(tmp_path), "alice") == [5, 9]


def test_nowhere_to_save_to():
    with pytest.raises(ValueError, match="save needs a drafter with a memory"):
        zerodraft.Drafter(recycle="shared").save()
    with pytest.raises(ValueError, match="save needs a directory"):
        zerodraft.Drafter(memory=zerodraft.DraftMemory(), recycle="shared").save()


def test_the_shelf_keeps_what_is_not_saved_out_of_the_directory(tmp_path):
    shelf = RecyclerShelf(tmp_path, max_keys=64)
    shelf["a"].update((1, 4), Draft.empty(), Outcome(path=(), new_ids=(5,), stop="full", topk=TOPK))
    assert list(tmp_path.iterdir()) == []
    shelf.save()
    assert len(RecyclerShelf(tmp_path, max_keys=64)["a"]) == 2
    assert len(RecyclerShelf(tmp_path, max_keys=64)["b"]) == 0
