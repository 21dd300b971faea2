"""NgramPool: n-grams by their first token, newest first, bounded; GuessTrie: what is drafted of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

Gram = tuple[int, ...]

# How often the next token is the one that stands at this place among the first tokens of the guesses, and how often a
# guess goes on being right; both as the weight of so many observed tokens, then they follow the text.
_FIRST_PRIORS: Final = (0.25, 0.10, 0.06, 0.04, 0.03, 0.02)
_LASTING_PRIOR: Final = 0.6
_PRIOR_WEIGHT: Final = 24.0
_SIBLING: Final = 0.35  # a later sibling inside a guess has this part of the chance of the one before it
_COUNT_CAP: Final = 256.0


class NgramPool:
    """Up to ``guess_set_size`` n-grams for each first token; what was added longest ago makes room, keys likewise.

    >>> pool = NgramPool(3, 2)
    >>> for gram in [(1, 2, 3), (1, 2, 4), (1, 5, 6), (7, 7, 7)]:
    ...     pool.add(gram)
    >>> pool.guesses(1)
    [(5, 6), (2, 4)]
    """

    def __init__(self, ngram_size: int, guess_set_size: int, max_keys: int = 1 << 14) -> None:
        self._ngram_size, self._guess_set_size, self._max_keys = ngram_size, guess_set_size, max_keys
        self._grams: OrderedDict[int, OrderedDict[Gram, None]] = OrderedDict()

    def __len__(self) -> int:
        """Number of n-grams held. Cost: one pass over the keys."""
        return sum(len(tails) for tails in self._grams.values())

    def add(self, gram: Sequence[int]) -> None:
        """Put an n-gram first among those of its first token."""
        key, tail = gram[0], tuple(gram[1:])
        tails = self._grams.get(key)
        if tails is None:
            tails = self._grams[key] = OrderedDict()
            if len(self._grams) > self._max_keys:
                self._grams.popitem(last=False)
        else:
            self._grams.move_to_end(key)
        tails[tail] = None
        tails.move_to_end(tail)
        if len(tails) > self._guess_set_size:
            tails.popitem(last=False)

    def add_text(self, tokens: Sequence[int]) -> None:
        """Add every n-gram of a text, in order."""
        n = self._ngram_size
        for start in range(len(tokens) - n + 1):
            self.add(tokens[start : start + n])

    def guesses(self, token: int) -> list[Gram]:
        """What may follow ``token``: tails of n - 1 tokens, newest first."""
        return list(reversed(self._grams.get(token, ())))


class GuessTrie:
    """The guesses of one step as a tree with distinct siblings, nodes in order: (token, parent, probability)."""

    def __init__(self, guesses: Sequence[Gram], max_nodes: int, max_depth: int, belief: GuessBelief) -> None:
        self.token_ids: list[int] = []
        self.parents: list[int] = []
        self.probs: list[float] = []
        self._children: dict[tuple[int, int], int] = {}
        num_siblings: dict[int, int] = {}
        for guess in guesses:
            node = -1
            for token in guess[:max_depth]:
                child = self._children.get((node, token))
                if child is None:
                    if len(self.token_ids) == max_nodes:
                        break
                    place = num_siblings.get(node, 0)
                    num_siblings[node] = place + 1
                    child = self._children[(node, token)] = len(self.token_ids)
                    self.token_ids.append(token)
                    self.parents.append(node)
                    self.probs.append(belief.first(place) if node < 0 else self.probs[node] * belief.lasting(place))
                node = child

    def __len__(self) -> int:
        return len(self.token_ids)

    def follow(self, came: Sequence[int]) -> tuple[int, int, bool]:
        """Compare with the tokens that came: (place of the first one among the guesses' first tokens or -1, number of
        tokens that agree, whether a guess was left at its end)."""
        node, agreed = -1, 0
        place = -1
        for token in came:
            child = self._children.get((node, token))
            if child is None:
                break
            if agreed == 0:
                place = sum(1 for other in range(child) if self.parents[other] < 0)
            node, agreed = child, agreed + 1
        return place, agreed, node >= 0 and node not in self.parents


class GuessBelief:
    """How far the pool's guesses can be trusted, learned within a session from what came."""

    def __init__(self) -> None:
        self._tries = _PRIOR_WEIGHT
        self._first = [p * _PRIOR_WEIGHT for p in _FIRST_PRIORS]
        self._lasted = [_LASTING_PRIOR * _PRIOR_WEIGHT, _PRIOR_WEIGHT]

    def first(self, place: int) -> float:
        """Probability that the first token at this place among the guesses comes next."""
        return self._first[min(place, len(self._first) - 1)] / self._tries / (1 + max(0, place - len(self._first) + 1))

    def lasting(self, place: int) -> float:
        """Probability that a guess that was right so far goes on being right, for its n-th continuation."""
        return self._lasted[0] / self._lasted[1] * _SIBLING**place * (1 - _SIBLING)

    def learn(self, trie: GuessTrie, came: Sequence[int], may_break: bool) -> None:
        """Compare the guesses of a step with what came after it."""
        if not len(trie) or not came:
            return
        place, agreed, at_end = trie.follow(came)
        self._tries += 1.0
        if place >= 0:
            self._first[min(place, len(self._first) - 1)] += 1.0
            self._lasted[0] += agreed - 1
            self._lasted[1] += agreed - 1 + (may_break and not at_end and agreed < len(came))
        if self._tries >= _COUNT_CAP:
            self._tries *= 0.5
            self._first = [count * 0.5 for count in self._first]
        if self._lasted[1] >= _COUNT_CAP:
            self._lasted = [count * 0.5 for count in self._lasted]
