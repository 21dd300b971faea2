"""Trees of several sources in one: shared nodes, branches that leave, origins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.merge import Node, Path, by_confidence, join

from zerodraft.lookup import _block, _merge
from zerodraft.lookup.draft import Draft


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
    block = np.zeros((_block.NUM_ROWS, len(tree)), np.int32)
    block[_block.TOKEN] = [path[-1] for path in paths]
    block[_block.PARENT] = [paths.index(path[:-1]) if len(path) > 1 else -1 for path in paths]
    block[_block.PROB].view(np.float32)[:] = [node.prob for node in tree]
    block[_block.ORIGIN] = [node.origin for node in tree]
    block[_block.MATCH], block[_block.SOURCE] = 1, source
    return block


def nodes_of(draft: Draft) -> list[Node]:
    paths: list[Path] = []
    for token, parent in zip(draft.token_ids.tolist(), draft.parents.tolist()):
        paths.append((*paths[parent], token) if parent >= 0 else (token,))
    return [Node(*node) for node in zip(paths, draft.probs.tolist(), draft.origin.tolist())]


def joined(given_trees: list[list[Node]]) -> tuple[Draft, list[int]]:
    """What the kernel makes of the trees, and how many nodes each of them added, the surest first."""
    parts = [block_of(tree, i) for i, tree in enumerate(given_trees)]
    block, ends = np.concatenate(parts, axis=1), np.cumsum([len(tree) for tree in given_trees])
    for part, first in zip(parts, (0, *ends)):
        part[_block.PARENT][part[_block.PARENT] >= 0] += first  # counted over all parts, as kernels do
    block = np.concatenate(parts, axis=1)
    tree, tree_ends = np.empty_like(block), np.empty_like(ends)
    n = _merge.join(_merge.Parts(block, ends), len(parts), _merge.Parts(tree, tree_ends))
    assert tree_ends[-1] == n
    return Draft.from_block(tree[:, :n]), np.diff(tree_ends, prepend=0).tolist()


@given(st.lists(trees().filter(len), min_size=1, max_size=4))
def test_trees_are_joined_as_the_oracle_says(given_trees):
    draft, counts = joined(given_trees)
    added = [[node for node in news if node.prob > 0] for news in join(by_confidence(given_trees))]
    assert counts == [len(news) for news in added]
    draft.check()
    ours, expected = nodes_of(draft), [node for news in added for node in news]
    assert [(node.path, node.origin) for node in ours] == [(node.path, node.origin) for node in expected]
    assert [node.prob for node in ours] == pytest.approx([node.prob for node in expected], rel=1e-4, abs=1e-6)


@given(st.lists(trees().filter(len), min_size=1, max_size=4))
def test_siblings_are_never_likelier_together_than_what_they_hang_from(given_trees):
    """Definition: only one of them can come. It holds for the joined tree, since it does for each that went in."""
    chances = {node.path: node.prob for node in nodes_of(joined(given_trees)[0])}
    for parent in [(), *chances]:
        together = sum(chance for path, chance in chances.items() if path[:-1] == parent)
        assert together <= chances.get(parent, 1.0) + 1e-5
