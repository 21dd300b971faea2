"""Beside: a drafter with Lookahead beside it, in one draft and one budget, and no window where none pays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from zerodraft.lookup._block import MATCH, NUM_ROWS, ORIGIN, PARENT, PRICE, PROB, SOURCE, TOKEN, WINDOW
from zerodraft.lookup._merge import MIN_PROB, SURE
from zerodraft.lookup.checks import shown
from zerodraft.lookup.cost import DEFAULT_CURVE
from zerodraft.lookup.draft import Draft, Session
from zerodraft.lookup.drafter import Drafter, DraftSession
from zerodraft.lookup.lookahead.jacobi_window import Columns
from zerodraft.lookup.lookahead.lookahead import Lookahead, LookaheadSession
from zerodraft.lookup.policy import DraftPolicy
from zerodraft.lookup.sources.candidates import Candidates
from zerodraft.lookup.sources.source import Source, Step

MAX_NODES: Final = 511  # of a draft, where the other drafter's policy does not say
NEVER: Final = 4096  # a match that is asked for and that no text has
WINDOW_PART: Final = 0.4  # of the node budget, at most
TRIAL: Final = 24  # forwards with a window before it is judged
MIN_PART: Final = 0.6  # a window whose cost exceeds this many saved forwards is never tried: the best known saves less
FIRST_PAUSE: Final = 64  # steps without a window after it did not pay; each time twice as many


class Beside:
    """A drafter and a Lookahead in one: ``begin`` as every drafter.

    The pool's guesses are one more source of the drafter's sessions, and its window rides along where the first token
    of the draft is not nearly sure. A window is judged after a trial by what guesses won against what it cost, and
    pauses where it did not pay. Of a drafter that is no ``Drafter`` the session is one more source itself.
    """

    def __init__(self, drafter: Any, lookahead: Lookahead) -> None:
        if not isinstance(lookahead, Lookahead):
            raise ValueError(f"lookahead must be a Lookahead, got {shown(lookahead)}")
        self.drafter: Final = drafter
        self.lookahead: Final = lookahead

    @property
    def memory(self) -> Any:
        """Where the other drafter keeps what is to be remembered, None: nowhere; itself, if it does not say."""
        return getattr(self.drafter, "memory", self.drafter)

    def begin(self, prompt_ids: Any, prediction_ids: Any = None, namespace: Any = None) -> DraftSession | BesideSession:
        """Start one request with both.

        Raises:
            ValueError: what either of them refuses.
        """
        guesses = LookaheadSource(self.lookahead.begin(prompt_ids, prediction_ids, namespace))
        if isinstance(self.drafter, Drafter):
            drafter = self.drafter.with_sources(lambda _: guesses)
            return drafter.begin(prompt_ids, prediction_ids, namespace)
        other = SessionSource(self.drafter.begin(prompt_ids, prediction_ids, namespace))
        curve = getattr(getattr(self.drafter, "policy", None), "curve", DEFAULT_CURVE)
        policy = DraftPolicy(curve, MAX_NODES, prompt_lookup_min=NEVER, prompt_lookup_max=NEVER)
        drafter = Drafter(policy=policy, sources=[lambda _: other, lambda _: guesses])
        return BesideSession(drafter.begin(prompt_ids, prediction_ids, namespace), other.session)

    def propose_batch(self, sessions: Sequence[Any], max_tokens: int, max_depths: Sequence[int | None]) -> list[Draft]:
        """Draft for the rows of one batch, which share the target's forward and so its cost; one depth for each.

        What a policy allows the batch is divided evenly: a window that loses nodes to another row would be of no use.
        """
        num_rows = len(sessions)
        most = getattr(getattr(self.drafter, "policy", None), "max_batch_tokens", None)
        if most is not None and num_rows:
            max_tokens = min(max_tokens, most // num_rows)
        return [session.propose(max_tokens, depth, num_rows=num_rows) for session, depth in zip(sessions, max_depths)]


class SessionSource(Source):
    """Any drafter's session as a source."""

    def __init__(self, session: Session) -> None:
        self.session: Final = session
        self.num_topk = getattr(session, "num_topk", 0)

    def propose(self, candidates: Candidates) -> None:
        draft = self.session.propose(candidates.max_nodes, candidates.max_depth)
        part = np.empty((NUM_ROWS, len(draft)), np.int32)
        part[TOKEN], part[PARENT], part[MATCH] = draft.token_ids, draft.parents, draft.match_len
        part[ORIGIN], part[SOURCE] = -1, draft.source
        part[PROB].view(np.float32)[:], part[PRICE].view(np.float32)[:] = draft.probs, candidates.price
        candidates.add_part(part)

    def learn(self, step: Step) -> None:
        self.session.commit(step.draft, step.outcome)
        self.reason = getattr(self.session, "stand_down_reason", None)


class LookaheadSource(Source):
    """The guesses of a Lookahead, and its window where that may pay."""

    num_topk = LookaheadSession.num_topk

    def __init__(self, session: LookaheadSession) -> None:
        self._session = session
        self._trial = WindowTrial()
        self._columns: Columns = []  # of the window that was offered last, counted from its first node
        self._price = 1.0

    def propose(self, candidates: Candidates) -> None:
        self._columns, self._price = [], candidates.price
        trie = self._session.guesses(candidates.max_nodes, candidates.max_depth)
        order = [node for node in sorted(range(len(trie)), key=lambda i: -trie.probs[i]) if trie.probs[node] > MIN_PROB]
        place = {-1: -1} | {node: at for at, node in enumerate(order)}
        ids, probs = [trie.token_ids[node] for node in order], [trie.probs[node] for node in order]
        candidates.add(ids, [place[trie.parents[node]] for node in order], probs=probs, source=WINDOW)

    def complete(self, candidates: Candidates) -> None:
        if candidates.first_prob >= SURE:
            return
        window, costs = self._session.window, candidates.tables.costs
        columns = window.num_columns(int(candidates.max_nodes * WINDOW_PART), candidates.max_depth)
        size = window.size(columns)
        is_wanted = columns and self._trial.wants(float(costs[1 + size] - costs[1]), candidates.price)
        self.reason = self._trial.reason
        if is_wanted:
            ids, parents, self._columns = window.nodes(columns, 0)
            candidates.ride_along(ids, parents, MIN_PART * candidates.price)

    def learn(self, step: Step) -> None:
        draft, costs = step.draft, step.tables.costs
        ours = draft.source == WINDOW
        first = int(draft.verify.sum())
        has_window = first < len(draft) and step.is_own
        columns = [node + first if node >= 0 else -1 for node in self._columns] if has_window else []
        self._session.learn(step.outcome, step.is_own, columns)
        cost = float(costs[1 + len(draft)] - costs[1 + len(draft) - int(ours.sum())]) if step.is_own else 0.0
        num_won = int(ours[list(step.outcome.path)].sum())
        self._trial.record(num_won, cost / self._price if has_window else -1.0)
        self.reason = self._trial.reason


class BesideSession:
    """A session of sources one of which is another drafter's session, which is finished with it."""

    def __init__(self, session: DraftSession, other: Session) -> None:
        self._session, self._other = session, other

    def finish(self, remember: Any = False) -> None:
        """End both; what is to be remembered is the other drafter's to keep."""
        self._session.finish()
        self._other.finish(remember=remember)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


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
