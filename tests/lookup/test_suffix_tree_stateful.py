"""SuffixTree under any order of calls: checked from the ground up after each of them."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from reference.suffix_tree import SuffixOracle

from zerodraft.lookup.suffix.suffix_tree import MAX_BRANCHES, SuffixTree

tokens = st.sampled_from([0, 1, 2, 2**31 - 1])


class TreeMachine(RuleBasedStateMachine):
    """The tree beside the oracle. Counting is left to some rules only, so that leaves pile up uncounted in between."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = SuffixTree()
        self.oracle = SuffixOracle()

    @rule(ids=st.lists(tokens, max_size=8))
    def extend(self, ids: list[int]) -> None:
        self.tree.extend(ids)
        self.oracle.text += ids

    @rule(token=tokens)
    def append(self, token: int) -> None:
        self.tree.append(token)
        self.oracle.text.append(token)

    @rule(start=st.integers(0, 60), length=st.integers(1, 12))
    def copy_from_text(self, start: int, length: int) -> None:
        run = [token for token in self.oracle.text[start : start + length] if token is not None]
        self.tree.extend(run)
        self.oracle.text += run

    @rule()
    def accept_a_draft(self) -> None:
        ids = self.tree.propose(3).token_ids.tolist()
        self.tree.extend(ids)
        self.oracle.text += ids

    @rule()
    def barrier(self) -> None:
        self.tree.add_barrier()
        self.oracle.text.append(None)

    @rule(ids=st.lists(tokens, max_size=3), bad=st.sampled_from([-1, 2**31, 1.5]))
    def refused(self, ids: list[int], bad: float) -> None:
        with pytest.raises(ValueError, match="token ids"):
            self.tree.extend([*ids, bad])

    @rule(max_tokens=st.integers(0, 8), max_branches=st.integers(1, MAX_BRANCHES))
    def propose(self, max_tokens: int, max_branches: int) -> None:
        draft = self.tree.propose(max_tokens, max_branches=max_branches, min_prob=0.0)
        expected = self.oracle.propose(max_tokens, max_branches, 0.0)
        assert draft.token_ids.tolist() == [row[0] for row in expected]
        assert draft.parents.tolist() == [row[1] for row in expected]
        assert draft.probs.tolist() == pytest.approx([row[2] for row in expected])

    @rule(pattern=st.lists(tokens, min_size=1, max_size=4))
    def count(self, pattern: list[int]) -> None:
        assert self.tree.count(pattern) == len(self.oracle.starts(pattern))

    @invariant()
    def is_sound(self) -> None:
        self.tree.check_integrity()
        assert len(self.tree) == len(self.oracle.text)
        assert self.tree.match_len == self.oracle.match_len()


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
