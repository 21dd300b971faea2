"""Draft, Outcome and token id checks (CASES 4 and 5)."""

from __future__ import annotations

import numpy as np
import pytest

from zerodraft.lookup.draft import Draft, Outcome, as_token_ids


@pytest.mark.parametrize(
    "ids", [[], [0], [65535, 65536, 151935, 2**31 - 1], np.arange(3), np.arange(3, dtype=np.uint16)]
)
def test_valid_ids_are_kept_exactly(ids):
    stored = as_token_ids(ids)
    assert stored.dtype == np.int32
    assert stored.tolist() == list(ids)


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        ([-1], "-1"),
        ([1, -100], "-100"),
        ([2**31], str(2**31)),
        ([2**63], str(2**63)),
        (np.array([1.0, 2.0]), "float64"),
        ([True], "bool"),
        ([[1, 2]], r"\(1, 2\)"),
        (np.int64(3), r"\(\)"),
        (["a"], "dtype"),
    ],
)
def test_bad_ids_are_refused_by_name(ids, named):
    with pytest.raises(ValueError, match=named):
        as_token_ids(ids)


def test_chain_and_tree():
    chain = Draft.chain([4, 5, 6])
    assert chain.is_chain
    assert chain.parents.tolist() == [-1, 0, 1]
    assert not Draft.tree([4, 5, 6], [-1, -1, 0]).is_chain
    assert len(Draft.empty()) == 0
    assert Draft.empty().is_chain


@pytest.mark.parametrize(
    ("ids", "parents", "verify", "named"),
    [
        ([1], [0], None, r"parents\[0\]"),
        ([1, 2], [-1, -2], None, r"parents\[1\]"),
        ([1, 1], [-1, -1], None, "same token 1"),
        ([1, 2], [-1, 0], [False, True], "parent 0"),
        ([1, 2], [-1], None, "one length"),
    ],
)
def test_a_bad_tree_is_refused(ids, parents, verify, named):
    with pytest.raises(ValueError, match=named):
        Draft.tree(ids, parents, verify=verify)


def test_equal_window_siblings_are_allowed():
    assert len(Draft.tree([1, 1], [-1, -1], verify=[True, False])) == 2


def test_outcome_counts():
    assert Outcome(path=(0, 1), new_ids=(7, 8, 9), stop="rejected").num_accepted == 2
    assert Outcome(path=(0, 1), new_ids=(7, 8), stop="eos").stopped_on_accepted
