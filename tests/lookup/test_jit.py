"""Kernels and records: what their annotations mean, what is refused, and the same code as plain Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest

from zerodraft.lookup.runtime._jit import Floats, Ints2D, Longs, ReadInts, Word, direct, dtype_of, kernel, record

ROOT = Path(__file__).resolve().parents[2]


@record
class Inner:
    at: int
    share: float


@record
class Outer:
    count: int
    inner: Inner
    pairs: Annotated[list[Inner], Inner, (3,)]
    table: Annotated[Floats, float, (2, 4)]


class Both(NamedTuple):
    numbers: Longs
    places: list[Inner]


class Alike(NamedTuple):
    first: Longs
    second: Longs


@kernel
def fill(outers: list[Outer], number: int, share: float) -> int:
    outer = outers[number]
    outer.count += 1
    outer.inner.at = number
    outer.pairs[2].share = share
    outer.table[1, 3] = share
    return outer.count


@kernel
def step(outer: Outer) -> None:
    outer.inner.at += 1


@kernel
def sums(both: Both, alike: Alike, is_twice: bool) -> tuple[int, float]:
    total = both.numbers.sum() + alike.first.sum() + alike.second.sum()
    return (2 * total if is_twice else total), both.places[0].share


@kernel
def last_of(texts: Ints2D, ids: ReadInts, at: Word) -> int:
    return texts[0, at] + ids[at]


def test_a_record_is_what_its_fields_say() -> None:
    outer = dtype_of(Outer)
    assert outer.names == ("count", "inner", "pairs", "table")
    assert outer["pairs"].shape == (3,)
    assert outer["table"].base == np.float64
    assert outer["table"].shape == (2, 4)
    assert dtype_of(Inner) == np.dtype([("at", "i8"), ("share", "f8")])
    assert outer.itemsize == 8 + 16 + 3 * 16 + 8 * 8  # and nothing between


def test_kernels_write_into_the_record_that_they_are_given() -> None:
    outers = np.zeros(3, dtype_of(Outer))
    assert [fill(outers, 1, 0.5), fill(outers, 1, 0.25)] == [1, 2]
    assert (outers[1].inner.at, outers[1].pairs[2].share, outers[1].table[1, 3]) == (1, 0.25, 0.25)
    assert outers[0].count == outers[2].count == 0
    step(outers[2])
    direct(step)(outers[2])
    assert outers[2].inner.at == 2
    assert outers["inner"]["at"].tolist() == [0, 1, 2]


def test_bundles_are_named_tuples_of_what_kernels_know() -> None:
    places = np.zeros(1, dtype_of(Inner))
    places[0].share = 0.75
    numbers = np.arange(3)
    for call in (sums, direct(sums)):
        assert call(Both(numbers, places), Alike(numbers, numbers), False) == (9, 0.75)
        assert call(Both(numbers, places), Alike(numbers, numbers), True) == (18, 0.75)


def test_only_what_is_said_to_be_read_may_be_read_only() -> None:
    texts, ids = np.ones((1, 4), np.int32), np.arange(4, dtype=np.int32)
    ids.flags.writeable = False
    assert last_of(texts, ids, 3) == 4
    texts.flags.writeable = False
    with pytest.raises(TypeError):
        last_of(texts, ids, 3)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (last_of, (np.ones((1, 4), np.int64), np.ones(4, np.int32), 3)),
        (last_of, (np.ones(4, np.int32), np.ones(4, np.int32), 3)),
        (last_of, (np.ones((4, 4), np.int32)[:, ::2], np.ones(4, np.int32), 1)),
        (fill, (np.zeros(2, dtype_of(Inner)), 0, 0.5)),
        (step, (np.zeros(2, np.int64),)),
        (sums, ((np.arange(3), np.zeros(1, dtype_of(Inner))), Alike(np.arange(3), np.arange(3)), True)),
    ],
)
def test_other_types_are_refused_and_compile_nothing(function: Any, args: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        function(*args)
    assert len(function.nopython_signatures) == 1


def made_of(**annotations: Any) -> Any:
    def function(first, second):
        return 1

    function.__annotations__ = annotations
    return function


@pytest.mark.parametrize(
    ("annotations", "named"),
    [
        ({"first": str, "second": int, "return": int}, "function: first needs a type that kernels know, got .*str"),
        ({"first": int, "second": np.ndarray, "return": int}, "function: second needs"),
        ({"first": int, "second": list[str], "return": int}, "function: second needs"),
        ({"first": int, "second": tuple[int, str], "return": int}, "function: second needs"),
        ({"first": int, "second": Path, "return": int}, "function: second needs"),
        ({"first": int, "second": Any, "return": int}, "function: second needs"),
        ({"second": int, "return": int}, "function: first needs a type that kernels know, got none"),
        ({"first": int, "second": int}, "function: return needs a type that kernels know, got none"),
    ],
    ids=str,
)
def test_an_annotation_that_kernels_do_not_know_is_refused_by_name(annotations: dict[str, Any], named: str) -> None:
    with pytest.raises(TypeError, match=named):
        kernel(made_of(**annotations))


@pytest.mark.parametrize("hint", [str, bool, np.ndarray, list[int], Any])
def test_a_field_that_no_record_can_have_is_refused(hint: Any) -> None:
    with pytest.raises(TypeError, match="expected int, float or a record"):
        record(type("Odd", (), {"__annotations__": {"at": hint}}))
    with pytest.raises(TypeError, match="expected int, float or a record"):
        dtype_of(int)


def test_wrong_code_is_no_kernel() -> None:
    def wrong(first: int) -> int:
        return first.no_such_thing  # type: ignore[attr-defined]

    with pytest.raises(Exception, match="no_such_thing"):
        kernel(wrong)


WORK = """
import json
import numpy as np
from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.measure.replay import walk_known
from zerodraft.lookup.memory.draft_memory import DraftMemory
from zerodraft.lookup.policy import DraftPolicy
from zerodraft.lookup.serving.lines import SessionLines

