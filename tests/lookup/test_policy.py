"""The adaptive policy against its oracle: where to copy, what a token is worth, how much to draft, what is learned."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import reference.copies
import reference.policy
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference.choice import best_net_worth, net_worth, tokens_per_cost
from reference.policy import Growth
from reference.replacements import Replacements

from zerodraft.lookup._merge import MIN_GAIN, MIN_RATE
from zerodraft.lookup._prices import WORTH_FACTOR, Tables
from zerodraft.lookup.copy._belief import MAX_DOUBT
from zerodraft.lookup.copy._text import WINDOW
from zerodraft.lookup.copy._work import LIMIT
from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import CONTEXT, PREDICTION, Draft, Outcome
from zerodraft.lookup.drafter import Drafter, DraftSession
from zerodraft.lookup.measure.replay import walk_known
from zerodraft.lookup.policy import NUM_STATES, DraftPolicy, priors

small_text = st.lists(st.integers(0, 2), max_size=60)
slopes = st.lists(st.floats(0.0, 0.5), min_size=1, max_size=6)
policies = st.builds(
    DraftPolicy,
    cost=st.builds(
        lambda rises: CostCurve([(1, 1.0), *((3 * i + 2, 1.0 + sum(rises[: i + 1])) for i in range(len(rises)))]),
        slopes,
    ),
    max_draft_tokens=st.integers(1, 24),
    max_branches=st.integers(1, 6),
    prompt_lookup_min=st.integers(1, 3),
    prompt_lookup_max=st.integers(3, 60),
)
FLAT = CostCurve([(1, 1.0), (2, 1.0)])
STEEP = CostCurve([(1, 1.0), (2, 2.0)])
GPU = CostCurve([(1, 1.0), (201, 2.0)])


def growth_of(session: DraftSession, policy: DraftPolicy, replacements: Replacements) -> tuple[Growth | None, list]:
    """The tree that the session's copies offer, not grown yet, and the copies; None if there is nothing to copy."""
    tokens = session.index.token_ids.tolist()
    copies = reference.copies.find_copies(
        tokens,
        session.copy_pointer,
        WINDOW,
        LIMIT,
        policy.prompt_lookup_min,
        policy.prompt_lookup_max,
        policy.max_branches,
        replacements.run,
    )
    if not copies or tokens[-1] < 0:
        return None, copies
    tables = policy.tables(1, len(tokens))
    source = PREDICTION if copies[0][0] < session._states[0].num_predicted else CONTEXT
    belief = reference.policy.believed(beliefs_of(session)[source].tolist())
    breaks, prices = tables.breaks.tolist(), tables.prices.tolist()
    return Growth(tokens, copies, belief, breaks, prices, replacements, policy.max_branches), copies


def beliefs_of(session: DraftSession) -> np.ndarray:
    """The session's log weights of the kinds of text, (sources, kinds)."""
    return session._states["beliefs"][0].copy()


def accept(session: DraftSession, draft: Draft, path: tuple[int, ...], more: list[int], stop: str = "rejected") -> None:
    new_ids = (*draft.token_ids[list(path)].tolist(), *more)
    session.commit(draft, Outcome(path=path, new_ids=new_ids, stop=stop))


