"""Chains checked in the model's own cache, one row at a time: for models whose state the ragged cache cannot hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.generation.utils import GenerationMixin

from zerodraft.integrations.hf.families import device_of
from zerodraft.integrations.hf.sieve import vocab_size_of
from zerodraft.integrations.hf.states import Snapshot, may_crop, stop_recording
from zerodraft.integrations.hf.target import PositionLimits
from zerodraft.lookup.draft import Draft

MAX_PENDING: Final = 16  # accepted tokens waiting to be read again; beyond, one step drafts nothing and reads them all


class ChainTarget:
    """One generate call's view of a model that keeps its own state; a Target for one row.

    Every forward is made by the model's own ``prepare_inputs_for_generation``. Where a draft is kept whole, the state
    after it is the new state. Else a cache of plain keys and values is cropped; any other is put back to what it was
    before, and the tokens that were kept are read again at the head of the next forward: a rejection costs positions,
    never a forward.
    """

    only_chains = True

    def __init__(
        self, model: PreTrainedModel, ids: torch.Tensor, config: GenerationConfig, model_kwargs: dict[str, Any]
    ) -> None:
        """``ids``: int64 (1, n) as generate hands them over; ``model_kwargs``: what it prepared, cache included."""
        self.model, self._ids, self._config = model, ids, config
        self._kwargs = model_kwargs
        self._length = num_covered(ids, config, model_kwargs)  # tokens in the cache
        self._pending: list[int] = []  # written, but not in the cache any more: the next forward reads them again
        self._block: list[int] = []
        self._saved: Snapshot | None = None
        self._cache: Cache | None = None
        self._crops = False
        self._last: Any = None  # what the model gave back with its last forward
        self.num_replayed = 0  # positions of the last forward that had been computed before
        self.vocab_size = vocab_size_of(model)
        self._limits = PositionLimits(model.config.get_text_config(decoder=True))
        self._adds_one_by_one = (
            type(model)._update_model_kwargs_for_generation is not GenerationMixin._update_model_kwargs_for_generation
        )

    @property
    def num_pending(self) -> int:
        """Positions that the next forward reads again; -1 where a rejection costs none."""
        return -1 if self._crops else len(self._pending)

    def load(self, cache: Cache) -> None:
        """Nothing to do: a cache of a former turn is gone on with where it stands."""

    def prefill(self, rows: Sequence[torch.Tensor], *, chunk_size: int | None = None) -> list[torch.Tensor]:
        """Let the model read the prompt as generate does, pictures included; returns the logits (1, V) after it."""
        out = self.model._prefill(self._ids, self._config, self._kwargs, is_first_iteration=True)
        self._last = _without_logits(out)
        self._kwargs = self._grown(self._kwargs, 1)
        self._take(self._kwargs.get("cache"))
        return [out.logits[:, -1]]

    def _take(self, cache: Any) -> None:
        """Go on in this cache: the one that was given, or one that the model made itself."""
        if not isinstance(cache, Cache):
            raise ValueError(f"its state is a {type(cache).__name__}, which cannot be put back")
        self._cache, self._crops = cache, may_crop(cache)
        if self._crops:
            cache.activate_past_recording()

    def max_draft_depth(self, row: int) -> int:
        """How far a draft may reach: not over a border of the model's positions, nor with many tokens pending."""
        at = self._length + len(self._pending)
        if len(self._pending) > MAX_PENDING or self._limits.depth_after(at - 1) == 0:
            return 0  # the first forward behind a border is narrow: the model may begin a new cache there
        return self._limits.depth_after(at)

    def border_between(self, lengths: Sequence[int], last: int) -> int | None:
        """None: there is one row."""
        return None

    def check(self, last_ids: Sequence[int], drafts: Sequence[Draft]) -> list[torch.Tensor]:
        """One forward over what is pending, the last token and the draft; returns logits (1 + nodes, V)."""
        assert self._cache is not None
        if self._pending and self._limits.depth_after(self._length) < len(self._pending):
            self._read_pending()  # what was read before a border is read before it again
        self.num_replayed = len(self._pending)
        self._block = [*self._pending, int(last_ids[0]), *drafts[0].token_ids.tolist()]
        self._saved = None if self._crops or not len(drafts[0]) else Snapshot(self._cache)
        return [self._forward(self._block, len(self._block) - len(self._pending))]

    def keep(self, entries: Sequence[Sequence[int]]) -> None:
        """Commit the first of the last forward's positions; the rest is forgotten."""
        assert self._cache is not None
        kept = len(self._pending) + len(entries[0])
        rejected = len(self._block) - kept
        if rejected and not self._crops:
            assert self._saved is not None
            self._saved.restore(self._cache)
            self._pending, self._saved = self._block[:kept], None
            return
        if self._crops:
            self._cache.crop(-rejected)
        self._commit(self._block[:kept])

    def select_rows(self, rows: Sequence[int]) -> None:
        """Nothing to do: there is one row."""

    def store(self, cache: Cache) -> Cache:
        """Bring the cache to where plain decoding leaves it, which may take one more forward, and hand it back."""
        assert self._cache is not None
        self._read_pending()
        stop_recording(self._cache)
        return self._cache

    def _read_pending(self) -> None:
        if self._pending:
            self._forward(self._pending, 1)
            self._commit(self._pending)

    def _commit(self, tokens: list[int]) -> None:
        self._ids = self._with(tokens)
        self._kwargs = self._grown(self._kwargs, len(tokens))
        self._length += len(tokens)
        self._pending = []

    def _with(self, tokens: list[int]) -> torch.Tensor:
        return torch.cat([self._ids, torch.tensor([tokens], dtype=self._ids.dtype, device=self._ids.device)], dim=1)

    def _forward(self, tokens: list[int], num_logits: int) -> torch.Tensor:
        """Read ``tokens`` behind what is in the cache; returns the last ``num_logits`` positions' logits."""
        kwargs = self._grown(self._kwargs, len(tokens) - 1)
        inputs = self.model.prepare_inputs_for_generation(
            self._with(tokens), next_sequence_length=len(tokens), **kwargs
        )
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = num_logits
        out = self.model(**inputs, return_dict=True)
        self._last = _without_logits(out)
        cache = out.get("cache", self._cache)
        if cache is not self._cache:  # a model that begins a new one where its positions change their meaning
            self._kwargs["cache"] = cache
            self._take(cache)
        logits: torch.Tensor = out.logits[0, -num_logits:]
        return logits

    def _grown(self, kwargs: dict[str, Any], count: int) -> dict[str, Any]:
        """Mask, positions and types for ``count`` more tokens, by the model's own rule."""
        kwargs, is_encoder_decoder = dict(kwargs), bool(self.model.config.is_encoder_decoder)
        steps = [1] * count if self._adds_one_by_one else [count] * (count > 0)
        for step in steps:
            kwargs = self.model._update_model_kwargs_for_generation(
                self._last, kwargs, is_encoder_decoder=is_encoder_decoder, num_new_tokens=step
            )
        return kwargs


