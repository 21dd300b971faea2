"""Beside: a drafter with Lookahead beside it, one draft and one node budget for both, and no window where none pays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from zerodraft.lookup.budget import share_budget
from zerodraft.lookup.checks import shown
from zerodraft.lookup.cost import DEFAULT_CURVE, CostCurve
from zerodraft.lookup.draft import WINDOW, Draft, Outcome
from zerodraft.lookup.drafter import DraftSession
from zerodraft.lookup.lookahead.lookahead import Lookahead, LookaheadSession
from zerodraft.lookup.lookahead.ngram_pool import GuessTrie, joined

MAX_POSITIONS: Final = 512  # of one forward; costs are looked up to here
WINDOW_PART: Final = 0.4  # of the node budget, at most
SURE: Final = 0.8  # a draft whose first token is that likely needs neither window nor guesses
MIN_PROB: Final = 0.002
TRIAL: Final = 24  # forwards with a window before it is judged
MIN_PART: Final = 0.6  # a window whose cost exceeds this many saved forwards is never tried: the best known saves less
FIRST_PAUSE: Final = 64  # steps without a window after it did not pay; each time twice as many


class Session(Protocol):
    """What is needed of the other drafter's session."""

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Draft: ...

    def commit(self, draft: Draft, outcome: Outcome) -> None: ...

    def finish(self, remember: Any = False) -> None: ...


class Maker(Protocol):
    """What is needed of the other drafter."""

    def begin(self, prompt_ids: Any, prediction_ids: Any = None, namespace: Any = None) -> Session: ...