class Beside:
    """A session and its oracle: every step is compared."""

    def __init__(self, policy: DraftPolicy, prompt: list[int], prediction: list[int]) -> None:
        self.policy, self.session = policy, Drafter(policy=policy).begin(prompt, prediction)
        self.replacements = Replacements()
        self._copies: list[tuple[int, int, int]] = []

    def propose(self, room: int, depth: int) -> Draft:
        draft = self.session.propose(room, depth)
        growth, self._copies = growth_of(self.session, self.policy, self.replacements)
        room = min(room, self.policy.max_draft_tokens)
        costs = self.policy.tables(1, len(self.session.index)).costs.tolist()
        nodes = reference.policy.adaptive_draft(growth, costs, room, min(depth, room)) if growth else []
        assert draft.token_ids.tolist() == [node.token for node in nodes]
        assert draft.parents.tolist() == [node.parent for node in nodes]
        assert draft.probs.tolist() == pytest.approx([node.prob for node in nodes], rel=1e-5)
        assert draft.match_len.tolist() == [node.match for node in nodes]
        assert draft.origin.tolist() == [node.origin for node in nodes]
        predicted = int(self.session._states[0].num_predicted)
        assert draft.source.tolist() == [PREDICTION if node.origin < predicted else CONTEXT for node in nodes]
        assert draft.verify.tolist() == [True] * len(nodes)
        dtypes = ["int32", "int32", "float32", "int32", "uint8", "int32", "bool"]
        assert [getattr(draft, field.name).dtype.name for field in dataclasses.fields(Draft)] == dtypes
        draft.check()
        return draft

    def accept(self, draft: Draft, path: tuple[int, ...], more: list[int], stop: str = "rejected") -> None:
        session = self.session
        weights, text, pointer = beliefs_of(session), session.index.token_ids.tolist(), session.copy_pointer
        accept(session, draft, path, more, stop)
        came = [*draft.token_ids[list(path)].tolist(), *more]
        assert session.index.token_ids.tolist() == text + came
        session.index.check_integrity()
        if path and 0 <= draft.origin[path[-1]] < len(text) + len(came):
            pointer = int(draft.origin[path[-1]]) + 1
        if not text or text[-1] < 0:
            return
        if not self._copies:
            there = self.replacements.close(text + came, len(text))
            assert session.copy_pointer == (there if there >= 0 else pointer)
            return
        source = PREDICTION if self._copies[0][0] < session._states[0].num_predicted else CONTEXT
        breaks = self.policy.tables(1, len(text)).breaks.tolist()
        weights[source], cursor = reference.policy.learned(
            weights[source].tolist(), breaks, text, came, self._copies[0], stop != "length", self.replacements
        )
        assert beliefs_of(session) == pytest.approx(weights)
        assert session.copy_pointer == (cursor if cursor >= 0 else pointer)


@settings(deadline=None)
@given(
    small_text,
    small_text,
    policies,
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(0, 3), st.integers(0, 2)), max_size=8),
)
def test_a_session_drafts_and_learns_what_the_oracle_does(prompt, prediction, policy, steps):
    both = Beside(policy, prompt, prediction)
    for room, depth, take, token in steps:
        draft = both.propose(room, depth)
        leaf = len(draft) - 1 if len(draft) and take else -1
        path = []
        while leaf >= 0:  # accept the path to the last node, or nothing
            path.insert(0, leaf)
            leaf = int(draft.parents[leaf])
        both.accept(draft, tuple(path[:take]), [token])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=12), min_size=2, max_size=6),
    st.lists(st.lists(st.integers(5, 7), min_size=0, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
    st.sampled_from(["rejected", "rejected", "rejected", "length"]),
    policies,
)
def test_texts_with_repeated_replacements_are_drafted_as_the_oracle_does(parts, news, choices, stop, policy):
    """The old text: parts with a marked word between them; the new one has other words in the marked places."""
    word = [8, 9]
    old = [token for part in parts for token in (*part, *word)]
    output: list[int] = []
    for part, choice in zip(parts, choices):
        output += [*part, *(news[choice] if choice < len(news) else word)]
    both = Beside(policy, old, [])
    at = 0
    while at < len(output):
        draft = both.propose(24, 24)
        outcome = walk_known(draft, output, at)
        both.accept(draft, outcome.path, list(outcome.new_ids[len(outcome.path) :]), stop)
        at += len(outcome.new_ids)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 2), min_size=2, max_size=12),
    slopes,
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 12),
)
def test_no_draft_that_could_be_cut_out_of_the_tree_is_worth_more(text, rises, branches, depth, room):
    """Definition: every set of nodes closed upwards is tried. Rule: nodes by worth, then as many of them as pay.

    The rule finds the best set wherever worth never rises on the way down; nothing else guarantees that. Where no set
    pays it may still draft, as many of its nodes as bring the most tokens per cost.
    """
    curve = CostCurve([(1, 1.0), *((2 * i + 2, 1.0 + sum(rises[: i + 1])) for i in range(len(rises)))])
    policy = DraftPolicy(cost=curve, max_draft_tokens=12, max_branches=branches)
    session = Drafter(policy=policy).begin(text)
    draft = session.propose(room, depth)
    growth, _ = growth_of(session, policy, Replacements())
    nodes = growth.grow(branches * depth, depth) if growth else []
    costs = policy.tables(1, len(text)).costs.tolist()
    parents, worths = [node.parent for node in nodes], [node.worth * WORTH_FACTOR for node in nodes]
    assume(all(up < 0 or worth <= worths[up] for up, worth in zip(parents, worths)))

    drafted = tuple(nodes.index(node) for node in nodes[: len(draft)])
    assert draft.token_ids.tolist() == [nodes[node].token for node in drafted]
    best = best_net_worth(parents, worths, costs, room)
    if best > MIN_GAIN + 1e-9:
        assert net_worth(drafted, worths, costs) == pytest.approx(best, abs=1e-9)
    elif drafted:
        rate = tokens_per_cost(drafted, [node.prob for node in nodes], costs)
        assert rate > MIN_RATE


