"""What one call is checked for before the first forward: what cannot be done, what would do nothing."""

from __future__ import annotations

from transformers import GenerationConfig, PreTrainedModel

from zerodraft.integrations.hf.families import Way
from zerodraft.integrations.hf.handed import Handed
from zerodraft.integrations.hf.prompts import Prompts
from zerodraft.integrations.hf.request import Request, warn_without_effect
from zerodraft.integrations.hf.sessions import SessionMaker
from zerodraft.integrations.hf.support import check_cache, check_mode, check_options, refuse, way_of_call
from zerodraft.integrations.hf.target import Verifier


def check_call(call: Handed, request: Request) -> Way:
    """Refuse what cannot be done, and say which way this call goes."""
    model, num_rows = call.model, call.input_ids.shape[0]
    check_mode(model)
    way = way_of_call(model, call.input_ids, call.config, call.cache, call.model_kwargs)
    check_options(model, call.config)
    if call.cache is not None:
        check_cache(model, call.cache, num_rows, way)
    if num_rows > 1 and request.streamer is not None:
        raise refuse("a streamer and a batch", model, f"rows advance by themselves, streamers read one; got {num_rows}")
    return way


def check_drafter(drafter: SessionMaker, config: GenerationConfig, request: Request) -> None:
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


def check_positions(model: PreTrainedModel, target: Verifier, prompts: Prompts, config: GenerationConfig) -> None:
    """The scale of a row's positions must not depend on the rows beside it."""
    lengths = prompts.is_text.sum(1).tolist()
    border = target.border_between(lengths, max(lengths) + config.max_length - prompts.ids.shape[1])
    if border is not None:
        reason = f"a row of up to {border} tokens would be scaled as a longer one beside it"
        raise refuse(f"rows on both sides of position {border}", model, reason)