def shown(draft):
    return [draft.token_ids.tolist(), draft.parents.tolist(), np.round(draft.probs, 5).tolist(), draft.source.tolist()]

def work(folder):
    text = [1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 6, 8, 1, 2, 3]
    stored = list(range(40, 70))
    memory = DraftMemory(1000, directory=folder)
    memory.add(stored)
    memory.save()
    memory = DraftMemory.load(folder)
    memory.add(stored[:5] + [99])
    found = [shown(memory.propose(stored[3:9], 4))]
    small = DraftPolicy(max_draft_tokens=8, max_branches=3)
    for options in ({}, {"memory": memory}, {"suffix_tree": True}, {"recycle": True}):
        session = Drafter(policy=small, **options).begin(text, text[:6])
        for output in ([4, 5, 9, 40, 41], [42, 43, 44, 1], [2, 3, 7, 3, 4]):
            draft = session.propose(8)
            outcome = walk_known(draft, output, 0)
            topk = np.tile(np.arange(8, dtype=np.int32), (1 + len(draft), 1))
            new_ids = (*outcome.new_ids, 50)
            session.commit(draft, Outcome(path=outcome.path, new_ids=new_ids, stop=outcome.stop, topk=topk))
            found.append(shown(draft))
        session.index.check_integrity()
        session.finish(remember=options.get("memory") is not None)
    chains = DraftPolicy(max_draft_tokens=8, max_branches=1)
    first = Drafter(policy=small, recycle=True).begin([5])  # of which no pair of tokens is known
    found.append(shown(first.propose(4)))
    lines = SessionLines(Drafter(policy=chains, memory=memory), 8)
    rows = np.array([[*text, 4, 5, 9, 1], [*text[:8], *stored[:11]]], np.int32)
    numbers = np.array([lines.begin(rows[0, :15]), lines.begin(rows[1, :15])])
    status, ones = np.zeros(2, np.int64), np.ones(2, np.int64)
    for length in range(16, 20):
        assert lines.step(rows, np.array([length, length]), ones, numbers, status, 40, True) == 0
        found.append([lines.drafts[row, : lines.num_drafted[row]].tolist() for row in range(2)])
    return found
"""


def test_kernels_are_plain_python_where_numba_is_off(tmp_path: Path) -> None:
    """NUMBA_DISABLE_JIT=1, as one debugs: sessions with every source, files of a memory, lines: the same drafts."""
    plain = str(tmp_path / "plain")
    code = f"{WORK}\nfrom numba import config\nassert config.DISABLE_JIT\nprint(json.dumps(work({plain!r})))"
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    compiled: dict[str, Any] = {}
    exec(WORK, compiled)
    expected = compiled["work"](str(tmp_path / "compiled"))
    assert json.loads(done.stdout) == json.loads(json.dumps(expected))
    assert sum(len(draft[0]) for draft in expected[:14]) > 20  # something is drafted
    assert any(chain for chains in expected[14:] for chain in chains)