def run_of(session: DraftSession, output: list[int]) -> list[int]:
    """Numbers of nodes drafted while a target writes exactly this."""
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(output[0],), stop="full"))
    at, widths = 1, []
    while at < len(output):
        draft = session.propose(4096, len(output) - at - 1)
        path: list[int] = []
        for node, parent in enumerate(draft.parents.tolist()):
            if parent == (path[-1] if path else -1) and draft.token_ids[node] == output[at + len(path)]:
                path.append(node)
        accept(session, draft, tuple(path), [output[at + len(path)]])
        at += len(path) + 1
        widths.append(len(draft))
    return widths


def test_slow_start_grows_while_the_copy_holds_and_collapses_at_a_divergence():
    text = list(range(1000, 2000))
    session = Drafter(policy=DraftPolicy(cost=GPU)).begin(text)
    output = [*text[:400], 7, *text[401:]]
    widths = run_of(session, output)
    assert widths[0] < widths[1]
    assert max(widths) >= 100
    assert len(widths) < 20


def test_the_dearer_the_positions_the_shorter_the_draft():
    text = [*range(100, 400), 100, 101]
    lengths = [
        len(Drafter(policy=DraftPolicy(cost=CostCurve([(1, 1.0), (1 + room, 2.0)]))).begin(text).propose(255))
        for room in (1000, 100, 20, 4)
    ]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]


def test_branches_are_drafted_where_positions_are_cheap_and_the_match_is_contested():
    text = [1, 5, 1, 6, 1, 7, 1, 8, 1]
    wide = Drafter(policy=DraftPolicy(cost=FLAT)).begin(text).propose(255)
    roots = wide.token_ids[wide.parents == -1].tolist()
    assert sorted(roots) == [5, 6, 7, 8]
    single = Drafter(policy=DraftPolicy(cost=FLAT, max_branches=1)).begin(text).propose(255)
    assert single.is_chain
    assert len(Drafter(policy=DraftPolicy(cost=STEEP)).begin(text).propose(255)) == 0


def test_more_rows_draft_less_and_many_rows_nothing():
    text = [*range(100, 400), 100, 101]
    curve = CostCurve([(1, 1.0), (65, 1.2), (129, 3.0), (257, 7.0)])
    session = Drafter(policy=DraftPolicy(cost=curve)).begin(text)
    lengths = [len(session.propose(255, num_rows=rows)) for rows in (1, 4, 16, 64, 256, 4096)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[2] > lengths[-1] == 0


def test_stands_down_with_a_reason_and_wakes_up():
    rng = np.random.default_rng(3)
    noise = rng.integers(0, 12, 400).tolist()
    copied = list(range(100, 300))
    session = Drafter(policy=DraftPolicy(cost=STEEP)).begin([*copied, *noise])
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(3,), stop="full"))
    for token in rng.integers(0, 12, 100).tolist():
        draft = session.propose(64)
        accept(session, draft, (), [token])
    assert session.stand_down_reason is not None
    assert session.stand_down_reason.startswith("stood down: expected 1.")
    assert "tokens for 2.00 cost" in session.stand_down_reason
    free = Drafter(policy=DraftPolicy(cost=GPU)).begin([*copied, *noise])
    for token in copied[:40]:
        draft = session.propose(64)
        accept(session, draft, (), [token])
    assert run_of(free, copied)[-1] > 0
    assert free.stand_down_reason is None


