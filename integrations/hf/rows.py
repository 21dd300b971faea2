"""The rows of one call, each with processors, criteria and a generator of its own."""

from __future__ import annotations

import copy

import torch
from transformers import EncoderNoRepeatNGramLogitsProcessor, LogitsProcessorList

from zerodraft.integrations.hf.generators import generators_of
from zerodraft.integrations.hf.handed import Handed
from zerodraft.integrations.hf.near_ties import NearTies
from zerodraft.integrations.hf.prompts import Prompts
from zerodraft.integrations.hf.request import Request
from zerodraft.integrations.hf.row import Row


def make_rows(call: Handed, prompts: Prompts, request: Request, ties: NearTies | None) -> list[Row]:
    """One row per prompt. A single row uses the call's own processors and criteria, as plain decoding does."""
    num_rows, config = len(prompts), call.config
    do_sample, wants = bool(config.do_sample), bool(config.return_dict_in_generate)
    generators = generators_of(num_rows, request.seeds, do_sample, prompts.ids.device)
    # Without max_new_tokens generate goes no further than the model's context: then that, not a wish, is the limit.
    context = getattr(call.model.config, "max_position_embeddings", None)
    is_context = config.max_new_tokens is None and config.max_length == context
    return [
        Row(
            prompts.ids[index],
            processors=split_processors(call.processors, index, num_rows),
            criteria=call.criteria if num_rows == 1 else copy.deepcopy(call.criteria),
            do_sample=do_sample,
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


def split_processors(processors: LogitsProcessorList, row: int, num_rows: int) -> LogitsProcessorList:
    """Give a row of a batch its own processors: its slice of per-row state, its batch index bound.

    A processor that holds a module (classifier-free guidance) cannot be split.

    Raises:
        ValueError: naming the processor's class.
    """
    if num_rows == 1:
        return processors
    own = LogitsProcessorList()
    for processor in processors:
        if any(isinstance(value, torch.nn.Module) for value in vars(processor).values()):
            raise ValueError(f"{type(processor).__name__} holds a model and cannot be split over a batch of {num_rows}")
        mine = copy.deepcopy(processor)
        for name in ("prompt_ignore_length", "encoder_input_ids"):
            value = getattr(mine, name, None)
            if isinstance(value, torch.Tensor) and value.ndim >= 1 and value.shape[0] == num_rows:
                setattr(mine, name, value[row : row + 1])
        if isinstance(mine, EncoderNoRepeatNGramLogitsProcessor):
            mine.batch_size, mine.generated_ngrams = 1, mine.generated_ngrams[row : row + 1]
        allowed = getattr(mine, "_prefix_allowed_tokens_fn", None)
        if allowed is not None:
            mine._prefix_allowed_tokens_fn = lambda _, ids, allowed=allowed: allowed(row, ids)
        own.append(mine)
    return own
