"""Other people's drafting rules, rebuilt for replays as sessions with propose and commit, and the copy oracle.

Only what they draft is rebuilt (checked against the originals' documentation), not what a lookup costs them; that is
measured by the micro-benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.drafter import Drafter, DraftSession
from zerodraft.lookup.policy import DraftPolicy, priors


class _NgramRule:
    """Copy what followed the first occurrence of the longest n-gram of ``sizes`` that ends the text."""

    def __init__(self, prompt: np.ndarray, num_drafted: int, sizes: tuple[int, ...]) -> None:
        self.tokens: list[int] = []
        self.num_drafted = num_drafted
        self.sizes = sorted(sizes, reverse=True)
        self.first: dict[tuple[int, ...], int] = {}
        self._extend(prompt.tolist())

    def _extend(self, ids: list[int]) -> None:
        for token in ids:
            # An n-gram can be copied from once a token follows it.
            at = len(self.tokens)
            for size in self.sizes:
                if at >= size:
                    self.first.setdefault(tuple(self.tokens[at - size :]), at)
            self.tokens.append(int(token))

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Draft:
        most = min(self.num_drafted, max_tokens, max_tokens if max_depth is None else max_depth)
        if most:
            for size in self.sizes:
                at = self.first.get(tuple(self.tokens[-size:])) if len(self.tokens) > size else None
                if at is not None:
                    return Draft.chain(self.tokens[at : at + most])
        return Draft.empty()

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        self._extend(list(outcome.new_ids))


def PromptLookup(prompt: np.ndarray, num_drafted: int, max_ngram: int) -> _NgramRule:
    """transformers' prompt_lookup_num_tokens: n-grams from ``max_ngram`` down to 1, the first match."""
    return _NgramRule(prompt, num_drafted, tuple(range(1, max_ngram + 1)))


def Ngram(prompt: np.ndarray, num_drafted: int) -> _NgramRule:
    """vLLM's ngram method with prompt_lookup_min 2 and max 5: the longest n-gram, its first occurrence."""
    return _NgramRule(prompt, num_drafted, (2, 3, 4, 5))


class Oracle:
    """Hindsight: at every step the copy, from anywhere before, that agrees longest with what is written next."""

    def __init__(self, prompt: np.ndarray, output: np.ndarray, most: int) -> None:
        self.text = np.concatenate([prompt, output]).astype(np.int32)
        self.at = len(prompt)
        self.most = most

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Draft:
        most = min(self.most, max_tokens, max_tokens if max_depth is None else max_depth)
        length = _longest_copy(self.text, self.at, most) if most else 0
        return Draft.chain(self.text[self.at : self.at + length]) if length else Draft.empty()

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        self.at += len(outcome.new_ids)


@njit(cache=True)
def _longest_copy(text: np.ndarray, at: int, most: int) -> int:
    best = 0
    for start in range(at):
        length = 0
        # text[start + length] may lie in the output itself: a copy goes on into what it has just written.
        while length < most and at + length < len(text) and text[start + length] == text[at + length]:
            length += 1
        best = max(best, length)
    return best


class SuffixDecoding:
    """arctic-inference's suffix tree over one request, if it is installed."""

    def __init__(self, prompt: np.ndarray, factor: float, use_tree: bool = False) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.cache = SuffixDecodingCache(max_tree_depth=64, max_cached_requests=0)
        self.cache.start_request(0, prompt)
        self.tokens = prompt.tolist()
        self.factor, self.use_tree = factor, use_tree

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Draft:
        most = min(255, max_tokens, max_tokens if max_depth is None else max_depth)
        if not most:
            return Draft.empty()
        pattern = np.array(self.tokens[-64:], np.int32)
        found = self.cache.speculate(
            0,
            pattern,
            max_spec_tokens=most,
            max_spec_factor=self.factor,
            min_token_prob=0.1,
            use_tree_spec=self.use_tree,
        )
        return Draft.tree(found.token_ids, found.parents) if found.token_ids else Draft.empty()

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        self.tokens += outcome.new_ids
        self.cache.add_active_response(0, np.array(outcome.new_ids, np.int32))


def suffix_decoding_rules(rule: Callable[..., Any]) -> list[Any]:
    """Lines for SuffixDecoding with draft ≤ 1 and ≤ 4 times the match, where arctic-inference is installed."""
    try:
        import arctic_inference.suffix_decoding  # noqa: F401
    except ImportError:
        return []
    return [
        rule(f"SuffixDecoding, factor {factor:g}", lambda t, factor=factor: SuffixDecoding(t.prompt, factor))
        for factor in (1.0, 4.0)
    ]


def forgetting(policy: DraftPolicy, forget: Callable[[DraftSession], None]) -> Callable[[Any], Any]:
    """Sessions of the adaptive rule that forget something after every step."""
    drafter = Drafter(policy=policy)

    class Forgetful:
        def __init__(self, trace: Any) -> None:
            self.session = drafter.begin(trace.prompt)
            self.propose = self.session.propose

        def commit(self, draft: Draft, outcome: Outcome) -> None:
            self.session.commit(draft, outcome)
            forget(self.session)

    return Forgetful


def beliefs(session: DraftSession) -> None:
    """Forget what kind of text this is."""
    session._states["beliefs"] = priors()[1]


def replacements(session: DraftSession) -> None:
    """Forget what was replaced by what, and where the copy went on behind it."""
    session._states["replaced"] = np.zeros((), session._states["replaced"].dtype)
    session._states["going"]["length"] = -1


class FixedLength:
    """A chain of ``factor`` tokens per matched token from the best copy, whatever it costs."""

    def __init__(self, prompt: np.ndarray, factor: float, most: int, **options: Any) -> None:
        self.session = Drafter(policy=DraftPolicy(max_branches=1, **options)).begin(prompt)
        self.factor, self.most = factor, most

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Draft:
        self.session.propose(1, 1)
        most = min(self.most, max_tokens, max_tokens if max_depth is None else max_depth)
        if self.session.best_copy is None or not most:
            return Draft.empty()
        at, match, _ = self.session.best_copy
        text = self.session.index.token_ids
        ids = text[at : at + min(most, max(1, int(self.factor * match)))]
        barriers = np.flatnonzero(ids < 0)
        return Draft.chain(ids[: barriers[0]] if len(barriers) else ids)

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        self.session.commit(draft, outcome)
        replacements(self.session)  # which this rule does not know
