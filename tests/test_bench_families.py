"""The sweep over all families, its table in the documentation, and the replay of restores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import support

from zerodraft import Drafter

PAGE = Path(__file__).resolve().parent.parent / "docs" / "models.md"


def test_one_class_of_each_way(monkeypatch):
    bench = support.bench_module("families")
    monkeypatch.setattr(bench, "NEW", 16)
    monkeypatch.setattr(bench, "LONG", ((64, 80),))
    for name, cls, way, exact in (
        ("llama", "LlamaForCausalLM", "trees", "exact"),
        ("bloom", "BloomForCausalLM", "chains", "in part"),
        ("mamba", "MambaForCausalLM", "refused", "refused"),
    ):
        done = bench.study(bench.tiny.Family(name, cls))
        assert (done["plain"], done["way"], done["exact"]) == ("ok", way, exact)
        if exact != "refused":
            assert done["tokens_per_forward"] > 3
        assert ("batch of 2" in done.get("batch", "")) == (way == "chains")


def test_a_class_that_is_not_exact_is_said_to_be_so(monkeypatch):
    """The sweep sees a cache that keeps what was rejected."""
    from zerodraft.integrations.hf.target import Target

    bench = support.bench_module("families")
    monkeypatch.setattr(Target, "keep", lambda self, entries: self.cache.set_lengths([self.cache.lengths[0] + 6]))
    done = bench.study(bench.tiny.Family("llama", "LlamaForCausalLM"))
    assert done["exact"] == "no"


def test_the_page_says_what_the_results_say():
    measure, table = support.bench_module("measure"), support.bench_module("families_table")
    rows = measure.read_csv("families")
    assert len(rows) > 300
    assert not [row["class"] for row in rows if row["plain"] == "ok" and row["exact"] == "no"]
    text = PAGE.read_text("utf-8")
    assert text.split(table.BEGIN)[1].split(table.END)[0].strip() == table.section(rows).strip()


def test_replayed_restores_by_hand():
    """A draft of 4 with 2 right: the root and 2 tokens are read again, beside the next root and draft."""
    from zerodraft.lookup.draft import Draft

    bench = support.bench_module("restores")
    tokens, drafts = list(range(10, 20)), {1: [11, 12, 99, 99], 4: [14, 15]}

    class Session:
        at = 0

        def propose(self, most, deep):
            return Draft.chain(drafts.get(self.at, []))

        def commit(self, draft, outcome):
            self.at += len(outcome.new_ids)

    done, counts = bench.run(Session(), tokens, bench.State(True))
    assert dict(done.forwards) == {5: 1, 3 + 3: 1, 1: 3}
    assert counts == {"replayed": 3, "restores": 1}
    done, counts = bench.run(Session(), tokens, bench.State(False))
    assert dict(done.forwards) == {5: 1, 3: 1, 1: 3}
    assert not +counts


def test_restores_bring_the_same_text_in_the_same_order():
    bench = support.bench_module("restores")
    tokens = np.random.default_rng(0).integers(0, 9, 300).tolist()
    for line in bench.LINES:
        state = bench.State(line.reads)
        session = line.drafter(Drafter(), state).begin(tokens[:50])
        done, _ = bench.run(session, tokens[50:], state)
        assert done.stats.num_emitted_tokens == 250
