"""Options of the serving proposer: read from JSON and TOML, wrong ones refused by name, every one with an effect."""

from __future__ import annotations

import dataclasses
import json
import sys
import time

import numpy as np
import pytest

from zerodraft.integrations.serving.engine_rows import EngineRows
from zerodraft.integrations.serving.memory_sync import MemorySync
from zerodraft.integrations.serving.options import ACCELERATOR, ServingOptions
from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.memory.draft_memory import DraftMemory


def load(path, content) -> ServingOptions:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return ServingOptions.load(path)


def test_nothing_said_is_the_defaults(tmp_path):
    assert load(tmp_path / "o.json", {}) == ServingOptions()
    assert ServingOptions().curve == ACCELERATOR
    assert ServingOptions().drafter(8).memory is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 reads no TOML")
def test_toml_and_json_say_the_same(tmp_path):
    toml = 'memory_tokens = 500\nnamespace = "a"\nsync_seconds = 2.5\n[cost]\npoints = [[1, 1.0], [8, 2.0]]\n'
    told = {"memory_tokens": 500, "namespace": "a", "sync_seconds": 2.5, "cost": {"points": [[1, 1.0], [8, 2.0]]}}
    assert load(tmp_path / "o.toml", toml) == load(tmp_path / "o.json", told)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"memmory_tokens": 1}, "memmory_tokens"),
        ({"max_draft_tokens": 0}, "max_draft_tokens"),
        ({"max_draft_tokens": "8"}, "max_draft_tokens"),
        ({"prompt_lookup_min": 0}, "prompt_lookup_min"),
        ({"prompt_lookup_min": 9, "prompt_lookup_max": 8}, "prompt_lookup_max"),
        ({"prompt_lookup_max": 10**9}, "prompt_lookup_max"),
        ({"cost": "gpu"}, "cost"),
        ({"cost": {"points": [[1, 1.0]]}}, "points"),
        ({"cost": {"points": [[1, 1.0], [2, 1.1]], "unit": "s"}}, "unit"),
        ({"cost": {}}, "points"),
        ({"memory_tokens": -1}, "memory_tokens"),
        ({"memory_tokens": True}, "memory_tokens"),
        ({"memory_tokens": 1}, "memory_tokens"),  # could never match
        ({"memory_tokens": 9, "prompt_lookup_min": 9}, "memory_tokens"),
        ({"memory_directory": "x"}, "memory_tokens"),
        ({"memory_directory": "", "memory_tokens": 5}, "memory_directory"),
        ({"namespace": 3}, "namespace"),
        ({"remember": "all"}, "remember"),
        ({"sync_seconds": 0}, "sync_seconds"),
        ({"sync_seconds": "often"}, "sync_seconds"),
        ({"phrases": 3}, "phrases"),
        ({"finish_after": 0}, "finish_after"),
    ],
)
def test_wrong_options_are_refused_by_name_and_file(tmp_path, options, named):
    with pytest.raises(ValueError, match=named) as caught:
        load(tmp_path / "o.json", options)
    assert str(tmp_path / "o.json") in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("o.json", "{"),
        ("o.json", "[]"),
        ("o.json", b"\xff".decode("latin1") + "{"),
        ("o.yaml", "{}"),
        ("o.toml", "= 3"),
    ],
)
def test_files_that_are_none_are_refused(tmp_path, name, content):
    with pytest.raises(ValueError, match=name):
        load(tmp_path / name, content)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"gone\.json"):
        ServingOptions.load(tmp_path / "gone.json")
    with pytest.raises(ValueError, match="phrases"):
        ServingOptions(phrases=str(tmp_path / "gone")).drafter(8)


def drafted(options: ServingOptions, text: list[int], new: int = 1, rows: int = 1) -> list[int]:
    """What the first of ``rows`` equal rows drafts."""
    most = options.longest(16)
    engine = EngineRows(options.drafter(16), max_draft_tokens=most, max_rows=64, max_length=500)
    texts = np.zeros((rows, 500), np.int32)
    texts[:, : len(text)] = text
    return engine.step([[0] * new] * rows, np.full(rows, len(text)), texts)[0]


