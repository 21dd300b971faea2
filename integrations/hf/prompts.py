"""What generate handed over to be continued: ids, padding, what a given cache covers, predictions per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from zerodraft.integrations.hf.families import foreign_arguments
from zerodraft.integrations.hf.request import Predictions
from zerodraft.integrations.hf.support import refuse
from zerodraft.lookup.draft import IntArray


@dataclass(frozen=True)
class Prompts:
    """The rows to continue.

    Attributes:
        ids: int64 (B, length) as given, left padding included; what processors and criteria see.
        is_text: bool (B, length), False where the attention mask hides the token.
        num_cached: leading tokens that a handed-in cache already covers; the rest is to be read.
        embeddings: (B, length, hidden) read in place of ``ids``, or None; then ``ids`` may be empty.
        source_ids: int64 (B, n) text an encoder has read, or None; drafts may copy from it.
    """

    ids: torch.Tensor
    is_text: torch.Tensor
    num_cached: int
    embeddings: torch.Tensor | None = None
    source_ids: torch.Tensor | None = None

    def __len__(self) -> int:
        return self.ids.shape[0]

    @classmethod
    def read(
        cls,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        config: GenerationConfig,
        cache: Any,
        model_kwargs: dict[str, Any],
    ) -> Prompts:
        """Take the prompt's arguments out of ``model_kwargs`` and check them.

        Raises:
            Unsupported: other model arguments, positions of one's own, a hidden last token, a cache beside padding.
        """
        mask = model_kwargs.pop("attention_mask", None)
        embeddings = model_kwargs.pop("inputs_embeds", None)
        positions = model_kwargs.pop("position_ids", None)
        unknown = foreign_arguments(model_kwargs)
        if unknown:
            raise refuse(f"the model arguments {unknown}", model, "only ids or embeddings and a mask are handled")
        past = cache.get_seq_length() if cache is not None else 0
        read = input_ids if embeddings is None else embeddings
        length = read.shape[1]
        covered = mask.shape[1] if mask is not None else getattr(config, "_mask_length", length)
        num_cached = past if covered == length else 0
        if length - num_cached < 1:
            raise refuse(f"a cache of {past} tokens for a prompt of {length}", model, "at least one must be unread")
        is_text = torch.ones(read.shape[:2], dtype=torch.bool, device=input_ids.device)
        if mask is not None:
            is_text = mask[:, -length:].to(device=input_ids.device, dtype=torch.bool)
            if past and not bool(mask.all()):
                raise refuse("a handed-in cache and an attention mask with zeros", model, "its padding has no position")
            if not bool(is_text[:, -1].all()):
                raise refuse("an attention mask that ends in 0", model, "pad on the left")
        if positions is not None:
            _check_positions(model, positions, is_text, past)
        return cls(input_ids, is_text, num_cached, embeddings)

    @classmethod
    def read_chain(
        cls, model: PreTrainedModel, input_ids: torch.Tensor, model_kwargs: dict[str, Any], source_ids: Any, cache: Any
    ) -> Prompts:
        """The one row to continue in the model's own cache, and the text that an encoder has read.

        The model's arguments stay where they are: it reads them itself, as in plain ``generate``.

        Raises:
            Unsupported: more than one row, a hidden last token, or a former turn's cache beside an encoder.
        """
        if input_ids.shape[0] > 1:
            what = foreign_arguments(model_kwargs) if not model.config.is_encoder_decoder else []
            beside = f" and the model arguments {what}" if what else ""
            reason = "what is read in the model's own cache is decoded row by row"
            raise refuse(f"a batch of {input_ids.shape[0]}{beside}", model, reason)
        is_text = torch.ones_like(input_ids, dtype=torch.bool)
        if model.config.is_encoder_decoder:
            if cache is not None and cache.get_seq_length() > 0:
                raise refuse("a handed-in cache", model, "an encoder-decoder model starts afresh")
            is_source = isinstance(source_ids, torch.Tensor) and source_ids.ndim == 2
            is_source = is_source and not source_ids.is_floating_point()
            return cls(input_ids, is_text, 0, source_ids=source_ids if is_source else None)
        mask = model_kwargs.get("attention_mask")
        if mask is not None and not bool(mask[:, -1].all()):
            raise refuse("an attention mask that ends in 0", model, "pad on the left")
        if mask is not None and mask.shape[1] >= input_ids.shape[1] > 0:
            is_text = mask[:, -input_ids.shape[1] :].to(device=input_ids.device, dtype=torch.bool)
        return cls(input_ids, is_text, 0)

    def unread(self) -> list[torch.Tensor]:
        """Per row, the token ids (n,) or embeddings (n, hidden) that the model has not seen yet, without padding."""
        read = self.ids if self.embeddings is None else self.embeddings
        return [row[shown][self.num_cached :] for row, shown in zip(read, self.is_text)]

    def text_ids(self, row: int) -> torch.Tensor:
        """The row's prompt (n,) without padding, as the drafter reads it; what an encoder has read comes first."""
        ids = self.ids[row]
        if ids.shape == self.is_text[row].shape:
            ids = ids[self.is_text[row]]
        if self.source_ids is not None:
            ids = torch.cat([self.source_ids[row].to(ids.device), ids])
        return ids

    def prediction_ids(self, row: int, given: Predictions) -> IntArray | None:
        """The predicted output of this row: ``given`` is None, one for all rows, or one (or None) per row.

        A call with ``num_return_sequences`` may give one per prompt; each then serves all its rows.
        """
        if not isinstance(given, list):
            return given
        if not given or len(self) % len(given):
            raise ValueError(
                f"prediction_ids must be one for all or one per row: expected {len(self)}, got {len(given)}"
            )
        return given[row // (len(self) // len(given))]


def _check_positions(model: PreTrainedModel, positions: torch.Tensor, is_text: torch.Tensor, past: int) -> None:
    """Positions must count the shown tokens from 0 (from ``past`` where only new tokens were given)."""
    positions = positions[..., -is_text.shape[1] :]
    counted = is_text.long().cumsum(-1) - 1
    fits = positions.shape[-1] == counted.shape[-1] and any(
        bool((positions == counted + offset)[is_text.expand_as(positions)].all()) for offset in {0, past}
    )
    if not fits:
        raise refuse("position_ids", model, "positions must count the tokens of each row from its start")
