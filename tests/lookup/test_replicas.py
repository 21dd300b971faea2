"""The short version of ``bench/serving/replicas.py``: four processes share a directory, one is killed (cases 6, 7)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from zerodraft.lookup.memory.draft_memory import DraftMemory

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL")
def test_four_replicas_share_a_directory():
    command = [sys.executable, BENCH, "replicas", "--seconds", "7", "--cap", "30000"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    figures = dict(line.split(": ") for line in result.stdout.splitlines())
    assert int(figures["most_tokens_listed"]) <= 30_000
    assert int(figures["found_of_another_namespace"]) == 0
    assert int(figures["found_of_another_replica"]) > 0


def test_what_another_process_pushed_out_is_still_drafted_until_the_next_refresh(tmp_path):
    """The oldest files are unlinked by whoever saves last; a reader keeps what it has mapped."""
    texts = [[1000 * number + i for i in range(900)] for number in range(4)]
    first, reader, second = (DraftMemory(2000, directory=tmp_path) for _ in range(3))
    first.add(texts[0], "a")
    first.save()
    reader.refresh()
    old = set(tmp_path.glob("*.zdseg"))
    for text in texts[1:]:
        second.add(text, "b")
        second.save()
    assert not old & set(tmp_path.glob("*.zdseg"))
    assert reader.propose(texts[0][50:60], 2, "a").token_ids.tolist() == texts[0][60:62]
    assert reader.refresh()
    assert len(reader.propose(texts[0][50:60], 2, "a")) == 0
    assert reader.propose(texts[3][50:60], 2, "b").token_ids.tolist() == texts[3][60:62]
    assert len(reader.propose(texts[3][50:60], 2, "a")) == 0
    assert DraftMemory(10**6, directory=tmp_path).num_tokens <= 2000


def test_what_waits_to_be_saved_is_said(tmp_path):
    memory = DraftMemory(100, directory=tmp_path)
    assert not memory.has_unsaved
    memory.add([1, 2, 3])
    assert memory.has_unsaved
    memory.save()
    assert not memory.has_unsaved
