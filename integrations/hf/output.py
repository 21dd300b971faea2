"""What goes back to the caller of ``generate``: the rows side by side, scores, and the cache."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from zerodraft.integrations.hf.chains import ChainTarget
from zerodraft.integrations.hf.prompts import Prompts
from zerodraft.integrations.hf.row import Row
from zerodraft.integrations.hf.target import Verifier

Output: TypeAlias = torch.Tensor | GenerateDecoderOnlyOutput | GenerateEncoderDecoderOutput


def hand_back(target: Verifier, given: Any, config: GenerationConfig, num_rows: int) -> Any:
    """Fill the cache that generate prepared, or that the user handed in, where somebody will look at it."""
    if num_rows > 1:
        return None
    makes_its_own = given is None and isinstance(target, ChainTarget)
    is_kept = config.return_dict_in_generate or getattr(given, "_is_user_defined", False)
    return target.store(given) if is_kept and (given is not None or makes_its_own) else given


def package(model: PreTrainedModel, rows: list[Row], prompts: Prompts, config: GenerationConfig, cache: Any) -> Output:
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
