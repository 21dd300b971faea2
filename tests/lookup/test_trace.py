"""A trace says what happened at each step, and agrees with the counters."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from zerodraft.lookup.draft import MEMORY, RECYCLED, Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.measure.replay import replay
from zerodraft.lookup.measure.stats import GenerationStats
from zerodraft.lookup.measure.trace import Step, Trace

TEXT = [*range(10, 40), 1, *range(10, 25), 2, *range(20, 40)]


def scripted() -> GenerationStats:
    stats = GenerationStats(trace=Trace())
    stats.record(Draft.empty(), Outcome((), (7,)), is_prefill=True, seconds=0.5)
    stats.record(Draft.chain([8, 9, 10], source=MEMORY), Outcome((0, 1), (8, 9, 3), stop="rejected"), seconds=0.25)
    stats.record(Draft.chain([4, 5], source=RECYCLED), Outcome((0, 1), (4, 5), stop="eos"), seconds=0.25)
    return stats


def test_steps_of_a_scripted_run() -> None:
    trace = scripted().trace
    assert trace is not None
    assert trace.steps == [
        Step(0, 0, 1, (), 0.5, True),
        Step(0, 3, 3, (MEMORY, MEMORY), 0.25, False),
        Step(0, 2, 2, (RECYCLED, RECYCLED), 0.25, False),
    ]
    assert trace.sources() == ["plain", "memory", "memory", "plain", "recycled", "recycled"]
    assert trace.prob_sums[9].tolist() == [5, 5.0, 4]
    plain = json.loads(json.dumps(trace.as_dict()))
    assert plain["sources"] == ["", "22", "44"]
    assert plain["num_emitted"] == [1, 3, 2]


def test_window_nodes_are_no_promise() -> None:
    trace = Trace()
    draft = Draft.tree([5, 6], [-1, -1], verify=[True, False])
    trace.record(draft, Outcome((0,), (5, 9)), row=0, seconds=0.0, is_prefill=False)
    assert trace.steps[0].num_drafted == 2
    assert trace.prob_sums.sum(0).tolist() == [1, 1.0, 1]


def test_off_by_default_and_no_part_of_the_counters() -> None:
    assert GenerationStats().trace is None
    without, traced = GenerationStats(), scripted()
    without.record(Draft.empty(), Outcome((), (7,)), is_prefill=True)
    assert "trace" not in traced.as_dict()
    assert set(without.as_dict()) == set(traced.as_dict())
    without.merge(traced)
    assert without.trace is None


def test_merged_rows_get_numbers_of_their_own() -> None:
    one, two = scripted(), scripted()
    one.merge(two)
    assert one.trace is not None
    assert one.trace.sources(0) == one.trace.sources(1)
    assert [step.row for step in one.trace.steps] == [0, 0, 0, 1, 1, 1]
    assert one.trace.prob_sums[9].tolist() == [10, 10.0, 8]


@pytest.mark.parametrize("output", [TEXT, TEXT[:1], []])
def test_a_replays_trace_agrees_with_its_counters(output: list[int]) -> None:
    done = replay(Drafter().begin(TEXT), output, trace=True)
    stats, trace = done.stats, done.stats.trace
    assert trace is not None
    sources = trace.sources()
    assert len(sources) == len(output) == stats.num_emitted_tokens
    del_plain = Counter(sources)
    assert del_plain.pop("plain", 0) == stats.num_emitted_tokens - stats.num_accepted_tokens
    assert del_plain == stats.accepted_by_source
    assert np.array_equal(trace.prob_sums, done.prob_sums)
    assert sum(step.num_drafted for step in trace.steps) == stats.num_positions - stats.num_decode_forwards
    if output == TEXT:
        assert stats.num_accepted_tokens > 20
