"""The decoding loop: propose, check in one forward, verify, commit. Every row exactly as plain decoding writes it.

Source: Leviathan et al., *Fast Inference from Transformers via Speculative Decoding* (arXiv:2211.17192), Algorithm 1.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from zerodraft.integrations.hf.fused import walk_together
from zerodraft.integrations.hf.prompts import Prompts
from zerodraft.integrations.hf.request import Request
from zerodraft.integrations.hf.row import Row
from zerodraft.integrations.hf.sessions import Session, SessionMaker, Silent
from zerodraft.integrations.hf.sieve import Sieve
from zerodraft.integrations.hf.target import Verifier
from zerodraft.kernels.verify import Walk, walk
from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.measure.stats import GenerationStats


class Loop:
    """Rows that are still being written, in the order in which they stand in the forward.

    ``begin``, ``prefill``, then ``step`` while there are ``running`` rows, and ``finish`` whatever happens.
    """

    def __init__(
        self,
        target: Verifier,
        rows: Sequence[Row],
        drafter: SessionMaker,
        sieve: Sieve,
        request: Request,
        stats: GenerationStats,
    ) -> None:
        """``sieve``: what of a draft a row can use. ``stats``: filled in as the loop goes."""
        self._target, self._sieve, self._request, self._stats = target, sieve, request, stats
        self._drafter = drafter if request.max_nodes or request.remember else Silent()
        self.running = list(rows)
        self._numbers = list(range(len(rows)))  # of the running rows, as the caller counts them
        self._sessions: list[Session] = []  # of the running rows
        self._open: list[Session] = []  # of all rows
        self._step_started = 0.0

    def begin(self, prompts: Prompts) -> None:
        """Open a session for every row."""
        started = time.perf_counter()
        for index in self._numbers:
            predicted = prompts.prediction_ids(index, self._request.prediction_ids)
            if predicted is not None:
                predicted = self._sieve.known(predicted, "prediction_ids")
            text = self._sieve.known(prompts.text_ids(index), "prompt token ids")
            session = self._drafter.begin(text, predicted, self._request.namespace)
            self._sessions.append(session)
            self._open.append(session)
        self._stats.draft_seconds += time.perf_counter() - started

    def prefill(self, unread: Sequence[torch.Tensor], cache: Any, chunk_size: int | None) -> None:
        """Read the prompts, or what ``cache`` does not hold of them, and emit every row's first token."""
        self._step_started = time.perf_counter()
        if cache is not None:
            self._target.load(cache)
        logits = self._target.prefill(unread, chunk_size=chunk_size)
        self._stats.prefill_seconds += time.perf_counter() - self._step_started
        self._stats.num_prefill_forwards += 1
        drafts = [Draft.empty()] * len(self.running)
        outcomes = [self._verify_row(row, drafts[row], logits[row]) for row in range(len(drafts))]
        self._commit(drafts, outcomes, is_prefill=True)

    def step(self) -> None:
        """One forward for all running rows: up to a whole draft plus one token each."""
        self._step_started = time.perf_counter()
        drafts = self._propose()
        logits = self._check(drafts)
        outcomes = self._verify(drafts, logits)
        self._commit(drafts, outcomes)

    def _propose(self) -> list[Draft]:
        """A draft per running row; rows of one batch share the forward, so a drafter may weigh them together."""
        started = time.perf_counter()
        drafts = [Draft.empty()] * len(self.running)
        depths = {}
        most = self._request.max_nodes
        for index, row in enumerate(self.running):
            depth = min(row.num_wanted - 1, self._target.max_draft_depth(index), most)
            if depth > 0:
                depths[index] = depth
        sessions = [self._sessions[index] for index in depths]
        together = getattr(self._drafter, "propose_batch", None) if len(self.running) > 1 else None
        if together is not None:
            proposed = together(sessions, most, list(depths.values()))
        else:
            proposed = [session.propose(most, depths[i]) for i, session in zip(depths, sessions)]
        for (index, depth), draft in zip(depths.items(), proposed):
            drafts[index] = self._sieve.fit(draft, most, depth)
        self._stats.draft_seconds += time.perf_counter() - started
        return drafts

    def _check(self, drafts: Sequence[Draft]) -> Sequence[torch.Tensor]:
        """The forward: per row logits (1 + nodes, V), after the last emitted token and after each node."""
        started = time.perf_counter()
        logits = self._target.check([row.last_id for row in self.running], drafts)
        stats, num_replayed = self._stats, self._target.num_replayed
        stats.forward_seconds += time.perf_counter() - started
        stats.num_decode_forwards += 1
        stats.num_positions += sum(len(row) for row in logits) + num_replayed
        stats.num_replayed_positions += num_replayed
        return logits

    def _verify(self, drafts: Sequence[Draft], logits: Sequence[torch.Tensor]) -> list[Outcome]:
        """Walk down every draft while the target agrees; the cache keeps what was walked."""
        started = time.perf_counter()
        walks: Sequence[Walk | None] = walk_together(self.running, drafts, logits) or [None] * len(drafts)
        outcomes = [self._verify_row(row, drafts[row], logits[row], walks[row]) for row in range(len(drafts))]
        # The last emitted token is not in the cache yet: it is the next forward's root.
        self._target.keep([[0, *(node + 1 for node in outcome.path)][: len(outcome.new_ids)] for outcome in outcomes])
        self._stats.verify_seconds += time.perf_counter() - started
        return outcomes

    def _verify_row(self, index: int, draft: Draft, logits: torch.Tensor, done: Walk | None = None) -> Outcome:
        """Let a row go down its draft; ``done`` is the walk itself where all rows were walked together."""
        row = self.running[index]
        is_wide = len(draft) > 0 or self._target.num_replayed > 0
        num_topk = getattr(self._sessions[index], "num_topk", 0) if self._request.max_nodes else 0
        topk = (
            torch.topk(logits[: 1 + len(draft)], num_topk).indices.to("cpu", torch.int32).numpy() if num_topk else None
        )
        done = done or walk(
            draft.token_ids.tolist(),
            draft.parents.tolist(),
            draft.verify.tolist(),
            lambda node: row.step(logits[node + 1 : node + 2], is_wide=is_wide),
        )
        return Outcome(path=done.path, new_ids=done.new_ids, stop=done.stop, topk=topk)  # type: ignore[arg-type]

    def _commit(self, drafts: Sequence[Draft], outcomes: Sequence[Outcome], *, is_prefill: bool = False) -> None:
        """Tell sessions and statistics what happened; finished rows leave the forward."""
        started = time.perf_counter()
        for session, draft, outcome in zip(self._sessions, drafts, outcomes):
            session.commit(draft, outcome)
        ended = time.perf_counter()
        self._stats.draft_seconds += ended - started
        for number, draft, outcome in zip(self._numbers, drafts, outcomes):
            self._stats.record(draft, outcome, is_prefill=is_prefill, row=number, seconds=ended - self._step_started)
        alive = [index for index, row in enumerate(self.running) if not row.is_done]
        if 0 < len(alive) < len(self.running):
            self._target.select_rows(alive)
        self.running = [self.running[index] for index in alive]
        self._sessions = [self._sessions[index] for index in alive]
        self._numbers = [self._numbers[index] for index in alive]

    def finish(self, remember: Any) -> None:
        """Close every session; ``remember`` as the caller of generate asked."""
        stats, sieve = self._stats, self._sieve
        stats.num_foreign_tokens = sieve.num_foreign_tokens
        stats.num_pruned_tokens = sieve.num_pruned_tokens
        reasons = [self._request.off_reason, *(getattr(session, "stand_down_reason", None) for session in self._open)]
        if not stats.has_paid:
            stats.stand_down_reason = next((reason for reason in reasons if reason is not None), None)
        while self._open:
            self._open.pop(0).finish(remember=remember)
