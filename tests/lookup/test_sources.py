"""Sources of one's own: they draft, are merged, learn, and cannot break a session (cases 1, 2, 5, 29)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerodraft.lookup import _block
from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import CONTEXT, CUSTOM, WINDOW, Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.lookahead.beside import Beside
from zerodraft.lookup.lookahead.lookahead import Lookahead
from zerodraft.lookup.measure.replay import replay, walk_known
from zerodraft.lookup.memory.draft_memory import DraftMemory
from zerodraft.lookup.policy import DraftPolicy
from zerodraft.lookup.sources.candidates import MAX_PARTS, Candidates
from zerodraft.lookup.sources.source import Source, Step

FREE = DraftPolicy(cost=CostCurve([(1, 1.0), (2, 1.0001)]))  # nodes cost next to nothing
Act = Callable[[Candidates], None]


class Toy(Source):
    """Does what it is told, and notes what it is told."""

    def __init__(self, propose: Act | None = None, complete: Act | None = None) -> None:
        self._propose, self._complete = propose, complete
        self.steps: list[Step] = []

    def propose(self, candidates: Candidates) -> None:
        if self._propose is not None:
            self._propose(candidates)

    def complete(self, candidates: Candidates) -> None:
        if self._complete is not None:
            self._complete(candidates)

    def learn(self, step: Step) -> None:
        self.steps.append(step._replace(text=step.text.copy()))


def session_of(*sources: Source, prompt: Any = (1, 2, 3), policy: DraftPolicy = FREE, **options: Any) -> Any:
    makes = [lambda _, source=source: source for source in sources]
    return Drafter(policy=policy, sources=makes, **options).begin(prompt)


def adding(*args: Any, **options: Any) -> Act:
    return lambda candidates: candidates.add(*args, **options)


class Refrain(Source):
    """A fixed phrase behind a certain token; it stands down after two that were wrong."""

    phrase, cue = (7, 8, 9), 1

    def __init__(self, prompt: np.ndarray) -> None:
        self.num_wrong = 0

    def propose(self, candidates: Candidates) -> None:
        if self.num_wrong < 2 and candidates.text[-1] == self.cue:
            candidates.add(self.phrase, probs=[0.8, 0.7, 0.6])

    def learn(self, step: Step) -> None:
        if step.text[step.start - 1] == self.cue and step.came[0] != self.phrase[0]:
            self.num_wrong += 1
            self.reason = "the phrase did not come" if self.num_wrong == 2 else None


# ---- drafting and merging --------------------------------------------------------------------------------------------


def test_a_source_drafts_and_saves_forwards() -> None:
    output = [token for i in range(30) for token in (1, 7, 8, 9, 100 + i)]
    drafter = Drafter(policy=FREE, sources=[Refrain])
    with_phrase, without = replay(drafter.begin([5]), output), replay(Drafter(policy=FREE).begin([5]), output)
    assert with_phrase.num_decode_tokens == without.num_decode_tokens
    assert with_phrase.stats.num_decode_forwards < without.stats.num_decode_forwards
    draft = drafter.begin([4, 5, 1]).propose(8)
    assert draft.token_ids.tolist() == [7, 8, 9]
    assert draft.source.tolist() == [CUSTOM] * 3
    assert draft.origin.tolist() == [-1] * 3
    assert draft.probs.tolist() == pytest.approx([0.8, 0.7, 0.6])


def test_a_source_learns_and_stands_down_with_its_reason() -> None:
    session = Drafter(policy=FREE, sources=[Refrain]).begin([5, 1])
    for number in range(2):
        draft = session.propose(8)
        assert draft.token_ids[draft.source == CUSTOM].tolist() == [7, 8, 9]
        session.commit(draft, Outcome(path=(), new_ids=(60 + number, 1), stop="rejected"))
    assert CUSTOM not in session.propose(8).source.tolist()
    assert session.stand_down_reason == "the phrase did not come"
    assert len(Drafter(policy=FREE, sources=[Refrain]).begin([5, 1]).propose(8)) == 3  # and only in that request


def test_the_same_token_in_the_same_place_is_one_node() -> None:
    """The text copies 3, 9; the source proposes 3, 4: one 3, which keeps its place in the text."""
    session = session_of(Toy(adding([3, 4], probs=[0.99, 0.9])), prompt=[1, 2, 3, 9, 1, 2])
    draft = session.propose(16, 2)
    draft.check()
    assert draft.token_ids.tolist().count(3) == 1
    shared = draft.token_ids.tolist().index(3)
    assert draft.origin[shared] == 2
    below = draft.token_ids[draft.parents == shared].tolist()
    assert sorted(below) == [4, 9]
    assert float(draft.probs[draft.token_ids == 4][0]) == pytest.approx(0.9)
    session.commit(draft, Outcome(path=(shared,), new_ids=(3, 50), stop="rejected"))
    assert session.copy_pointer == 3


def test_where_positions_are_expensive_nothing_unlikely_is_drafted() -> None:
    steep = DraftPolicy(cost=CostCurve([(1, 1.0), (2, 1.5)]))
    assert len(session_of(Toy(adding([4], probs=[0.2])), policy=steep).propose(8)) == 0
    assert len(session_of(Toy(adding([4], probs=[0.95])), policy=steep).propose(8)) == 1
    worthless = session_of(Toy(adding([4], probs=[0.5], prices=0.1)), policy=steep)
    assert len(worthless.propose(8)) == 0


def test_prices_decide_between_sources() -> None:
    """Two tokens of one probability, room for one of them."""
    for high, low in ((4, 5), (5, 4)):
        first, second = Toy(adding([high], probs=[0.4], prices=0.9)), Toy(adding([low], probs=[0.4], prices=0.5))
        assert session_of(first, second).propose(1).token_ids.tolist() == [high]
    cheap, worthy = Toy(adding([4], probs=[0.3], prices=0.2)), Toy(adding([5], probs=[0.2], prices=0.9))
    assert session_of(cheap, worthy).propose(1).token_ids.tolist() == [5]


def test_a_source_completes_what_all_proposed() -> None:
    seen = []

    def look(candidates: Candidates) -> None:
        tree = candidates.tree[:, : candidates.num_nodes]
        seen.append((tree[_block.TOKEN].tolist(), candidates.first_prob))

    session_of(Toy(adding([4, 5], probs=[0.5, 0.4])), Toy(adding([6], probs=[0.3]), look)).propose(8)
    assert seen == [([4, 5, 6], pytest.approx(0.5))]


@settings(max_examples=150)
@given(
    st.lists(st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 4), st.integers(1, 8)), max_size=6), max_size=4),
    st.lists(st.integers(0, 4), min_size=1, max_size=20),
    st.integers(0, 12),
    st.integers(0, 6),
)
def test_whatever_sources_propose_the_draft_is_a_tree_within_its_bounds(
    proposals: list[list[tuple[int, int, int]]], prompt: list[int], budget: int, depth: int
) -> None:
    sources = []
    for nodes in proposals:
        ids, parents, probs = [], [], []
        for parent, token, eighths in nodes:
            up = min(parent, len(ids) - 1)
            if (up, token) not in list(zip(parents, ids)):
                ids.append(token)
                parents.append(up)
                probs.append(eighths / 8 * (probs[up] if up >= 0 else 1.0))
        sources.append(Toy(adding(ids, parents, probs=probs)))
    memory = DraftMemory(100)
    memory.add(prompt)
    session = session_of(*sources, prompt=prompt, memory=memory)
    for _ in range(3):
        draft = session.propose(budget, depth)
        draft.check()
        assert len(draft) <= budget
        depths: list[int] = []
        for parent in draft.parents.tolist():
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        assert max(depths, default=0) <= depth
        assert ((draft.probs >= 0) & (draft.probs <= 1)).all()
        session.commit(draft, walk_known(draft, [*draft.token_ids[:2].tolist(), 3, 1], 0))


def test_impossible_tokens_are_drafted_by_nobody() -> None:
    """A probability of nought is one: such nodes, and those below them, are left out."""
    nought = Toy(adding([4, 5], probs=[0.0, 0.0]))
    assert len(session_of(nought).propose(8)) == 0
    both = session_of(nought, Toy(adding([4, 6], probs=[0.5, 0.4]))).propose(8)
    assert both.token_ids.tolist() == [4, 6]
    assert len(session_of(Toy(adding([4, 5, 6], probs=[0.5, 0.0, 0.0]))).propose(8)) == 1


def test_more_proposals_than_there_is_room_for_are_left_out() -> None:
    def many(candidates: Candidates) -> None:
        for token in range(3 * MAX_PARTS):
            candidates.add([token], probs=[0.9 / (token + 1)])

    memory = DraftMemory(100)
    memory.add([1, 2, 3, 900])
    draft = session_of(Toy(many), prompt=[3, 800, 1, 2, 3], memory=memory, recycle=True).propose(200)
    draft.check()
    assert {0, 1, 2} <= set(draft.token_ids.tolist())
    assert len(draft) <= MAX_PARTS + 3


# ---- what rides along ------------------------------------------------------------------------------------------------


def test_what_rides_along_is_computed_and_never_verified() -> None:
    toy = Toy(adding([4, 5], probs=[0.5, 0.4]), lambda candidates: candidates.ride_along([7, 8, 8], [-1, 0, -1], 1.0))
    session = session_of(toy)
    draft = session.propose(8)
    draft.check()
    assert draft.token_ids.tolist() == [4, 5, 7, 8, 8]
    assert draft.parents.tolist() == [-1, 0, -1, 2, -1]
    assert draft.verify.tolist() == [True, True, False, False, False]
    assert draft.probs.tolist() == pytest.approx([0.5, 0.4, 0, 0, 0])
    assert draft.source.tolist() == [CUSTOM, CUSTOM, WINDOW, WINDOW, WINDOW]
    session.commit(draft, Outcome(path=(0,), new_ids=(4, 7), stop="rejected"))
    assert toy.steps[0].is_own


def test_what_rides_along_keeps_its_price_and_the_budget() -> None:
    slope = DraftPolicy(cost=CostCurve([(1, 1.0), (101, 11.0)]))  # 0.1 for each position
    for worth, rides in ((0.25, False), (0.35, True)):
        ride = lambda candidates, worth=worth: candidates.ride_along([7, 8, 9], [-1, 0, 1], worth)  # noqa: E731
        draft = session_of(Toy(None, ride), policy=slope).propose(8)
        assert len(draft) == (3 if rides else 0)
        assert not draft.verify.any()
    chain = adding(list(range(10, 20)), probs=np.linspace(0.9, 0.8, 10))
    draft = session_of(Toy(chain, lambda candidates: candidates.ride_along([7, 8, 9], [-1, 0, 1], 1.0))).propose(8)
    assert draft.verify.tolist() == [True] * 5 + [False] * 3


# ---- what a source is told -------------------------------------------------------------------------------------------


def test_a_source_is_told_what_came() -> None:
    toy = Toy(adding([4, 5], probs=[0.9, 0.8]))
    session = session_of(toy)
    own = session.propose(8)
    session.commit(own, Outcome(path=(0,), new_ids=(4, 9), stop="rejected"))
    session.propose(8)
    session.commit(Draft.chain([6]), Outcome(path=(0,), new_ids=(6, 8), stop="length"))
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(7,), stop="full"))
    first, second, third = toy.steps
    assert first.text.tolist() == [1, 2, 3, 4, 9]
    assert first.came.tolist() == [4, 9]
    assert (first.start, first.is_own, first.may_break) == (3, True, True)
    assert (second.came.tolist(), second.is_own, second.may_break) == ([6, 8], False, False)
    assert (third.came.tolist(), third.is_own) == ([7], False)
    assert [step.draft for step in toy.steps[:1]] == [own]


def test_a_source_sees_the_text_and_the_bounds() -> None:
    seen = []
    note = lambda c: seen.append((c.text.tolist(), c.max_nodes, c.max_depth, c.price))  # noqa: E731
    session = Drafter(policy=FREE, sources=[lambda prompt: Toy(note)]).begin([1, 2], [8, 9])
    session.propose(20, 3)
    assert seen[0][:3] == ([8, 9, -1, 1, 2], 20, 3)
    assert 0 < seen[0][3] <= 1
    session.propose(0)  # nobody is asked for nothing
    session.propose(4, 0)
    assert len(seen) == 1


def test_each_request_has_its_own_source_and_the_prompt() -> None:
    prompts = []

    def make(prompt: np.ndarray) -> Source:
        prompts.append(prompt.tolist())
        return Toy()

    drafter = Drafter(sources=[make])
    drafter.begin([1, 2])
    drafter.begin([3], [4])
    assert prompts == [[1, 2], [3]]


def test_a_source_asks_for_the_targets_likeliest_tokens() -> None:
    toy = Toy()
    toy.num_topk = 5
    assert session_of(toy).num_topk == 5
    assert session_of(toy, recycle=True).num_topk == 8
    assert session_of().num_topk == 0


def test_lookahead_stands_beside_a_source() -> None:
    beside = Beside(Drafter(policy=FREE, sources=[Refrain]), Lookahead(3, 3, 3))
    draft = beside.begin([5, 6, 5, 6, 1]).propose(32)
    draft.check()
    assert {7, 8, 9} <= set(draft.token_ids[draft.source == CUSTOM].tolist())


# ---- what is refused, and what fails ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sources", "named"),
    [
        (Refrain, "sources must be a list of functions"),
        ([3], "sources must be a list of functions"),
        ("abc", "sources must be a list of functions"),
        ([Refrain([1])], "sources must be a list of functions"),
        ({"a": Refrain}, "sources must be a list of functions"),
    ],
)
def test_sources_that_are_none_are_refused(sources: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Drafter(sources=sources)


@pytest.mark.parametrize("returned", [None, 3, object(), Refrain])
def test_what_is_no_source_is_refused_when_a_request_begins(returned: Any) -> None:
    with pytest.raises(ValueError, match=r"sources\[1\] must return a Source, got"):
        Drafter(sources=[Refrain, lambda _: returned]).begin([1])


@pytest.mark.parametrize(
    ("args", "options", "named"),
    [
        (([4, 5], [-1, 1]), {"probs": [0.5, 0.4]}, r"parents\[1\] must be in \[-1, 0\], got 1"),
        (([4, 5], [-1, -2]), {"probs": [0.5, 0.4]}, r"parents\[1\]"),
        (([4, 4], [-1, -1]), {"probs": [0.5, 0.4]}, "same token 4"),
        (([4, 5], [-1]), {"probs": [0.5, 0.4]}, "parents"),
        (([4, 5], [-1, 0.5]), {"probs": [0.5, 0.4]}, "parents"),
        (([4, -5],), {"probs": [0.5, 0.4]}, r"token_ids must be in \[0, 2147483647\], got -5"),
        (([4, 2**31],), {"probs": [0.5, 0.4]}, "token_ids"),
        (([4.5],), {"probs": [0.5]}, "token_ids"),
        (([4, 5],), {"probs": [0.5]}, "probs"),
        (([4, 5],), {"probs": [0.5, 0.4, 0.3]}, "probs"),
        (([4],), {"probs": [1.5]}, "probs"),
        (([4],), {"probs": [-0.5]}, "probs"),
        (([4],), {"probs": [float("nan")]}, "probs"),
        (([4, 5],), {"probs": [0.5, 0.6]}, "probs"),
        (([4, 5],), {"probs": "ab"}, "probs"),
        (([4],), {"probs": [0.5], "prices": -1.0}, "prices"),
        (([4],), {"probs": [0.5], "prices": float("inf")}, "prices"),
        (([4],), {"probs": [0.5], "prices": [0.5, 0.5]}, "prices"),
        (([4],), {"probs": [0.5], "source": 99}, "source"),
        (([4],), {"probs": [0.5], "source": -1}, "source"),
        (([4],), {"probs": [0.5], "match_len": 2**40}, "match_len"),
    ],
)
def test_a_proposal_that_is_no_tree_is_refused_by_name(args: tuple, options: dict, named: str) -> None:
    session = session_of(Toy(adding(*args, **options)))
    with pytest.raises(ValueError, match=named):
        session.propose(8)
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(4,), stop="full"))  # the session is as it was
    assert session.index.token_ids.tolist() == [1, 2, 3, 4]


class Broken(RuntimeError):
    pass


def fail(*_: Any) -> None:
    raise Broken("of its own")


@pytest.mark.parametrize("where", ["propose", "complete"])
def test_what_a_source_raises_is_raised_by_propose_and_nothing_is_lost(where: str) -> None:
    other = Toy(adding([4], probs=[0.9]))
    session = session_of(other, Toy(**{where: fail}), prompt=[1, 2, 3, 1, 2])
    with pytest.raises(Broken, match="of its own"):
        session.propose(8)
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(3,), stop="full"))
    assert session.index.token_ids.tolist() == [1, 2, 3, 1, 2, 3]
    assert other.steps[0].came.tolist() == [3]
    session.finish()


def test_what_a_source_raises_is_raised_by_commit_when_the_text_has_it() -> None:
    toy = Toy()
    toy.learn = fail  # type: ignore[method-assign]
    session = session_of(toy, prompt=[1, 2, 3, 1, 2])
    draft = session.propose(8)
    with pytest.raises(Broken, match="of its own"):
        session.commit(draft, Outcome(path=(0,), new_ids=(3, 9), stop="rejected"))
    assert session.index.token_ids.tolist() == [1, 2, 3, 1, 2, 3, 9]
    assert session.copy_pointer == 3
    assert session.propose(8).source.tolist().count(CUSTOM) == 0
    session.finish()


def test_a_bad_path_is_refused_before_any_source_hears_of_it() -> None:
    toy = Toy(adding([4], probs=[0.9]))
    session = session_of(toy)
    draft = session.propose(8)
    with pytest.raises(ValueError, match="path"):
        session.commit(draft, Outcome(path=(7,), new_ids=(4,), stop="rejected"))
    assert toy.steps == []
    assert CONTEXT not in draft.source.tolist()


def test_what_a_source_costs_is_a_part_of_what_tokens_cost() -> None:
    prices: dict[float, list[float]] = {}
    for cost in (0.0, 2.0):
        seen = prices[cost] = []

        def act(candidates: Candidates, cost: float = cost, seen: list[float] = seen) -> None:
            seen.append(candidates.price)
            candidates.add([7], probs=[0.9], cost=cost)

        session = session_of(Toy(act))
        for _ in range(6):
            draft = session.propose(4)
            session.commit(draft, Outcome(path=(), new_ids=(5, 6, 8), stop="rejected"))
    assert prices[0.0][0] == prices[2.0][0]  # nothing is known of this request yet
    assert all(dear > cheap for cheap, dear in zip(prices[0.0][1:], prices[2.0][1:]))
    with pytest.raises(ValueError, match="cost"):
        session_of(Toy(adding([7], probs=[0.9], cost=-1.0))).propose(4)