def test_every_option_that_says_what_is_drafted_has_an_effect(tmp_path):
    page = [int(token) for token in np.random.default_rng(0).integers(0, 10**6, 100)]
    text = [*page, *page[:9]]
    plain = drafted(ServingOptions(), text)
    assert plain == page[9:25]
    assert drafted(ServingOptions(max_draft_tokens=3), text) == page[9:12]
    assert drafted(ServingOptions(prompt_lookup_min=10), text) == []
    dear = ServingOptions(cost={"points": [[1, 1.0], [2, 2.0]]})
    assert 0 <= len(drafted(dear, text)) < 16
    some = {"points": [[1, 1.0], [30, 2.0]]}
    short = ServingOptions(cost=some, prompt_lookup_max=1)  # a match of one token is little evidence
    assert len(drafted(short, text)) < len(drafted(ServingOptions(cost=some), text))
    dearer = ServingOptions(cost={"points": [[1, 1.0], [30, 2.0]]})
    assert len(drafted(dearer, text, rows=40)) < len(drafted(dearer, text, rows=1))  # rows share the forward
    phrases = pytest.importorskip("ahocorasick") and ServingOptions(phrases=str(tmp_path / "p.json"))
    from zerodraft.lookup.sources.phrases import PhraseBook

    PhraseBook([[5, 6, 7, 8, 9, 10]]).save(tmp_path / "p.json")
    assert drafted(phrases, [1, 5, 6, 7, 8])[:1] == [9]
    assert drafted(ServingOptions(), [1, 5, 6, 7, 8]) == []


def test_every_field_is_tried_here_or_in_the_proposers_tests():
    tried = {"memory_tokens", "memory_directory", "namespace", "remember", "sync_seconds", "finish_after"}  # test_vllm
    here = {"max_draft_tokens", "prompt_lookup_min", "prompt_lookup_max", "cost", "phrases"}
    assert {field.name for field in dataclasses.fields(ServingOptions)} == tried | here


def test_the_sync_thread_publishes_and_takes_in(tmp_path):
    ours, theirs = (DraftMemory(1000, directory=tmp_path) for _ in range(2))
    syncs = [MemorySync(memory, 0.02) for memory in (ours, theirs)]
    ours.add(list(range(50)))
    for _ in range(500):
        if theirs.num_tokens:
            break
        time.sleep(0.02)
    assert theirs.propose([4, 5, 6], 3).token_ids.tolist() == [7, 8, 9]
    for sync in syncs:
        sync.close()
        sync.close()
    assert [sync.num_failures for sync in syncs] == [0, 0]


def test_a_directory_that_is_gone_or_damaged_is_said_once_and_drafting_goes_on(tmp_path, caplog):
    memory = DraftMemory(1000, directory=tmp_path)
    memory.add(list(range(50)))
    sync = MemorySync(memory, 3600)
    (tmp_path / "manifest.json").write_text("no manifest")
    for _ in range(3):
        sync.sync()
    assert sync.num_failures == 3
    assert len(caplog.records) == 1
    assert memory.propose([4, 5, 6], 3).token_ids.tolist() == [7, 8, 9]
    (tmp_path / "manifest.json").unlink()
    sync.close()
    assert DraftMemory(1000, directory=tmp_path).num_tokens == 50


def test_a_curve_may_be_given_as_it_describes_itself() -> None:
    """Case 48: ``CostCurve.as_dict`` with all that is in it was refused."""
    curve = CostCurve([(1, 1.0), (9, 2.0)], [(1, 1.5), (9, 4.0)], (100, 900), row_cost=0.25)
    assert ServingOptions(cost=curve.as_dict()).curve == curve
    with pytest.raises(ValueError, match=r"got \['colour'\]"):
        ServingOptions(cost=curve.as_dict() | {"colour": 1})
