"""The decoding loop: propose, check in one forward, walk, commit. Every row exactly as plain decoding writes it."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from zerodraft.integrations.hf.chains import ChainTarget
from zerodraft.integrations.hf.families import Way
from zerodraft.integrations.hf.fused import walk_together
from zerodraft.integrations.hf.generators import generators_of
from zerodraft.integrations.hf.near_ties import NearTies
from zerodraft.integrations.hf.prompts import Prompts
from zerodraft.integrations.hf.request import Request, warn_without_effect
from zerodraft.integrations.hf.row import Row, split_processors
from zerodraft.integrations.hf.sieve import Sieve, never_said
from zerodraft.integrations.hf.support import check_cache, check_mode, check_options, refuse, way_of_call
from zerodraft.integrations.hf.target import Target, Verifier
from zerodraft.kernels.verify import Walk, walk
from zerodraft.lookup.chained import Chained
from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.measure.stats import GenerationStats


class Session(Protocol):
    """What the loop needs of a draft session; ``zerodraft.DraftSession`` is the one people use.

    A session with an attribute ``num_topk`` > 0 gets that many of the target's likeliest tokens at every computed
    position in ``Outcome.topk``.
    """

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Draft: ...

    def commit(self, draft: Draft, outcome: Outcome) -> None: ...

    def finish(self, remember: Any = False) -> None: ...


class SessionMaker(Protocol):
    """What the loop needs of a drafter; ``propose_batch`` as of ``zerodraft.Drafter`` is used where there is one."""

    def begin(self, prompt_ids: Any, prediction_ids: Any = None, namespace: Any = None) -> Session: ...


class _Silent:
    """Drafter and session of a call that drafts nothing and keeps nothing."""

    def begin(self, prompt_ids: Any, prediction_ids: Any = None, namespace: Any = None) -> _Silent:
        return self

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Draft:
        return Draft.empty()

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        pass

    def finish(self, remember: Any = False) -> None:
        pass


def decode(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    config: GenerationConfig,
    drafter: SessionMaker,
    request: Request,
    stats: GenerationStats,
    model_kwargs: dict[str, Any],
) -> torch.Tensor | GenerateDecoderOnlyOutput | GenerateEncoderDecoderOutput:
    """Write what plain ``generate`` would write, in fewer forwards; see ``docs/exactness.md`` for what is promised.

    Everything that cannot be done is refused before the first forward. ``stats`` is filled in as the loop goes.
    """
    started = time.perf_counter()
    given_cache = model_kwargs.pop("cache", model_kwargs.pop("past_key_values", None))
    source_ids = model_kwargs.pop("inputs_tensor", None)
    way = _check(model, config, given_cache, input_ids, request, model_kwargs)
    _check_own(drafter, config, request)
    if way == "chains":
        prompts = Prompts.read_chain(model, input_ids, model_kwargs, source_ids, given_cache)
    else:
        prompts = Prompts.read(model, input_ids, config, given_cache, model_kwargs)
    ties = NearTies(model.dtype) if request.tie_guard == "report" else None
    rows = _make_rows(model, prompts, logits_processor, stopping_criteria, config, request, ties)
    target: Verifier
    if way == "chains":
        chains = target = ChainTarget(model, input_ids, config, {**model_kwargs, "cache": given_cache})
        drafter = Chained(drafter, lambda: chains.num_pending)
    else:
        target = Target(model, len(rows), request.compile)
    _check_positions(model, target, prompts, config)
    sieve = Sieve(target.vocab_size, never_said(model, config), only_chains=target.only_chains)
    loop = _Loop(target, rows, stats, drafter, prompts, request, sieve)
    is_finished = False
    try:
        loop.prefill(given_cache, config.prefill_chunk_size)
        with model._optimize_model_for_decode():
            while loop.running:
                loop.step()
        stats.finish_reasons = [row.finish_reason for row in rows if row.finish_reason is not None]
        is_finished = True
    finally:
        loop.finish(request.remember if is_finished else False)
        stats.num_near_ties = 0 if ties is None else ties.count
        stats.total_seconds += time.perf_counter() - started
    if request.streamer is not None:
        request.streamer.end()
    cache = _hand_back(target, given_cache, config, len(rows))
    return _package(model, rows, prompts, config, cache)


def _check(
    model: PreTrainedModel,
    config: GenerationConfig,
    cache: Any,
    input_ids: torch.Tensor,
    request: Request,
    model_kwargs: dict[str, Any],
) -> Way:
    """Refuse what cannot be done, and say which way this call goes."""
    num_rows = input_ids.shape[0]
    check_mode(model)
    way = way_of_call(model, input_ids, config, cache, model_kwargs)
    check_options(model, config)
    if cache is not None:
        check_cache(model, cache, num_rows, way)
    if num_rows > 1 and request.streamer is not None:
        raise refuse("a streamer and a batch", model, f"rows advance by themselves, streamers read one; got {num_rows}")
    return way


def _check_own(drafter: SessionMaker, config: GenerationConfig, request: Request) -> None:
    """What could not be remembered, and what would do nothing, is said before the text is written, not after."""
    has_memory = getattr(drafter, "memory", drafter) is not None
    if request.remember and not has_memory:
        raise ValueError("remember needs a drafter with a memory: Drafter(memory=DraftMemory(...)), got one without")
    if request.seeds is not None and not config.do_sample:
        warn_without_effect("seeds", "without do_sample=True")
    if request.namespace is not None and not has_memory and getattr(drafter, "recycle", False) != "shared":
        warn_without_effect("namespace", 'on a drafter without a memory or recycle="shared"')
    if request.prediction_ids is not None and not request.max_nodes:
        warn_without_effect("prediction_ids", "where nothing is drafted")


def _check_positions(model: PreTrainedModel, target: Verifier, prompts: Prompts, config: GenerationConfig) -> None:
    """The scale of a row's positions must not depend on the rows beside it."""
    lengths = prompts.is_text.sum(1).tolist()
    border = target.border_between(lengths, max(lengths) + config.max_length - prompts.ids.shape[1])
    if border is not None:
        reason = f"a row of up to {border} tokens would be scaled as a longer one beside it"
        raise refuse(f"rows on both sides of position {border}", model, reason)