class Beside:
    """A drafter and a Lookahead in one: ``begin`` as every drafter.

    The other drafter's nodes and the pool's guesses are one tree; a token that both propose in the same place is one
    node. The likeliest nodes stay within the budget, guesses only as far as they pay. Where the first token of the
    other draft is nearly sure the forward carries no window. A window is judged after a trial by what guesses won
    against what it cost, and pauses where it did not pay.
    """

    def __init__(self, drafter: Maker, lookahead: Lookahead) -> None:
        if not isinstance(lookahead, Lookahead):
            raise ValueError(f"lookahead must be a Lookahead, got {shown(lookahead)}")
        self.drafter: Final = drafter
        self.lookahead: Final = lookahead

    @property
    def memory(self) -> Any:
        """Where the other drafter keeps what is to be remembered, None: nowhere; itself, if it does not say."""
        return getattr(self.drafter, "memory", self.drafter)

    def begin(self, prompt_ids: Any, prediction_ids: Any = None, namespace: Any = None) -> BesideSession:
        """Start one request with both.

        Raises:
            ValueError: what either of them refuses.
        """
        guessing = self.lookahead.begin(prompt_ids, prediction_ids, namespace)
        policy = getattr(self.drafter, "policy", None)
        curve: CostCurve = getattr(policy, "curve", DEFAULT_CURVE)
        max_nodes: int = getattr(policy, "max_row_tokens", MAX_POSITIONS)
        return BesideSession(self.drafter.begin(prompt_ids, prediction_ids, namespace), guessing, curve, max_nodes)

    def propose_batch(
        self, sessions: Sequence[BesideSession], max_tokens: int, max_depths: Sequence[int | None]
    ) -> list[Draft]:
        """Draft for the rows of one batch, which share the target's forward and so its cost; one depth for each.

        What a policy allows the batch is divided evenly: a window that loses nodes to another row would be of no use.
        """
        num_rows = len(sessions)
        most = getattr(getattr(self.drafter, "policy", None), "max_batch_tokens", None)
        if most is not None and num_rows:
            max_tokens = min(max_tokens, most // num_rows)
        return [session.propose(max_tokens, depth, num_rows=num_rows) for session, depth in zip(sessions, max_depths)]


class BesideSession:
    """One request of both drafters. Not thread-safe."""

    def __init__(self, other: Session, guessing: LookaheadSession, curve: CostCurve, max_nodes: int) -> None:
        self._other, self._guessing = other, guessing
        self._curve, self._num_rows = curve, 1
        self._costs, self._max_nodes = curve.table(MAX_POSITIONS), max_nodes
        self._trial = WindowTrial()
        self._tokens, self._spent = 8.0, 4.0  # emitted, and the cost of their forwards: what a token is worth
        self._extra_cost = -1.0  # of the window and the guesses in the forward under way, -1: none

    @property
    def num_topk(self) -> int:
        """How many of the target's likeliest tokens ``commit`` wants at every position."""
        return max(self._guessing.num_topk, getattr(self._other, "num_topk", 0))

    @property
    def stand_down_reason(self) -> str | None:
        """Why the window, or the other drafter, mostly stands down; None if neither does."""
        return self._trial.reason or getattr(self._other, "stand_down_reason", None)

    def propose(self, max_tokens: int, max_depth: int | None = None, *, num_rows: int = 1) -> Draft:
        """Draft from both sources; ``num_rows`` rows share the forward.

        Raises:
            ValueError: a negative bound. RuntimeError: the session is finished.
        """
        if num_rows != self._num_rows:
            self._num_rows, self._costs = num_rows, self._curve.shared_by(num_rows).table(MAX_POSITIONS)
        room = min(max_tokens, self._max_nodes, MAX_POSITIONS - 1)
        depth = room if max_depth is None else max_depth
        if isinstance(self._other, DraftSession):
            draft = self._other.propose(max_tokens, max_depth, num_rows=num_rows)
        else:
            draft = self._other.propose(max_tokens, max_depth)
        before = self._costs[min(1 + len(draft), MAX_POSITIONS)]
        self._extra_cost = -1.0
        if room <= 0 or depth <= 0 or (len(draft) and draft.probs[0] >= SURE):
            return self._guessing.with_window(draft, 0)
        window = self._guessing.window
        columns = window.num_columns(int(room * WINDOW_PART), depth)
        price = self._spent / max(self._tokens, self._spent)
        extra = self._costs[min(1 + len(draft) + window.size(columns), MAX_POSITIONS)] - before
        if not self._trial.wants(extra, price):
            columns = 0
        trie = self._guessing.guesses(room, depth)
        draft = self._with_guesses(draft, trie, room - window.size(columns), price)
        draft = self._guessing.with_window(draft, columns)
        if columns:
            self._extra_cost = float(self._costs[min(1 + len(draft), MAX_POSITIONS)] - before) / price
        return draft

    def _with_guesses(self, draft: Draft, trie: GuessTrie, room: int, price: float) -> Draft:
        """The draft with the guesses that pay, cut to its likeliest ``room`` nodes."""
        order = [node for node in sorted(range(len(trie)), key=lambda i: -trie.probs[i]) if trie.probs[node] > MIN_PROB]
        gain = best = 0.0
        count, size = 0, len(draft)
        for taken, node in enumerate(order[: MAX_POSITIONS - 1 - size], start=1):
            gain += trie.probs[node] * price - (self._costs[1 + size + taken] - self._costs[size + taken])
            if gain > best:
                best, count = gain, taken
        draft = joined(draft, trie, order[:count])
        return share_budget([draft], room)[0]

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        """Tell both what happened, and the trial what the window won.

        Raises:
            ValueError, RuntimeError: as the other drafter's session.
        """
        self._other.commit(draft, outcome)
        self._guessing.commit(draft, outcome)
        self._tokens = 0.95 * self._tokens + len(outcome.new_ids)
        self._spent = 0.95 * self._spent + float(self._costs[min(1 + len(draft), MAX_POSITIONS)])
        num_won = sum(1 for node in outcome.path if draft.source[node] == WINDOW)
        self._trial.record(num_won, self._extra_cost)

    def finish(self, remember: Any = False) -> None:
        """End both sessions."""
        self._guessing.finish()
        self._other.finish(remember=remember)


class WindowTrial:
    """Whether a window pays: tried, judged by what guesses won against its cost, paused, tried again."""

    def __init__(self) -> None:
        self._num_tried = 0
        self._won = self._cost = 0.0
        self._pause, self._next_pause = 0, FIRST_PAUSE
        self.reason: str | None = None

    def wants(self, cost: float, price: float) -> bool:
        """Should this forward carry a window that costs so much? ``price``: what an accepted token saves."""
        if cost > MIN_PART * price:
            self.reason = f"the window stood down: it would cost {cost:.2f} forwards, {MIN_PART * price:.2f} may pay"
            return False
        if self._pause > 0:
            return False
        if self._num_tried >= TRIAL and self._won < self._cost:
            won, spent = self._won / self._num_tried, self._cost / self._num_tried
            self.reason = f"the window stood down: it won {won:.2f} tokens a forward for the cost of {spent:.2f}"
            self._pause, self._next_pause = self._next_pause, 2 * self._next_pause
            self._num_tried, self._won, self._cost = 0, 0.0, 0.0
            return False
        self.reason = None
        return True

    def record(self, num_won: int, cost: float) -> None:
        """Count a forward: accepted guesses, and the window's cost in accepted tokens, -1 if it carried none."""
        if cost < 0:
            self._pause = max(0, self._pause - 1)
            return
        self._num_tried += 1
        self._won += num_won
        self._cost += cost
