"""Trees of several sources in one: shared nodes, branches that leave, origins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.merge import Node, Path, by_confidence, join

from zerodraft.lookup import _merge_core as core
from zerodraft.lookup.draft import BLOCK_ROWS, Draft
from zerodraft.lookup.sources.shared_sources import _joined


@st.composite
def trees(draw) -> list[Node]:
    """One source's tree, parents first; siblings together are no likelier than their parent. Exact as float32."""
    chances: dict[Path, float] = {(): 1.0}
    for _ in range(draw(st.integers(0, 8))):
        parent = draw(st.sampled_from(list(chances)))
        path = (*parent, draw(st.integers(0, 2)))
        used = sum(chance for sibling, chance in chances.items() if sibling and sibling[:-1] == parent)
        if path not in chances and chances[parent] > used:
            chances[path] = float(np.float32((chances[parent] - used) * draw(st.integers(1, 8)) / 8))
    del chances[()]
    return [Node(path, chance, draw(st.sampled_from([-1, 5, 9]))) for path, chance in chances.items()]


def block_of(tree: list[Node], source: int) -> np.ndarray:
    paths = [node.path for node in tree]
    block = np.zeros((len(BLOCK_ROWS), len(tree)), np.int32)
    block[core.ROW_TOKEN] = [path[-1] for path in paths]
    block[core.ROW_PARENT] = [paths.index(path[:-1]) if len(path) > 1 else -1 for path in paths]
    block[core.ROW_PROB].view(np.float32)[:] = [node.prob for node in tree]
    block[core.ROW_ORIGIN] = [node.origin for node in tree]
    block[core.ROW_MATCH], block[core.ROW_SOURCE] = 1, source
    return block


def nodes_of(draft: Draft) -> list[Node]:
    paths: list[Path] = []
    for token, parent in zip(draft.token_ids.tolist(), draft.parents.tolist()):
        paths.append((*paths[parent], token) if parent >= 0 else (token,))
    return [Node(*node) for node in zip(paths, draft.probs.tolist(), draft.origin.tolist())]


@given(st.lists(trees().filter(len), min_size=1, max_size=4))
def test_trees_are_joined_as_the_oracle_says(given_trees):
    block, ends = _joined([(block_of(tree, i), len(tree)) for i, tree in enumerate(given_trees)])
    added = join(by_confidence(given_trees))
    assert np.diff(ends, prepend=0).tolist() == [len(news) for news in added]
    joined = Draft.from_block(block[:, : ends[-1]])
    joined.check()
    ours, expected = nodes_of(joined), [node for news in added for node in news]
    assert [(node.path, node.origin) for node in ours] == [(node.path, node.origin) for node in expected]
    assert [node.prob for node in ours] == pytest.approx([node.prob for node in expected], rel=1e-4, abs=1e-6)


@given(st.lists(trees().filter(len), min_size=1, max_size=4))
def test_siblings_are_never_likelier_together_than_what_they_hang_from(given_trees):
    """Definition: only one of them can come. It holds for the joined tree, since it does for each that went in."""
    block, ends = _joined([(block_of(tree, i), len(tree)) for i, tree in enumerate(given_trees)])
    chances = {node.path: node.prob for node in nodes_of(Draft.from_block(block[:, : ends[-1]]))}
    for parent in [(), *chances]:
        together = sum(chance for path, chance in chances.items() if path[:-1] == parent)
        assert together <= chances.get(parent, 1.0) + 1e-5