def _make_rows(
    model: PreTrainedModel,
    prompts: Prompts,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    request: Request,
    ties: NearTies | None,
) -> list[Row]:
    num_rows = len(prompts)
    generators = generators_of(num_rows, request.seeds, bool(config.do_sample), prompts.ids.device)
    wants = bool(config.return_dict_in_generate)
    # Without max_new_tokens generate goes no further than the model's context: then that, not a wish, is the limit.
    context = getattr(model.config, "max_position_embeddings", None)
    is_context = config.max_new_tokens is None and config.max_length == context
    return [
        Row(
            prompts.ids[index],
            processors=split_processors(processors, index, num_rows),
            criteria=criteria if num_rows == 1 else copy.deepcopy(criteria),
            do_sample=bool(config.do_sample),
            max_length=config.max_length,
            is_context=is_context,
            generator=generators[index],
            streamer=request.streamer,
            keep_scores=wants and bool(config.output_scores),
            keep_logits=wants and bool(config.output_logits),
            ties=ties,
        )
        for index in range(num_rows)
    ]


class _Loop:
    """Rows that are still being written, in the order in which they stand in the forward."""

    def __init__(
        self,
        target: Verifier,
        rows: list[Row],
        stats: GenerationStats,
        drafter: SessionMaker,
        prompts: Prompts,
        request: Request,
        sieve: Sieve,
    ) -> None:
        self._target, self._stats = target, stats
        self._request, self._sieve = request, sieve
        self._prompts, self._drafter = prompts, drafter
        self.running = list(rows)
        self._numbers = list(range(len(rows)))  # of the running rows, as the caller counts them
        self._step_started = 0.0
        self._sessions: list[Session] = []
        self._open: list[Session] = []
        if not request.max_nodes and not request.remember:
            drafter = self._drafter = _Silent()
        started = time.perf_counter()
        try:
            for index in range(len(rows)):
                predicted = prompts.prediction_ids(index, request.prediction_ids)
                if predicted is not None:
                    predicted = sieve.known(predicted, "prediction_ids")
                text = sieve.known(prompts.text_ids(index), "prompt token ids")
                session = drafter.begin(text, predicted, request.namespace)
                self._sessions.append(session)
                self._open.append(session)
        except BaseException:
            self.finish(False)
            raise
        self._stats.draft_seconds += time.perf_counter() - started

    def prefill(self, cache: Any, chunk_size: int | None) -> None:
        """Read the prompts and emit every row's first token."""
        started = self._step_started = time.perf_counter()
        if cache is not None:
            self._target.load(cache)
        logits = self._target.prefill(self._prompts.unread(), chunk_size=chunk_size)
        self._stats.prefill_seconds += time.perf_counter() - started
        self._stats.num_prefill_forwards += 1
        drafts = [Draft.empty()] * len(self.running)
        self._settle(
            [self._walk(index, draft, after) for index, (draft, after) in enumerate(zip(drafts, logits))], drafts
        )

    def step(self) -> None:
        """One forward for all running rows: up to a whole draft plus one token each."""
        self._step_started = time.perf_counter()
        drafts = self._propose()
        started = time.perf_counter()
        logits = self._target.check([row.last_id for row in self.running], drafts)
        self._stats.forward_seconds += time.perf_counter() - started
        self._stats.num_decode_forwards += 1
        self._stats.num_positions += sum(len(row) for row in logits) + self._target.num_replayed
        self._stats.num_replayed_positions += self._target.num_replayed
        started = time.perf_counter()
        walks: Sequence[Walk | None] = walk_together(self.running, drafts, logits) or [None] * len(drafts)
        outcomes = [
            self._walk(index, draft, logits[index], done) for index, (draft, done) in enumerate(zip(drafts, walks))
        ]
        # The last emitted token is not in the cache yet: it is the next forward's root.
        self._target.keep([[0, *(node + 1 for node in outcome.path)][: len(outcome.new_ids)] for outcome in outcomes])
        self._stats.verify_seconds += time.perf_counter() - started
        self._settle(outcomes, drafts, is_prefill=False)

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

    def _walk(self, index: int, draft: Draft, logits: torch.Tensor, done: Walk | None = None) -> Outcome:
        """Let a row go down its draft. ``logits`` (positions, V): row 0 after the root, row i + 1 after node i.

        ``done`` is the walk itself where all rows were walked together.
        """
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

    def _settle(self, outcomes: list[Outcome], drafts: list[Draft], *, is_prefill: bool = True) -> None:
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


