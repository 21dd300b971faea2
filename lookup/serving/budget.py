"""One verification budget for the rows of a batch, given to the nodes that are likeliest to be reached."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from zerodraft.lookup.checks import bounds
from zerodraft.lookup.draft import Draft


def share_budget(drafts: Sequence[Draft], max_tokens: int) -> list[Draft]:
    """Keep the ``max_tokens`` likeliest nodes of all drafts together; every draft stays a tree from its root down.

    Nodes of equal probability go to the earlier row, there to the earlier node. Cost: a sort of all nodes; nothing
    where they fit.

    Raises:
        ValueError: max_tokens < 0.

    >>> short, long = share_budget([Draft.chain([5, 6]), Draft.chain([7, 8, 9])], 3)
    >>> short.token_ids.tolist(), long.token_ids.tolist()
    ([5, 6], [7])
    """
    max_tokens, _ = bounds(max_tokens, None)
    lengths = [len(draft) for draft in drafts]
    if sum(lengths) <= max_tokens:
        return list(drafts)
    # A node is never likelier than its parent, drafters of one's own aside: take the least on the way down.
    probs = np.concatenate([_on_the_way_down(draft) for draft in drafts])
    kept = np.zeros(len(probs), np.bool_)
    kept[np.argsort(-probs, kind="stable")[:max_tokens]] = True
    ends = np.cumsum(lengths)
    return [draft.only(kept[end - n : end]) for draft, end, n in zip(drafts, ends, lengths)]


def _on_the_way_down(draft: Draft) -> npt.NDArray[np.float32]:
    probs: npt.NDArray[np.float32] = draft.probs.copy()
    for node, parent in enumerate(draft.parents.tolist()):
        if parent >= 0 and probs[parent] < probs[node]:
            probs[node] = probs[parent]
    return probs
