"""The simulated target: what it accepts, what it counts, what it costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.measure.replay import Replay, replay, walk_known
from zerodraft.lookup.policy import DraftPolicy

small_text = st.lists(st.integers(0, 3), min_size=1, max_size=60)


class Scripted:
    """Proposes the drafts it is given, one per step."""

    def __init__(self, *drafts: Draft) -> None:
        self.drafts = list(drafts)
        self.outcomes: list[Outcome] = []

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Draft:
        return self.drafts.pop(0) if self.drafts else Draft.empty()

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


@pytest.mark.parametrize(
    ("ids", "parents", "path", "new", "stop"),
    [
        ([], [], (), [1], "full"),
        ([9], [-1], (), [1], "rejected"),
        ([1, 2], [-1, 0], (0, 1), [1, 2, 3], "full"),
        ([1, 7], [-1, 0], (0,), [1, 2], "rejected"),
        ([9, 1, 5, 2], [-1, -1, 1, 1], (1, 3), [1, 2, 3], "full"),
        ([9, 1, 1], [-1, 0, -1], (2,), [1, 2], "full"),
    ],
)
def test_walks_as_far_as_the_text_goes(ids, parents, path, new, stop):
    outcome = walk_known(Draft.tree(ids, parents), [0, 1, 2, 3, 4], 1)
    assert (outcome.path, list(outcome.new_ids), outcome.stop) == (path, new, stop)


def test_a_scripted_run_is_counted_exactly():
    session = Scripted(Draft.chain([1, 2, 9]), Draft.empty(), Draft.tree([8, 5], [-1, -1]))
    done = replay(session, [0, 1, 2, 3, 4, 5, 6])
    assert [list(outcome.new_ids) for outcome in session.outcomes] == [[0], [1, 2, 3], [4], [5, 6]]
    assert dict(done.forwards) == {4: 1, 1: 1, 3: 1}
    stats = done.stats
    assert (stats.num_draft_tokens, stats.num_accepted_tokens, stats.num_decode_forwards) == (5, 3, 3)
    assert (stats.num_drafts, stats.num_empty_drafts, stats.num_positions) == (2, 1, 8)
    assert done.num_decode_tokens == 6
    curve = CostCurve([(1, 1.0), (3, 1.5), (4, 2.0)])
    assert done.cost(curve) == pytest.approx(4.5)
    assert done.speedup(curve) == pytest.approx(6 / 4.5)


@given(small_text, small_text, st.integers(1, 40))
def test_replays_end_and_add_up_for_any_text(prompt, output, most):
    session = Drafter(policy=DraftPolicy(max_draft_tokens=most, cost=CostCurve([(1, 1.0), (2, 1.0)]))).begin(prompt)
    done = replay(session, output)
    stats = done.stats
    assert stats.num_emitted_tokens == len(output)
    assert session.index.token_ids.tolist() == [*prompt, *output]
    assert stats.num_emitted_tokens == stats.num_accepted_tokens + stats.num_row_steps + 1
    assert sum(count for count in done.forwards.values()) == stats.num_decode_forwards
    assert max(done.forwards, default=1) <= most + 1
    assert done.prob_sums[:, 0].sum() == stats.num_draft_tokens
    assert done.prob_sums[:, 2].sum() == stats.num_accepted_tokens
    assert done.cost(CostCurve([(1, 1.0), (2, 2.0)])) == pytest.approx(stats.num_positions)


def test_calibration_compares_promise_and_outcome():
    done = Replay()
    assert done.calibration_error == 0.0
    assert done.speedup(CostCurve([(1, 1.0), (2, 1.0)])) == 1.0
    done.prob_sums[9] = (10, 9.5, 10)
    done.prob_sums[2] = (30, 7.5, 3)
    assert done.calibration_error == pytest.approx((0.5 + 4.5) / 40)


def test_merging_adds_everything():
    parts = [replay(Drafter().begin([1, 2, 3, 1, 2]), [3, 1, 2, 3]) for _ in range(2)]
    total = Replay()
    for part in parts:
        total.merge(part)
    assert total.num_decode_tokens == 2 * parts[0].num_decode_tokens == 6
    assert total.forwards == parts[0].forwards + parts[1].forwards
    assert np.array_equal(total.prob_sums, 2 * parts[0].prob_sums)


def test_nothing_to_replay():
    assert replay(Drafter().begin([1]), []).stats.num_emitted_tokens == 0
    with pytest.raises(ValueError, match="output_ids"):
        replay(Drafter().begin([1]), [-1])
