"""run: one call of ``generate`` from what it was handed to what it gives back."""

from __future__ import annotations

import time

from zerodraft.integrations.hf.chains import ChainTarget
from zerodraft.integrations.hf.checks import check_call, check_drafter, check_positions
from zerodraft.integrations.hf.decode import Loop
from zerodraft.integrations.hf.families import Way
from zerodraft.integrations.hf.handed import Handed
from zerodraft.integrations.hf.near_ties import NearTies
from zerodraft.integrations.hf.output import Output, hand_back, package
from zerodraft.integrations.hf.prompts import Prompts
from zerodraft.integrations.hf.request import Request
from zerodraft.integrations.hf.rows import make_rows
from zerodraft.integrations.hf.sessions import SessionMaker
from zerodraft.integrations.hf.sieve import Sieve, never_said
from zerodraft.integrations.hf.target import Target, Verifier
from zerodraft.lookup.chained import Chained
from zerodraft.lookup.measure.stats import GenerationStats


def run(call: Handed, drafter: SessionMaker, request: Request, stats: GenerationStats) -> Output:
    """Write what plain ``generate`` would write, in fewer forwards; see ``docs/exactness.md`` for what is promised.

    Everything that cannot be done is refused before the first forward. ``stats`` is filled in as the loop goes.
    """
    started = time.perf_counter()
    model, config = call.model, call.config
    way = check_call(call, request)
    check_drafter(drafter, config, request)
    prompts = _prompts(call, way)
    ties = NearTies(model.dtype) if request.tie_guard == "report" else None
    rows = make_rows(call, prompts, request, ties)
    target: Verifier
    if way == "chains":
        chains = target = ChainTarget(model, call.input_ids, config, {**call.model_kwargs, "cache": call.cache})
        drafter = Chained(drafter, lambda: chains.num_pending)
    else:
        target = Target(model, len(rows), request.compile)
    check_positions(model, target, prompts, config)
    sieve = Sieve(target.vocab_size, never_said(model, config), only_chains=target.only_chains)
    loop = Loop(target, rows, drafter, sieve, request, stats)
    remember = False
    try:
        loop.begin(prompts)
        loop.prefill(prompts.unread(), call.cache, config.prefill_chunk_size)
        with model._optimize_model_for_decode():
            while loop.running:
                loop.step()
        stats.finish_reasons = [row.finish_reason for row in rows if row.finish_reason is not None]
        remember = request.remember
    finally:
        loop.finish(remember)
        stats.num_near_ties = 0 if ties is None else ties.count
        stats.total_seconds += time.perf_counter() - started
    if request.streamer is not None:
        request.streamer.end()
    return package(model, rows, prompts, config, hand_back(target, call.cache, config, len(rows)))


def _prompts(call: Handed, way: Way) -> Prompts:
    """The rows to continue, read as the way needs it; takes the prompt's arguments out of ``model_kwargs``."""
    if way == "chains":
        return Prompts.read_chain(call.model, call.input_ids, call.model_kwargs, call.source_ids, call.cache)
    return Prompts.read(call.model, call.input_ids, call.config, call.cache, call.model_kwargs)