def test_nothing_to_match_is_said_so():
    session = Drafter().begin([1, 2, 3])
    for token in range(10, 20):
        accept(session, session.propose(8), (), [token])
    assert session.stand_down_reason == "stood down: nothing to copy at 10 of 10 steps"
    assert Drafter().begin([1, 2, 3]).stand_down_reason is None


@pytest.mark.parametrize("stop", ["eos", "stop", "length"])
def test_cuts_teach_nothing(stop):
    for teaches, reason in ((False, stop), (True, "rejected")):
        session = Drafter().begin([1, 2, 3, 4, 5, 1, 2])
        before = beliefs_of(session)
        draft = session.propose(3)
        session.commit(draft, Outcome(path=(), new_ids=(9,), stop=reason))
        assert (not np.array_equal(beliefs_of(session), before)) == teaches


def test_text_of_another_kind_is_noticed():
    """After many breaks at long matches the same match is trusted less, and never less than can be won back."""
    session = Drafter(policy=DraftPolicy(cost=GPU)).begin(list(range(100, 130)) * 3)
    fresh = session.propose(64).probs.copy()
    rng = np.random.default_rng(5)
    words = [list(range(100, 130))[i : i + 9] for i in range(20)]
    for _ in range(40):
        for token in [*words[int(rng.integers(20))], int(rng.integers(1000, 2000))]:
            accept(session, session.propose(64), (), [token])
    for token in range(100, 130):
        accept(session, Draft.empty(), (), [token])
    doubtful = session.propose(64).probs
    assert doubtful[5] < fresh[5]
    beliefs = beliefs_of(session)
    assert (beliefs.min(axis=1) >= beliefs.max(axis=1) - MAX_DOUBT - 1e-9).all()


def test_requests_learn_apart():
    drafter = Drafter()
    first = drafter.begin([1, 2, 3, 4, 1, 2])
    for token in (9, 1, 9, 2, 9):
        accept(first, first.propose(8), (), [token])
    used, fresh = drafter.begin([1, 2, 3, 4, 1, 2]), Drafter().begin([1, 2, 3, 4, 1, 2])
    assert used.propose(8).probs.tolist() == fresh.propose(8).probs.tolist()
    assert (beliefs_of(used) == priors()[1]).all()


def test_proposing_twice_changes_nothing():
    session = Drafter().begin([1, 2, 3, 4, 1, 2])
    first = session.propose(8)
    for _ in range(3):
        again = session.propose(8)
        assert (first.token_ids.tolist(), first.probs.tolist()) == (again.token_ids.tolist(), again.probs.tolist())
    assert (beliefs_of(session) == priors()[1]).all()


def test_moved_and_duplicated_blocks_of_a_prediction_are_found():
    rng = np.random.default_rng(1)
    blocks = [rng.integers(100, 5000, 60).tolist() for _ in range(6)]
    old = [token for block in blocks for token in block]
    new = [token for i in (0, 3, 1, 1, 5, 2, 4, 0) for token in blocks[i]]
    widths = run_of(Drafter(policy=DraftPolicy(cost=GPU)).begin([1, 2, 3], old), new)
    assert len(new) / len(widths) > 12


def test_tables_cover_every_state_and_cannot_be_written():
    tables = DraftPolicy(max_draft_tokens=16).tables()
    assert isinstance(tables, Tables)
    assert tables.breaks.shape == tables.prices.shape == (6, NUM_STATES)
    assert tables.costs.shape == tables.slopes.shape == (18,)
    assert ((tables.breaks > 0) & (tables.breaks <= 1)).all()
    assert (tables.prices[:, 1:] > 0).all()
    for table in tables:
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 1.0


@pytest.mark.parametrize(
    "options",
    [
        {"cost": 3},
        {"cost": "fast"},
        {"max_branches": 0},
        {"max_branches": 17},
        {"max_branches": True},
    ],
)
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        DraftPolicy(**options)


@pytest.mark.parametrize("num_rows", [0, -1, 1.5, 10**9])
def test_a_bad_number_of_rows_is_refused(num_rows):
    with pytest.raises(ValueError, match="num_rows"):
        Drafter().begin([1, 2, 1, 2]).propose(8, num_rows=num_rows)