def behind_prompt(model: PreTrainedModel, ids: list[int], run: Callable[[ChainTarget], None]) -> None:
    """Call ``run`` with a target that has read this prompt, everything prepared by ``generate`` itself.

    For trials and measurements: encoder, cache, mask and positions are what a real call would have.
    """

    def start(model: Any, input_ids: Any, generation_config: Any, **model_kwargs: Any) -> Any:
        for name in ("logits_processor", "stopping_criteria"):
            model_kwargs.pop(name)
        target = ChainTarget(model, input_ids, generation_config, model_kwargs)
        target.prefill([])
        run(target)
        return input_ids

    prompt, defaults = torch.tensor([ids], device=device_of(model)), model.generation_config
    first = next((i for i in (defaults.decoder_start_token_id, defaults.bos_token_id) if i is not None), ids[0])
    type(model).generate(
        model,
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=64,
        num_beams=1,
        do_sample=False,
        stop_strings=None,
        pad_token_id=ids[0],
        decoder_start_token_id=first,
        custom_generate=start,
    )


def num_covered(ids: torch.Tensor, config: GenerationConfig, model_kwargs: Mapping[str, Any]) -> int:
    """Tokens of the prompt, those included that only a handed-in cache knows."""
    if "decoder_attention_mask" in model_kwargs or "encoder_outputs" in model_kwargs:
        return ids.shape[1]
    embeddings, mask = model_kwargs.get("inputs_embeds"), model_kwargs.get("attention_mask")
    read = ids if embeddings is None else embeddings
    covered = mask.shape[1] if mask is not None else getattr(config, "_mask_length", read.shape[1])
    return max(int(covered), int(read.shape[1]))


def _without_logits(out: Any) -> Any:
    """The same output, its largest tensor given free."""
    return type(out)(**{name: value for name, value in out.items() if name != "logits"})
