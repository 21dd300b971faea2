"""The target model as the loop sees it: prefill once, then check one draft per row in a forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from zerodraft.integrations.hf.shapes import fixed_shapes
from zerodraft.integrations.hf.sieve import vocab_size_of
from zerodraft.kernels.kv_cache import RaggedCache
from zerodraft.kernels.tree_attention import bucket, forward_inputs, packed_inputs
from zerodraft.lookup.draft import Draft

FORWARD_FLOOR: Final = 64  # positions that cost a CPU as much as one more forward does
ATTENTION_SLOWNESS: Final = 2.0  # masked attention's time per operation against that of the big matrix products


class Verifier(Protocol):
    """What the decoding loop needs of a target; ``Target`` and ``ChainTarget`` are the two.

    Rows are numbered as they stand in the forward now. The cache holds all tokens of a row but the last emitted one.
    """

    only_chains: bool  # drafts must be chains
    vocab_size: int
    num_replayed: int  # positions of the last forward that had been computed before; they come first, without logits

    def load(self, cache: Cache) -> None: ...

    def prefill(self, rows: Sequence[torch.Tensor], *, chunk_size: int | None = None) -> list[torch.Tensor]: ...

    def max_draft_depth(self, row: int) -> int: ...

    def border_between(self, lengths: Sequence[int], last: int) -> int | None: ...

    def check(self, last_ids: Sequence[int], drafts: Sequence[Draft]) -> Sequence[torch.Tensor]: ...

    def keep(self, entries: Sequence[Sequence[int]]) -> None: ...

    def select_rows(self, rows: Sequence[int]) -> None: ...

    def store(self, cache: Cache) -> Cache: ...


class Target:
    """One generate call's view of the model. Owns the cache; rows are numbered as they stand in the forward now."""

    def __init__(self, model: PreTrainedModel, num_rows: int, compile: str = "off") -> None:
        self.model = model
        self._has_fixed_shapes, self._call = fixed_shapes(model, compile)
        self.cache = RaggedCache(num_rows)
        config = model.config.get_text_config(decoder=True)
        self.vocab_size = vocab_size_of(model)
        self._windows = _windows_by_layer_type(config)
        self._limits = PositionLimits(config)
        self._column_cost = _column_cost(model) if num_rows > 1 else 0.0
        self._trims_prefill = model._supports_logits_to_keep()

    only_chains = False  # True where a draft's branches cannot be told apart by position
    num_replayed = 0  # a rejected draft costs nothing here

    def prefill(self, rows: Sequence[torch.Tensor], *, chunk_size: int | None = None) -> list[torch.Tensor]:
        """Read the prompts and return the logits (1, V) after each row's last token.

        Rows of different lengths are padded on the right, so that no mask is needed: a causal model's earlier
        positions do not see the padding, and its cache entries are overwritten later. On a CPU, where much padding
        would be computed, they are read one by one.

        Args:
            rows: per row, the token ids int64 (n,), or embeddings (n, hidden), that are not in the cache yet.
            chunk_size: read at most this many positions per forward.
        """
        counts = [len(row) for row in rows]
        if self._reading_alone_pays(counts):
            return [self._read_alone(index, row, chunk_size) for index, row in enumerate(rows)]
        start, width = self.cache.lengths, max(counts)
        block = rows[0].new_zeros(len(rows), width, *rows[0].shape[1:], device=self.model.device)
        for index, row in enumerate(rows):
            block[index, : len(row)] = row
        positions = torch.tensor(start)[:, None] + torch.arange(width)
        ends = sorted({count - 1 for count in counts})
        logits: dict[int, torch.Tensor] = {}
        step = chunk_size or width
        for begin in range(0, width, step):
            stop = min(begin + step, width)
            here = [end - begin for end in ends if begin <= end < stop]
            out = self._read(
                block[:, begin:stop], positions[:, begin:stop], here, last=len(rows) == 1 and stop == width
            )
            logits.update({begin + at: out[:, place] for place, at in enumerate(here)})
            if stop < width:
                self.cache.set_lengths([first + stop for first in start])
        self.cache.set_lengths([first + count for first, count in zip(start, counts)])
        return [logits[count - 1][index : index + 1] for index, count in enumerate(counts)]

    def _reading_alone_pays(self, counts: list[int]) -> bool:
        """Whether prompts are read one by one: on a CPU, where a filled-up position costs what any other does."""
        padding = len(counts) * max(counts) - sum(counts)
        return self.model.device.type == "cpu" and padding > FORWARD_FLOOR * (len(counts) - 1)

    def _read_alone(self, index: int, row: torch.Tensor, chunk_size: int | None) -> torch.Tensor:
        """Read one row's prompt as a batch of one would; returns the logits (1, V) after its last token."""
        lengths, start, step = self.cache.lengths, self.cache.lengths[index], chunk_size or len(row)
        try:
            for begin in range(0, len(row), step):
                part = row[None, begin : begin + step].to(self.model.device)
                self.cache.pack([part.shape[1] if place == index else 0 for place in range(len(lengths))])
                positions = torch.arange(start + begin, start + begin + part.shape[1])[None]
                out = self._read(part, positions, [part.shape[1] - 1], last=True)
                lengths[index] += part.shape[1]
                self.cache.set_lengths(lengths)
        finally:
            self.cache.pack()
        return out[:, 0]

    def _read(self, block: torch.Tensor, positions: torch.Tensor, ends: list[int], *, last: bool) -> torch.Tensor:
        """One prefill forward; returns logits (B, len(ends), V)."""
        positions = positions.to(self.model.device)
        options: dict[str, Any] = {}
        if self._trims_prefill:
            options["logits_to_keep"] = 1 if last else torch.tensor(ends or [0], device=block.device)
        out = self._forward(block, positions, None, **options)
        return out if self._trims_prefill else out[:, ends]

    def check(self, last_ids: Sequence[int], drafts: Sequence[Draft]) -> Sequence[torch.Tensor]:
        """One forward over every row's last token and draft; returns per row logits (at least 1 + nodes, V).

        Position 0 of a row follows its last token, position i + 1 its node i. Rows stand side by side, filled up to the
        widest draft, or one behind the other where that computes less: then each costs what it drafts.
        """
        width = 1 + max(len(draft) for draft in drafts)
        if self._has_fixed_shapes:
            width = bucket(width)
            return self._check_side_by_side(last_ids, drafts, width, self.cache.fix_shapes(width))
        if width == 1 and len(drafts) == 1:  # plain decoding: what the model does by itself is cheapest
            device = self.model.device
            ids, positions = torch.tensor([last_ids], device=device), torch.tensor([self.cache.lengths], device=device)
            return self._forward(ids, positions, None).unbind(0)
        if self._packing_pays([1 + len(draft) for draft in drafts]):
            return self._check_packed(last_ids, drafts)
        return self._check_side_by_side(last_ids, drafts, width)

    def _packing_pays(self, counts: list[int]) -> bool:
        """Whether rows one behind the other compute less, though each of their positions looks at all rows' columns."""
        num_rows, width = len(counts), max(counts)
        if num_rows == 1 or sum(counts) == num_rows * width:
            return False
        lengths = self.cache.lengths
        packed = sum(counts) * (1 + self._column_cost * (sum(lengths) + sum(counts)))
        return packed < num_rows * width * (1 + self._column_cost * (max(lengths) + width))

    def _check_packed(self, last_ids: Sequence[int], drafts: Sequence[Draft]) -> Sequence[torch.Tensor]:
        counts = [1 + len(draft) for draft in drafts]
        block = np.concatenate([part for last, draft in zip(last_ids, drafts) for part in ([last], draft.token_ids)])
        positions, masks = packed_inputs(
            self.cache.lengths,
            [draft.parents for draft in drafts],
            list(set(self._windows.values())),
            dtype=self.model.dtype,
            device=self.model.device,
        )
        self.cache.pack(counts)
        try:
            ids = torch.from_numpy(block.astype(np.int64))[None].to(self.model.device)
            logits = self._forward(ids, positions, self._by_layer_type(masks))
        finally:
            self.cache.pack()
        return torch.split(logits[0], counts)

    def _check_side_by_side(
        self, last_ids: Sequence[int], drafts: Sequence[Draft], width: int, num_columns: int | None = None
    ) -> Sequence[torch.Tensor]:
        block = np.zeros((len(drafts), width), np.int64)
        for row, (last, draft) in enumerate(zip(last_ids, drafts)):
            block[row, 0] = last
            block[row, 1 : 1 + len(draft)] = draft.token_ids
        positions, masks = forward_inputs(
            self.cache.lengths,
            [draft.parents for draft in drafts],
            list(set(self._windows.values())),
            dtype=self.model.dtype,
            device=self.model.device,
            width=width,
            num_columns=num_columns,
        )
        call = self._call if self._has_fixed_shapes else None
        ids = torch.from_numpy(block).to(self.model.device)
        return self._forward(ids, positions, self._by_layer_type(masks), call).unbind(0)

    def _by_layer_type(self, masks: dict[int | None, torch.Tensor]) -> Any:
        """The mask as the model takes it: one, or one for each type of layer."""
        if len(masks) == 1:
            return next(iter(masks.values()))
        return {layer_type: masks[window] for layer_type, window in self._windows.items()}

    def _forward(
        self, block: torch.Tensor, positions: torch.Tensor, mask: Any, call: Any = None, **options: Any
    ) -> torch.Tensor:
        """Logits (B, T, V) for token ids (B, T) or embeddings (B, T, hidden)."""
        options["inputs_embeds" if block.ndim == 3 else "input_ids"] = block
        out = (call or self.model)(
            position_ids=positions,
            attention_mask=mask,
            cache=self.cache,
            use_cache=True,
            return_dict=True,
            **options,
        )
        logits: torch.Tensor = out.logits
        return logits

    def max_draft_depth(self, row: int) -> int:
        """How far below the row's last token a node may stand before the model's positions change their meaning."""
        return self._limits.depth_after(self.cache.lengths[row])

    def border_between(self, lengths: Sequence[int], last: int) -> int | None:
        """A position at which the model scales all positions anew while rows of a batch may lie on both sides of it.

        Args:
            lengths: tokens of each row's prompt.
            last: tokens of the longest row when everything is written.
        """
        return self._limits.border_between(lengths, last)

    def keep(self, entries: Sequence[Sequence[int]]) -> None:
        """Commit these of the last forward's positions, per row; 0 is the root. The rest is forgotten."""
        self.cache.keep_all(entries)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order."""
        self.cache.select_rows(rows)

    def load(self, cache: Cache) -> None:
        """Start from what a cache of a former turn holds."""
        if cache.get_seq_length() > 0:
            self.cache.load(cache)

    def store(self, cache: Cache) -> Cache:
        """Fill ``cache`` with the committed entries and hand it back."""
        self.cache.store(cache)
        return cache


class PositionLimits:
    """Positions that one forward must not cross: the last learned one, and where scaled rotary embeddings switch."""

    def __init__(self, config: Any) -> None:
        rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
        per_type = [value for value in rope.values() if isinstance(value, dict)] or [rope]
        names = ("max_position_embeddings", "original_max_position_embeddings")
        found = [getattr(config, name, None) for name in names]
        found += [entry.get(names[1]) for entry in per_type]
        self.borders = sorted({int(value) for value in found if value})
        kinds = {entry.get("rope_type", entry.get("type")) for entry in per_type}
        self._hard_end = not rope or "dynamic" in kinds  # learned positions, or a new scale at every length
        self._recomputes = "longrope" in kinds
        self._is_dynamic, self._switches = "dynamic" in kinds, bool(kinds & {"dynamic", "longrope"})
        self._last_switch = max((int(value) for value in found[1:] if value), default=2**30)

    def depth_after(self, position: int) -> int:
        for border in self.borders:
            if position < border:
                return border - 1 - position
        return 0 if self._hard_end and self.borders else 2**30

    def recomputed_between(self, length: int, last: int) -> int | None:
        """A border that a text of ``length`` to ``last`` tokens crosses, where models make their cache anew."""
        if not self._recomputes or not self.borders or not length <= self.borders[0] < last:
            return None
        return self.borders[0]

    def border_between(self, lengths: Sequence[int], last: int) -> int | None:
        """Where the longest row decides on the scale of all, and rows up to ``last`` may lie on both sides of that."""
        if not self._switches or not self.borders or len(lengths) == 1 or last <= self.borders[0]:
            return None
        all_beyond = min(lengths) > self._last_switch and not self._is_dynamic
        return None if all_beyond else self.borders[0]


def _column_cost(model: PreTrainedModel) -> float:
    """What looking at one more column of the cache costs a position, in passes through all weights.

    By floating point operations: 4 for each column, layer and dimension, against 2 for each weight.
    """
    config = model.config.get_text_config(decoder=True)
    size = config.num_hidden_layers * config.hidden_size
    return float(ATTENTION_SLOWNESS * 2 * size / max(1, model.num_parameters()))


def _windows_by_layer_type(config: Any) -> dict[str, int | None]:
    """Sliding window per layer type; full attention is None."""
    window = getattr(config, "sliding_window", None)
    layer_types = set(getattr(config, "layer_types", None) or ())
    if layer_types:
        return {name: window if name == "sliding_attention" else None for name in sorted(layer_types)}
    return {"every layer": window}
