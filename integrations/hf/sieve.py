"""Sieve: what of a draft a row can use. Depth, number, shape, and ids that the target lacks or will never say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from transformers import GenerationConfig, PreTrainedModel

from zerodraft.integrations.hf.families import placeholder_ids
from zerodraft.lookup.chained import likeliest_path
from zerodraft.lookup.draft import CUSTOM, Draft, IntArray, as_token_ids

Bools = npt.NDArray[np.bool_]
_FAR: Final = 1 << 30  # the depth of a node that nobody may reach, and so of all below it


class Sieve:
    """One call's view of which drafted nodes are worth a position.

    Attributes:
        num_foreign_tokens: ids in prompts and predictions that the target does not have; left out there.
        num_pruned_tokens: drafted nodes left out, and those below them: ids that the target does not have, or that
            it will never say (suppressed ones, placeholders of images).
    """

    def __init__(self, vocab_size: int, never: Iterable[int] = (), *, only_chains: bool = False) -> None:
        """``vocab_size``: ids that the target's embedding knows; ``never``: those of them that it will not say."""
        self._vocab_size, self._only_chains = vocab_size, only_chains
        self._is_out = np.zeros(vocab_size + 1, np.bool_)  # by id; the last place is that of every foreign id
        self._is_out[[token for token in never if 0 <= token < vocab_size]] = True
        self._is_out[vocab_size] = True
        self.num_foreign_tokens = 0
        self.num_pruned_tokens = 0

    def known(self, ids: torch.Tensor | IntArray, what: str) -> IntArray:
        """``ids`` (n,) as int32 without those that the target does not have, which are counted."""
        array = ids.cpu().numpy() if isinstance(ids, torch.Tensor) else ids
        is_known = (array >= 0) & (array < self._vocab_size)
        if not is_known.all():
            self.num_foreign_tokens += int((~is_known).sum())
            array = array[is_known]
        return as_token_ids(array, what)

    def fit(self, draft: Draft, max_nodes: int, max_depth: int) -> Draft:
        """The draft without the nodes that the row cannot use, whatever the drafter sent.

        Raises:
            ValueError: a drafter of one's own (source ``CUSTOM``) drafted an id that the target does not have.
        """
        if not len(draft):
            return draft
        ids = np.minimum(draft.token_ids.view(np.uint32), self._vocab_size)  # negative ids read as huge ones
        out = self._is_out[ids]
        if out.any():
            out = self._left_out(draft, ids, out)
        elif len(draft) <= min(max_depth, max_nodes) and (draft.is_chain or not self._only_chains):
            return draft
        depths = np.zeros(len(draft), np.int64)
        for node, parent in enumerate(draft.parents.tolist()):
            depths[node] = _FAR if out[node] else 1 if parent < 0 else depths[parent] + 1
        self.num_pruned_tokens += int((depths >= _FAR).sum())
        fits = depths <= max_depth
        fits[max_nodes:] = False
        if self._only_chains:
            fits = likeliest_path(draft, fits & draft.verify)
        return draft.only(fits)

    def _left_out(self, draft: Draft, ids: npt.NDArray[np.uint32], out: Bools) -> Bools:
        """Foreign nodes, and of the others that will never be said those that were drafted to be said."""
        is_foreign = ids == self._vocab_size
        if (is_foreign & (draft.source == CUSTOM)).any():
            raise ValueError(
                f"drafted token ids must be in [0, {self._vocab_size - 1}], got {draft.token_ids.tolist()}"
            )
        left_out: Bools = is_foreign | (out & draft.verify)
        return left_out


def vocab_size_of(model: PreTrainedModel) -> int:
    """How many ids the model can read: as many as its input embedding holds, or as its configuration says."""
    try:
        size = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except (AttributeError, NotImplementedError):
        size = None
    return int(model.config.get_text_config(decoder=True).vocab_size if size is None else size)


def never_said(model: PreTrainedModel, config: GenerationConfig) -> set[int]:
    """Ids that no text of this call will hold: suppressed ones, single bad words, placeholders of other inputs."""
    ids: set[int] = set(_ints(config.suppress_tokens))
    ids.update(int(words[0]) for words in config.bad_words_ids or () if len(words) == 1)
    return ids | placeholder_ids(model)


def _ints(value: Any) -> list[int]:
    if value is None:
        return []
    if isinstance(value, torch.Tensor):
        value = value.reshape(-1).tolist()
    return [int(entry) for entry in (value if isinstance(value, (list, tuple, set)) else [value])]
