"""Handed: what ``generate`` hands over to a loop that is not its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList


@dataclass(frozen=True)
class Handed:
    """The arguments of ``GenerationMixin._sample``: prepared by ``generate`` and not checked by it for our purposes.

    Attributes:
        input_ids: int64 (B, length), left padding included; empty beside embeddings.
        processors, criteria: for all rows together.
        config: what the call resolved to.
        model_kwargs: the rest, without the cache and the encoder's text.
        cache: what the caller or ``generate`` made, or None.
        source_ids: int64 (B, n) text that an encoder reads, or None.
    """

    model: PreTrainedModel
    input_ids: torch.Tensor
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    config: GenerationConfig
    model_kwargs: dict[str, Any]
    cache: Any = None
    source_ids: torch.Tensor | None = None
