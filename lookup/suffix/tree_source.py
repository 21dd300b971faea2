"""TreeSource: a suffix tree beside a session's own draft; the one of the two that was right of late is drafted."""

from __future__ import annotations

from typing import Final

from zerodraft.lookup.draft import CONTEXT, PREDICTION, IntArray
from zerodraft.lookup.suffix import _suffix_core as core
from zerodraft.lookup.suffix.suffix_tree import MAX_BRANCHES, SuffixTree

DECAY: Final = 0.85  # weight of a step against the one after it: about seven steps are remembered
MIN_SHARE: Final = 0.02  # branches that fewer occurrences took are not drafted


class TreeSource:
    """One session's suffix tree, over the same text as its n-gram index. Not thread-safe.

    The n-gram index copies from one good place; the tree counts what followed the longest match everywhere. Which of
    the two is better depends on the text, so both are asked at every step and both are compared with what came, the
    draft that was not used too. The tree's draft gets as many nodes as the session's own, so the forward costs the
    same; where the session drafts nothing, nothing is drafted.
    """

    __slots__ = ("_at_length", "_drafts", "_num_predicted", "_scores", "tree")

    def __init__(self, prediction: IntArray, prompt: IntArray) -> None:
        """Build the tree: about a tenth of a microsecond and 50 to 85 bytes per token."""
        self.tree: Final = SuffixTree(prediction)
        if len(prediction):
            self.tree.add_barrier()
        self.tree.extend(prompt)
        self._num_predicted = len(prediction)
        self._scores = [0.0, 0.0]  # tokens that came as drafted, the recent ones counted most: own draft, tree
        self._drafts: list[tuple[IntArray, int]] = []
        self._at_length = -1

    def choose(self, own: IntArray, num_own: int, max_depth: int, max_branches: int) -> tuple[IntArray, int]:
        """Return the session's own draft or the tree's: (block of draft.BLOCK_ROWS, number of nodes).

        Args:
            own: int32 (6, >= num_own), the session's own draft.
            max_depth: upper bound on the depth of a node.
            max_branches: upper bound on the branches followed at one node.
        """
        self._drafts = []
        if num_own == 0:
            return own, 0
        block, n = self.tree._propose_block(num_own, max_depth, min(max_branches, MAX_BRANCHES), MIN_SHARE, CONTEXT)
        self._drafts = [(own, num_own), (block, n)]
        self._at_length = len(self.tree)
        if n == 0 or self._scores[1] <= self._scores[0]:
            return own, num_own
        core.believe(block, n, own, num_own, self._num_predicted, PREDICTION)
        return block, n

    def learn(self, came: IntArray) -> None:
        """Compare both drafts with the tokens that came, and append these."""
        if self._at_length == len(self.tree):
            for i, (block, n) in enumerate(self._drafts):
                self._scores[i] = DECAY * self._scores[i] + core.num_agreed(block, n, came)
        self.tree._extend(came)
