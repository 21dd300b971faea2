"""Lookahead: the target guesses its own next n-grams in a Jacobi window, a pool keeps them, later steps check them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from zerodraft.lookup.checks import bounds, flag, int_in
from zerodraft.lookup.draft import WINDOW, Draft, IntArray, Outcome, as_token_ids
from zerodraft.lookup.lookahead.jacobi_window import Columns, JacobiWindow
from zerodraft.lookup.lookahead.ngram_pool import GuessBelief, GuessTrie, NgramPool
from zerodraft.lookup.memory.draft_memory import check_namespace

MAX_WINDOW: Final = 256
MAX_NGRAM: Final = 32
MAX_GUESSES: Final = 256
MAX_POOL_KEYS: Final = 1 << 20

TokenIds = Sequence[int] | npt.NDArray[np.integer]


class Lookahead:
    """Lookahead decoding as a drafter: no second model, no training, no text to copy from.

    Every forward also computes a window of ``window_size`` columns and ``ngram_size - 1`` levels, whose last level
    yields ``window_size`` new n-grams; they go into a pool, and those that start with the current token are drafted as
    guesses: at most (window_size + guess_set_size) · (ngram_size - 1) positions. Window nodes are never accepted, so
    the text is the target's own. This object holds settings only; the state of a request is its session's.

    Attributes:
        window_size: columns of the window (W), 1 to 256.
        ngram_size: tokens of an n-gram (N), 2 to 32.
        guess_set_size: most n-grams kept per first token and drafted per step (G), 1 to 256.
        pool_from_prompt: put the n-grams of the prompt, the prediction and the output into the pool as well.
        max_pool_keys: most first tokens kept; the one used longest ago makes room.

    The window moves by one position per forward, whatever was emitted: moving it by what was emitted was measured to be
    worse.

    Raises:
        ValueError: an option outside its range, named with the value given.

    Source: Fu et al., *Break the Sequential Dependency of LLM Inference Using Lookahead Decoding* (arXiv:2402.02057).

    >>> session = Lookahead(window_size=3, ngram_size=3, guess_set_size=2).begin([1, 2, 3, 1])
    >>> session.propose(16).verify.tolist()  # the level that fills first, and the prompt's "1 2 3"
    [False, False, False, True, True]
    """

    def __init__(
        self,
        window_size: int = 15,
        ngram_size: int = 5,
        guess_set_size: int = 15,
        *,
        pool_from_prompt: bool = True,
        max_pool_keys: int = 1 << 14,
    ) -> None:
        self.window_size: Final = int_in("window_size", window_size, 1, MAX_WINDOW)
        self.ngram_size: Final = int_in("ngram_size", ngram_size, 2, MAX_NGRAM)
        self.guess_set_size: Final = int_in("guess_set_size", guess_set_size, 1, MAX_GUESSES)
        self.max_pool_keys: Final = int_in("max_pool_keys", max_pool_keys, 1, MAX_POOL_KEYS)
        self.memory: Final = None  # nothing is kept for later requests
        self.pool_from_prompt: Final = flag("pool_from_prompt", pool_from_prompt)

    def begin(
        self, prompt_ids: TokenIds, prediction_ids: TokenIds | None = None, namespace: str | None = None
    ) -> LookaheadSession:
        """Start one request. A prediction goes into the pool like a prompt; a namespace changes nothing here.

        Raises:
            ValueError: ids that are not integers in [0, 2**31 - 1], or a namespace that is neither a string nor None.
        """
        check_namespace(namespace)
        prompt = as_token_ids(prompt_ids, "prompt_ids")
        prediction = as_token_ids(() if prediction_ids is None else prediction_ids, "prediction_ids")
        return LookaheadSession(self, prompt, prediction)


class LookaheadSession:
    """One request: propose, verify, commit, and again; then finish. Not thread-safe.

    ``num_topk`` asks the decoding loop for the target's likeliest token at every computed position.
    """

    num_topk: Final = 1

    def __init__(self, lookahead: Lookahead, prompt: IntArray, prediction: IntArray) -> None:
        self._settings = lookahead
        self._pool = NgramPool(lookahead.ngram_size, lookahead.guess_set_size, lookahead.max_pool_keys)
        text = prompt.tolist()
        if lookahead.pool_from_prompt:
            self._pool.add_text(prediction.tolist())
            self._pool.add_text(text)
        self._window = JacobiWindow(lookahead.window_size, lookahead.ngram_size, text)
        self._belief = GuessBelief()
        self._tail: list[int] = text[-(lookahead.ngram_size - 1) :]
        self._columns: Columns = []  # of the last draft with a window
        self._drafted: Draft | None = None
        self._trie: GuessTrie | None = None
        self._is_finished = False

    @property
    def pool(self) -> NgramPool:
        """The n-grams gathered so far."""
        return self._pool

    @property
    def window(self) -> JacobiWindow:
        """The window as it stands."""
        return self._window

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Draft:
        """Draft the window and the pool's guesses for the current token. Cost: O(nodes), some tens of microseconds.

        Guesses come first in the budget: they are what this step can win. The window gets as many whole columns as fit
        in what is left, and as the depth allows.

        Raises:
            ValueError: a negative bound. RuntimeError: the session is finished.
        """
        self._check_running()
        max_tokens, max_depth = bounds(max_tokens, max_depth)
        depth = max_tokens if max_depth is None else max_depth
        trie = self.guesses(max_tokens, depth)
        columns = self._window.num_columns(max_tokens - len(trie), depth) if self._tail else 0
        ids, parents, self._columns = self._window.nodes(columns, 0) if columns else ([], [], [])
        first = len(ids)
        parents += [parent + first if parent >= 0 else -1 for parent in trie.parents]
        verify = [False] * first + [True] * len(trie)
        draft = Draft.tree(ids + trie.token_ids, parents, source=WINDOW, verify=verify)
        draft.probs[:first], draft.probs[first:] = 0.0, trie.probs
        self._drafted = draft
        return draft

    def guesses(self, max_nodes: int, max_depth: int) -> GuessTrie:
        """What the pool has for the current token, as a tree."""
        known = self._pool.guesses(self._tail[-1]) if self._tail else []
        self._trie = GuessTrie(known, max_nodes, max_depth, self._belief)
        return self._trie

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        """Take the window's new n-grams into the pool and move the window on.

        Raises:
            RuntimeError: the session is finished.
        """
        self._check_running()
        self.learn(outcome, draft is self._drafted, self._columns)
        self._columns, self._drafted = [], None

    def learn(self, outcome: Outcome, is_own: bool, columns: Columns) -> None:
        """Take in what came. ``is_own``: of the draft with the guesses as they were asked for; ``columns``: the nodes
        of the window's last level in it, none where it carried no window."""
        trie, self._trie = self._trie, None
        if not outcome.new_ids:
            return
        if trie is not None and is_own:
            self._belief.learn(trie, outcome.new_ids, outcome.stop in ("rejected", "full"))
        if columns and is_own and outcome.topk is not None:
            for gram in self._window.advance(self._tail[-1], columns, outcome.topk[:, 0]):
                self._pool.add(gram)
        text = [*self._tail, *outcome.new_ids]
        if self._settings.pool_from_prompt:
            self._pool.add_text(text)
        self._tail = text[-(self._settings.ngram_size - 1) :]

    def finish(self, remember: bool = False) -> None:
        """End the session; proposing or committing afterwards is an error. Finishing twice is not.

        Raises:
            ValueError: ``remember`` asked for: a Lookahead keeps nothing between requests.
        """
        self._is_finished = True
        if remember:
            raise ValueError("remember needs a drafter with a memory, got a Lookahead")

    def _check_running(self) -> None:
        if self._is_finished:
            raise RuntimeError("the session is finished; begin a new one")