def _hand_back(target: Verifier, given: Any, config: GenerationConfig, num_rows: int) -> Any:
    """Fill the cache that generate prepared, or that the user handed in, where somebody will look at it."""
    if num_rows > 1:
        return None
    makes_its_own = given is None and isinstance(target, ChainTarget)
    is_kept = config.return_dict_in_generate or getattr(given, "_is_user_defined", False)
    return target.store(given) if is_kept and (given is not None or makes_its_own) else given


def _package(
    model: PreTrainedModel, rows: list[Row], prompts: Prompts, config: GenerationConfig, cache: Any
) -> torch.Tensor | GenerateDecoderOnlyOutput | GenerateEncoderDecoderOutput:
    """Put the rows side by side, shorter ones padded on the right."""
    pad = config._pad_token_tensor
    pad_id = 0 if pad is None else int(pad)
    length = max(row.length for row in rows)
    sequences = prompts.ids.new_full((len(rows), length), pad_id)
    for index, row in enumerate(rows):
        sequences[index, : row.length] = row.ids[0]
    if not config.return_dict_in_generate:
        return sequences
    kind = GenerateEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateDecoderOnlyOutput
    return kind(
        sequences=sequences,
        scores=_side_by_side([row.scores for row in rows], pad_id),
        logits=_side_by_side([row.logits for row in rows], pad_id),
        cache=cache,
    )


def _side_by_side(per_row: list[tuple[torch.Tensor, ...] | None], pad_id: int) -> tuple[torch.Tensor, ...] | None:
    """Per-row tuples of (1, V) as one tuple of (B, V); a row that has ended is certain of the padding token."""
    tuples = [entry for entry in per_row if entry is not None]
    if not tuples:
        return None
    if len(tuples) == 1:
        return tuples[0]
    ended = torch.full_like(tuples[0][0], -torch.inf)
    ended[0, pad_id] = 0.0
    longest = max(len(entry) for entry in tuples)
    return tuple(
        torch.cat([entry[index] if index < len(entry) else ended for entry in tuples]) for index in range(longest)
    )
