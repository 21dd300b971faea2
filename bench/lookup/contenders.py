"""What the micro-benchmarks time: our structures and the peers, each behind build, append and propose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from numba import njit

from zerodraft.lookup.copy.ngram_index import NgramIndex
from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.policy import DraftPolicy
from zerodraft.lookup.suffix.suffix_tree import SuffixTree

Tokens = npt.NDArray[np.int32]

NUM_DRAFTED = 16


class Contender(Protocol):
    """Built from the prompt's tokens; then told every new token and asked for a draft."""

    def append(self, token: int) -> None: ...

    def propose(self) -> Any:
        """Draft up to NUM_DRAFTED tokens; the result knows its length by ``len`` or is None."""

    def nbytes(self) -> int | None: ...


class TreeChain:
    """SuffixTree, a chain along the best branches."""

    num_branches = 1

    def __init__(self, prompt: Tokens) -> None:
        self.tree = SuffixTree(prompt)
        self.append = self.tree.append

    def propose(self) -> Draft:
        return self.tree.propose(NUM_DRAFTED, max_branches=self.num_branches)

    def nbytes(self) -> int:
        return self.tree.nbytes


class TreeBestFirst(TreeChain):
    """SuffixTree, a best-first tree with up to four branches per node."""

    num_branches = 4


class Ngram:
    """NgramIndex alone: propose is the search for occurrences, nothing is copied."""

    def __init__(self, prompt: Tokens) -> None:
        self.index = NgramIndex()
        self.index.extend(prompt)

    def append(self, token: int) -> None:
        self.index.extend((token,))

    def propose(self) -> Any:
        return self.index.match(8).positions

    def nbytes(self) -> int:
        return self.index.nbytes


class _Session:
    """A whole DraftSession: what one decode step of a model pays. append is commit of one emitted token."""

    policy: DraftPolicy

    def __init__(self, prompt: Tokens) -> None:
        self.session = Drafter(policy=self.policy).begin(prompt)

    def append(self, token: int) -> None:
        self.session.commit(Draft.empty(), Outcome(path=(), new_ids=(token,), stop="full"))

    def propose(self) -> Draft:
        return self.session.propose(NUM_DRAFTED)

    def nbytes(self) -> int:
        return self.session.index.nbytes


class SessionAdaptive(_Session):
    """DraftSession with the default policy, at most 16 nodes."""

    policy = DraftPolicy(max_draft_tokens=NUM_DRAFTED)


@njit(cache=True)
def _first_longest_suffix(tokens: Tokens, min_ngram: int, max_ngram: int) -> tuple[int, int]:
    """(length, end) of the longest n-gram, at most max_ngram, that ends the text and occurs before: the first place.

    Knuth, Morris and Pratt from the end to the beginning, as vLLM's n-gram proposer does it on every call: the prefix
    function of the reversed text gives at each place how many tokens from there on equal the suffix.
    """
    n = np.int64(len(tokens))
    borders = np.zeros(max_ngram, np.int64)
    last = tokens[n - 1]
    best_length, best_at, length = np.int64(0), np.int64(0), np.int64(0)
    for at in range(1, n):
        token = tokens[n - 1 - at]
        if length == 0 and token != last:
            continue
        while length > 0 and (length == max_ngram or token != tokens[n - 1 - length]):
            length = borders[length - 1]
        if token == tokens[n - 1 - length]:
            length += 1
        if at < max_ngram:
            borders[at] = length
        if length >= best_length and length >= min_ngram:  # ">=": the earlier of equal ones
            best_length, best_at = length, at
    return best_length, n - 1 - best_at + best_length


class RescanningNgram:
    """The n-gram lookup as vLLM does it (2 to 5 tokens, Numba), rewritten: it reads the whole text on every call."""

    def __init__(self, prompt: Tokens) -> None:
        self.tokens = np.empty(2 * len(prompt) + 4096, np.int32)
        self.tokens[: len(prompt)] = prompt
        self.length = len(prompt)

    def append(self, token: int) -> None:
        self.tokens[self.length] = token
        self.length += 1

    def propose(self) -> Tokens | None:
        text = self.tokens[: self.length]
        length, end = _first_longest_suffix(text, 2, 5)
        return text[end : end + NUM_DRAFTED] if length else None

    def nbytes(self) -> None:
        return None


class HuggingFace:
    """transformers' PromptLookupCandidateGenerator as it comes, 16 tokens from n-grams of 2 or 1."""

    def __init__(self, prompt: Tokens) -> None:
        import torch
        from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

        torch.set_num_threads(1)
        self.ids = torch.zeros((1, 2 * len(prompt) + 4096), dtype=torch.long)
        self.ids[0, : len(prompt)] = torch.from_numpy(prompt)
        self.length = len(prompt)
        self.generator = PromptLookupCandidateGenerator(num_output_tokens=NUM_DRAFTED, max_length=2**30)

    def append(self, token: int) -> None:
        self.ids[0, self.length] = token
        self.length += 1

    def propose(self) -> range:
        candidates, _ = self.generator.get_candidates(self.ids[:, : self.length])
        return range(candidates.shape[1] - self.length)

    def nbytes(self) -> None:
        return None


class SuffixDecodingChain:
    """SuffixDecoding of arctic-inference (C++), depth 64, this request only; draft up to four times the match."""

    use_tree = False

    def __init__(self, prompt: Tokens) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.cache = SuffixDecodingCache(max_tree_depth=64, max_cached_requests=0)
        self.cache.start_request(0, prompt)
        self.tokens = np.empty(2 * len(prompt) + 4096, np.int32)
        self.tokens[: len(prompt)] = prompt
        self.length = len(prompt)

    def append(self, token: int) -> None:
        self.tokens[self.length] = token
        self.length += 1
        self.cache.add_active_response(0, self.tokens[self.length - 1 : self.length])

    def propose(self) -> list[int]:
        context = self.tokens[max(0, self.length - 64) : self.length]
        found = self.cache.speculate(
            0, context, max_spec_tokens=NUM_DRAFTED, max_spec_factor=4.0, use_tree_spec=self.use_tree
        )
        return found.token_ids

    def nbytes(self) -> int:
        return int(self.cache._local_trees[0].estimate_memory())


class SuffixDecodingTree(SuffixDecodingChain):
    """SuffixDecoding's own best-first tree."""

    use_tree = True


OURS: dict[str, Callable[[Tokens], Contender]] = {
    "SuffixTree chain": TreeChain,
    "SuffixTree tree": TreeBestFirst,
    "NgramIndex": Ngram,
    "DraftSession adaptive": SessionAdaptive,
}


def peers() -> dict[str, Callable[[Tokens], Contender]]:
    """The peers that can be imported here."""
    found: dict[str, Callable[[Tokens], Contender]] = {"n-gram as in vLLM": RescanningNgram}
    try:
        import transformers  # noqa: F401

        found["Hugging Face prompt lookup"] = HuggingFace
    except ImportError:
        pass
    try:
        import arctic_inference.suffix_decoding  # noqa: F401

        found["SuffixDecoding chain"] = SuffixDecodingChain
        found["SuffixDecoding tree"] = SuffixDecodingTree
    except ImportError:
        pass
    return found
