"""Draft, Outcome and token id checks (cases 4 and 5)."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from zerodraft.lookup import _block as rows
from zerodraft.lookup.draft import PREDICTION, Draft, Outcome, as_token_ids


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
        ([3, 1.5], "float64"),
        ([3, 2**31], str(2**31)),
        ([3, -7], "-7"),
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


def test_a_draft_from_a_block_is_like_any_other():
    block = np.zeros((rows.NUM_ROWS, 2), np.int32)
    block[rows.TOKEN] = 7, 8
    block[rows.PARENT] = -1, 0
    block[rows.PROB].view(np.float32)[:] = 0.5, 0.25
    block[rows.MATCH] = 3
    block[rows.ORIGIN] = 40, 41
    block[rows.SOURCE] = PREDICTION
    draft = Draft.from_block(block)
    assert len(draft) == 2
    assert draft.origin.tolist() == [40, 41]
    for same in (draft, pickle.loads(pickle.dumps(draft)), dataclasses.replace(draft)):
        assert same.token_ids.tolist() == [7, 8]
        assert same.probs.tolist() == [0.5, 0.25]
        assert same.match_len.tolist() == [3, 3]
        assert same.source.tolist() == [PREDICTION, PREDICTION]
        assert same.source.dtype == np.uint8
        assert same.verify.tolist() == [True, True]
        assert same.origin.tolist() == [40, 41]
        assert same.is_chain
    with pytest.raises(AttributeError, match="no_such_field"):
        _ = draft.no_such_field
    with pytest.raises(AttributeError):
        draft.origin = None


@pytest.mark.parametrize("ids", [(1, 2), [1, 2], list(range(200)), (np.int64(1), 2), [1, np.int32(2)]])
def test_short_and_long_sequences_are_stored_alike(ids):
    assert as_token_ids(ids).tolist() == [int(i) for i in ids]
    assert as_token_ids(ids).dtype == np.int32


def test_outcome_takes_arrays_and_checks_its_count():
    outcome = Outcome(np.array([0, 2], np.int32), [7, 8, 9], 2, "rejected")
    assert outcome.path == (0, 2)
    assert outcome.new_ids == (7, 8, 9)
    with pytest.raises(ValueError, match="num_accepted must be the length of path, 1, got 2"):
        Outcome(path=(0,), new_ids=(1, 2), num_accepted=2, stop="full")
