"""The vLLM proposer without vLLM: a stand-in module takes its place; ``make test-vllm`` runs the real engine."""

from __future__ import annotations

import importlib
import json
import logging
import subprocess
import sys
import time
import types
from types import SimpleNamespace

import numpy as np
import pytest

from zerodraft.lookup.memory.draft_memory import DraftMemory

NAME = "zerodraft.integrations.serving.vllm"


@pytest.fixture
def module(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    monkeypatch.delenv("ZERODRAFT_CONFIG", raising=False)
    yield importlib.import_module(NAME)
    sys.modules.pop(NAME, None)


def config(num_speculative_tokens=8, max_model_len=100, **model) -> SimpleNamespace:
    """As much of vLLM's configuration as the proposer reads."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=num_speculative_tokens),
        model_config=SimpleNamespace(
            max_model_len=max_model_len, hf_config=SimpleNamespace(eos_token_id=[2, 3]), **model
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, rank=0),
    )


def buffer(*texts: list[int], width: int = 100) -> tuple[np.ndarray, np.ndarray]:
    rows, lengths = np.zeros((4, width), np.int32), np.zeros(4, np.int32)
    for row, text in enumerate(texts):
        rows[row, : len(text)] = text
        lengths[row] = len(text)
    return rows, lengths


def write_options(path, monkeypatch, **options) -> None:
    path.write_text(json.dumps(options))
    monkeypatch.setenv("ZERODRAFT_CONFIG", str(path))


def test_without_vllm_the_import_says_what_to_install():
    code = "import sys; sys.modules['vllm'] = None; import zerodraft.integrations.vllm"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.count("Traceback") == 1
    assert "needs vLLM: pip install 'zerodraft[vllm]'" in done.stderr.splitlines()[-1]


def test_the_matching_needs_no_vllm():
    imports = "import sys, zerodraft.integrations.serving.engine_rows, zerodraft.integrations.serving.options"
    code = f"{imports}; print('vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_drafts_go_on_and_keep_to_the_engines_bounds(module):
    proposer = module.Proposer(config())
    text = [*range(10, 40), *range(10, 15)]
    rows, lengths = buffer(text, text[:-1], [7, 8, 9])
    drafts = proposer.propose([[14], [], [9]], lengths, rows, slot_mappings=None)
    assert drafts[0] == list(range(15, 23))
    assert drafts[1] == []
    assert len(drafts) == 3
    assert proposer.load_model(object()) is None
    for length in range(93, 101):  # a draft and the token after it must fit
        rows, lengths = buffer(([*range(10, 40)] * 4)[:length])
        (draft,) = proposer.propose([[1]], lengths, rows)
        assert len(draft) <= max(0, 100 - length - 1)
        assert (len(draft) > 0) == (length < 99)


@pytest.mark.parametrize("num", [0, -1, 129, 2.5, None])
def test_the_engines_draft_length_is_checked(module, num):
    with pytest.raises(ValueError, match="num_speculative_tokens"):
        module.Proposer(config(num))


def test_prompt_embeddings_are_refused(module):
    with pytest.raises(ValueError, match="prompt embeddings"):
        module.Proposer(config(enable_prompt_embeds=True))


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_whatever_comes_the_engine_goes_on(module, caplog):
    proposer = module.Proposer(config())
    rows, lengths = buffer([1, 2, 1, 2, 1])
    good = proposer.propose([[1]], lengths, rows)
    assert good != [[]]
    odd = [
        ([[1]], lengths, rows.astype(np.int64)),
        ([[1]], lengths, rows[:, ::2]),
        ([[1]], lengths, None),
        ([[1]], None, rows),
        ([[1]], lengths[:0], rows),
        ([[1]] * 9, lengths, rows),
        ([[1]], lengths.astype(float) * np.nan, rows),
        ([1], lengths, rows),
    ]
    with caplog.at_level(logging.WARNING, "vllm"):
        for arguments in odd:
            assert proposer.propose(*arguments) == [[]] * len(arguments[0])
        assert proposer.propose(None, lengths, rows) == []
        assert proposer.propose([], lengths, rows) == []
    assert proposer.counts["failed_steps"] + proposer.counts["odd_rows"] == len(odd) + 1
    assert sum("failed_steps" in record.message for record in caplog.records) == 1
    assert proposer.propose([[1]], lengths, rows) == good


def test_what_finished_is_remembered_saved_and_drafted_by_the_next_engine(module, tmp_path, monkeypatch):
    options = {"memory_tokens": 10_000, "memory_directory": str(tmp_path / "m"), "namespace": "a", "sync_seconds": 3600}
    write_options(tmp_path / "o.json", monkeypatch, **options)
    proposer = module.Proposer(config())
    rows, lengths = buffer([1, *range(50, 80), 2, 90])
    proposer.propose([[*range(50, 80), 2, 90]], lengths, rows)
    proposer.close()
    proposer.close()
    assert DraftMemory(10_000, directory=tmp_path / "m").propose([54, 55, 56], 99, "a").token_ids.tolist()[-1] == 2
    second = module.Proposer(config())
    rows, lengths = buffer([9, 60, 61, 62])
    assert second.propose([[62]], lengths, rows)[0][:2] == [63, 64]
    second.close()
    write_options(tmp_path / "o.json", monkeypatch, **options | {"namespace": "b"})
    third = module.Proposer(config())
    assert third.propose([[62]], lengths, rows) == [[]]
    third.close()


def test_an_idle_engine_publishes_its_last_texts_though_no_step_comes(module, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.05)
    write_options(
        tmp_path / "o.json", monkeypatch, memory_tokens=1000, memory_directory=str(tmp_path), sync_seconds=0.1
    )
    proposer = module.Proposer(config())
    rows, lengths = buffer([1, *range(50, 80)])
    proposer.propose([[*range(50, 80)]], lengths, rows)
    other = DraftMemory(1000, directory=tmp_path)
    for _ in range(300):
        if other.refresh():
            break
        time.sleep(0.02)
    assert other.propose([54, 55, 56], 2).token_ids.tolist() == [57, 58]
    assert proposer._rows.num_sessions == 0
    rows, lengths = buffer([9, 60, 61, 62])
    assert proposer.propose([[62]], lengths, rows)[0][:2] == [63, 64]
    proposer.close()


def test_an_engine_that_works_keeps_its_texts(module, tmp_path, monkeypatch):
    options = {"memory_tokens": 1000, "memory_directory": str(tmp_path), "sync_seconds": 3600}
    write_options(tmp_path / "o.json", monkeypatch, **options)
    proposer = module.Proposer(config())
    rows, lengths = buffer([1, *range(50, 80)])
    proposer.propose([[*range(50, 80)]], lengths, rows)
    proposer._finish_if_idle()
    assert proposer._rows.num_sessions == 1
    proposer._last_step -= 10
    proposer._finish_if_idle()
    assert proposer._rows.num_sessions == 0
    proposer.close()


def test_by_default_requests_share_nothing(module):
    proposer = module.Proposer(config())
    rows, lengths = buffer([1, *range(50, 80)])
    proposer.propose([[*range(50, 80)]], lengths, rows)
    rows, lengths = buffer([9, 60, 61, 62])
    assert proposer.propose([[62]], lengths, rows) == [[]]


def test_one_of_the_tensor_parallel_workers_remembers(module, tmp_path, monkeypatch):
    write_options(tmp_path / "o.json", monkeypatch, memory_tokens=1000)
    for rank, kept in ((0, 30), (1, 0), (2, 30)):
        settings = config()
        settings.parallel_config = SimpleNamespace(tensor_parallel_size=2, rank=rank)
        proposer = module.Proposer(settings)
        rows, lengths = buffer([1, *range(50, 80)])
        proposer.propose([[*range(50, 80)]], lengths, rows)
        proposer.close()
        assert proposer.counts["tokens_remembered"] == kept


def test_ids_that_the_model_does_not_have_are_left_out_and_counted(module, tmp_path, monkeypatch):
    """Case 42: a memory may come from a model with more ids."""
    memory = DraftMemory(1000, directory=tmp_path / "memory")
    memory.add([10, 11, 12, 13, 14, 15, 500, 16, 17])
    memory.save()
    write_options(tmp_path / "options.json", monkeypatch, memory_tokens=1000, memory_directory=str(tmp_path / "memory"))
    drafted = {}
    for size in (500, 501):
        proposer = module.Proposer(config(get_vocab_size=lambda size=size: size))
        rows, lengths = buffer([9, 10, 11, 12, 13])
        (drafted[size],) = proposer.propose([[13]], lengths, rows)
        left_out = proposer.counts["tokens_left_out"]
        assert (left_out > 0) == (size == 500)
        proposer.close()
    assert drafted[500] == [14, 15]
    assert drafted[501][:3] == [14, 15, 500]
