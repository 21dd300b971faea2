"""A key/value cache whose rows have lengths of their own, so that a rejected draft is undone by not advancing.

Every layer keeps one doubling buffer (B, heads, capacity, head_dim). A forward writes row b's new entries at its own
length and sees the filled part; ``keep`` moves the accepted entries of a tree behind the prefix and advances the row.
For a chain nothing moves. Layers with a sliding window keep everything; the masks say what they see.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from zerodraft.kernels._twins import use_triton

_FIRST_CAPACITY = 64
_FIXED_CAPACITY = 256


class RowLengths:
    """Committed tokens per row, shared by all layers of one cache; plain ints, so reading them never waits on a GPU."""

    def __init__(self, num_rows: int) -> None:
        self.of_row = [0] * num_rows
        self.packed: Sequence[int] = ()  # positions per row of the next forward, where it holds the rows one by one
        self.starts: torch.Tensor | None = None  # with fixed shapes: the lengths, int64 (B, 1), always in one place
        self._copied: list[int] = []
        self._copy: torch.Tensor | None = None

    def on(self, device: torch.device) -> torch.Tensor:
        """The lengths as int32 (B,) on ``device``: one small copy per change, shared by all layers."""
        if self._copy is None or self._copied != self.of_row or self._copy.device != device:
            self._copied = list(self.of_row)
            self._copy = torch.tensor(self.of_row, dtype=torch.int32, device=device)
        return self._copy


class RaggedLayer(CacheLayerMixin):  # type: ignore[misc, unused-ignore]
    """One layer's keys and values (B, heads, capacity, head_dim), written per row at the row's own length."""

    is_compileable = False
    is_croppable = True
    is_sliding = False

    def __init__(self, rows: RowLengths) -> None:
        super().__init__()
        self.rows = rows

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Take dtype, device and head sizes from the first states seen."""
        self.dtype, self.device = key_states.dtype, key_states.device
        rows = len(self.rows.of_row)
        self.keys = key_states.new_zeros(rows, key_states.shape[1], 0, key_states.shape[3])
        self.values = value_states.new_zeros(rows, value_states.shape[1], 0, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write T new entries per row behind its committed ones; return the filled part, without committing them.

        Args:
            key_states, value_states: (B, heads, T, head_dim); packed (1, heads, T, head_dim), row behind row.

        Returns:
            keys and values (B, heads, max(lengths) + T, head_dim), views of the buffers; with fixed shapes the whole
            buffers; packed (1, heads, sum(lengths) + T, head_dim), every row's filled part behind the other.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        width = key_states.shape[2]
        if self.rows.starts is not None:
            return self._update_fixed(key_states, value_states)
        if self.rows.packed:
            return self._update_packed(key_states, value_states)
        need = max(self.rows.of_row) + width
        if self.keys.shape[2] < need:
            self._grow(need)
        if use_triton(key_states) and self._suits_triton(key_states, value_states):
            from zerodraft.kernels import kv_cache_triton

            starts = self.rows.on(key_states.device)
            kv_cache_triton.append(key_states, value_states, self.keys, self.values, starts)
            return self.keys[:, :, :need], self.values[:, :, :need]
        for row, start in enumerate(self.rows.of_row):
            self.keys[row, :, start : start + width] = key_states[row]
            self.values[row, :, start : start + width] = value_states[row]
        return self.keys[:, :, :need], self.values[:, :, :need]

    def _suits_triton(self, key_states: torch.Tensor, value_states: torch.Tensor) -> bool:
        """True for what nearly all models write: states as the buffers, heads of keys and values alike."""
        return (
            key_states.dtype == value_states.dtype == self.keys.dtype == self.values.dtype
            and key_states.stride(3) == value_states.stride(3) == 1
            and key_states.shape[:3] == value_states.shape[:3]
        )

    def _update_fixed(self, key_states: torch.Tensor, value_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same in operations whose shapes and Python values are the same at every step, so that they compile."""
        assert self.rows.starts is not None
        rows, _, width, _ = key_states.shape
        places = self.rows.starts + torch.arange(width, device=key_states.device)
        row = torch.arange(rows, device=key_states.device)[:, None]
        self.keys[row, :, places] = key_states.transpose(1, 2)
        self.values[row, :, places] = value_states.transpose(1, 2)
        return self.keys, self.values

    def _update_packed(self, key_states: torch.Tensor, value_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        spans = [(row, self.rows.of_row[row], count) for row, count in enumerate(self.rows.packed) if count]
        counts = [count for _, _, count in spans]
        need = max(start + count for _, start, count in spans)
        if self.keys.shape[2] < need:
            self._grow(need)
        filled = []
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            for (row, start, count), new in zip(spans, torch.split(states[0], counts, dim=1)):
                buffer[row, :, start : start + count] = new
            filled.append(torch.cat([buffer[row, :, : start + count] for row, start, count in spans], dim=1)[None])
        return filled[0], filled[1]

    def _grow(self, need: int) -> None:
        self.resize(max(need, 2 * self.keys.shape[2], _FIRST_CAPACITY))

    def resize(self, capacity: int) -> None:
        """Go on in buffers of this many columns, at least as many as now."""
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(*old.shape[:2], capacity, old.shape[3])
            new[:, :, : old.shape[2]] = old
            setattr(self, name, new)

    def get_seq_length(self) -> int:
        """Committed tokens of the longest row that has a place in the forward."""
        if not self.rows.packed:
            return max(self.rows.of_row)
        return max(length for length, count in zip(self.rows.of_row, self.rows.packed) if count)

    def get_max_length(self) -> int:
        """-1: no limit."""
        return -1

    get_max_cache_shape = get_max_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(key length, key offset) of a forward over ``query_length`` new tokens."""
        return self.get_seq_length() + query_length, 0


class RaggedCache(Cache):  # type: ignore[misc, unused-ignore]
    """The cache of one decoding loop over ``num_rows`` rows; layers appear as the model first writes to them.

    ``lengths`` are the committed tokens per row. A forward leaves its entries uncommitted behind them.
    """

    def __init__(self, num_rows: int) -> None:
        self.rows = RowLengths(num_rows)
        super().__init__(layer_class_to_replicate=functools.partial(RaggedLayer, self.rows))

    @property
    def lengths(self) -> list[int]:
        """Committed tokens per row; a copy."""
        return list(self.rows.of_row)

    def _written(self) -> list[tuple[int, RaggedLayer]]:
        """The layers that hold entries, with their numbers: those that share another's are passed over."""
        return [(index, layer) for index, layer in enumerate(self.layers) if layer.is_initialized]

    def set_lengths(self, lengths: Sequence[int]) -> None:
        """Commit that many entries per row, written by forwards or ``load``."""
        assert len(lengths) == len(self.rows.of_row)
        self.rows.of_row = list(lengths)

    def fix_shapes(self, width: int) -> int:
        """Prepare a forward over ``width`` positions in which every layer returns all of its columns.

        Call it before each such forward; from the first on the cache stays in this mode. Rows' lengths then reach the
        device in one small copy into a tensor that stays where it is, and capacities are powers of two from 256 on:
        few shapes, no Python values that change, as compiled forwards need it.

        Returns:
            The number of columns.
        """
        need = max(self.rows.of_row) + width
        layers = [layer for _, layer in self._written()]
        largest = max(need, _FIXED_CAPACITY, *(layer.keys.shape[2] for layer in layers))
        capacity: int = 1 << (largest - 1).bit_length()
        for layer in layers:
            if layer.keys.shape[2] != capacity:
                layer.resize(capacity)
                _fix_address(layer.keys, layer.values)
        lengths = torch.tensor(self.rows.of_row)[:, None]
        if self.rows.starts is None or self.rows.starts.shape != lengths.shape:
            self.rows.starts = lengths.to(layers[0].keys.device)
            _fix_address(self.rows.starts)
        else:
            self.rows.starts.copy_(lengths)
        return capacity

    def pack(self, counts: Sequence[int] = ()) -> None:
        """Say how many positions each row has in the forwards to come, rows one behind the other in a batch of one.

        Rows without a position are left out, their cached entries too. Without counts every row has a line of its own
        again. Rows' buffers are the same either way; not with fixed shapes.
        """
        self.rows.packed = counts

    def keep(self, row: int, entries: Sequence[int]) -> None:
        """Commit these entries of the last forward in ``row``; the rest is forgotten.

        Args:
            row: row index.
            entries: indices into the forward's positions, increasing; 0 is the root. A prefix 0, 1, 2 ... costs
                nothing, anything else moves ``len(entries)`` entries per layer.
        """
        start = self.rows.of_row[row]
        count = len(entries)
        first_moved = next((i for i, entry in enumerate(entries) if entry != i), count)
        if first_moved < count:
            into = slice(start + first_moved, start + count)
            for _, layer in self._written():
                source = torch.tensor(entries[first_moved:], device=layer.keys.device) + start
                layer.keys[row, :, into] = layer.keys[row, :, source]
                layer.values[row, :, into] = layer.values[row, :, source]
        self.rows.of_row[row] = start + count

    def keep_all(self, entries: Sequence[Sequence[int]]) -> None:
        """``keep`` for every row of the last forward; on CUDA with Triton all rows and layers move in one launch.

        Args:
            entries: per row, in the order of the rows.
        """
        moves = any(places and places[-1] != len(places) - 1 for places in entries)
        if moves and use_triton(self._written()[0][1].keys) and self._is_uniform():
            self._move_all(entries)
            self.set_lengths([start + len(places) for start, places in zip(self.rows.of_row, entries)])
            return
        for row, places in enumerate(entries):
            self.keep(row, places)

    def _is_uniform(self) -> bool:
        """True if all buffers have one shape and dtype, so that one launch can move them all."""
        buffers = [buffer for _, layer in self._written() for buffer in (layer.keys, layer.values)]
        return len({(buffer.shape, buffer.dtype, buffer.device) for buffer in buffers}) == 1

    def _move_all(self, entries: Sequence[Sequence[int]]) -> None:
        from zerodraft.kernels import kv_cache_triton

        most = max(len(places) for places in entries)
        moves = [
            [start, len(places), *places, *[0] * (most - len(places))]
            for start, places in zip(self.rows.of_row, entries)
        ]
        buffers = [buffer for _, layer in self._written() for buffer in (layer.keys, layer.values)]
        kv_cache_triton.commit(buffers, torch.tensor(moves, dtype=torch.int32, device=buffers[0].device))

    def select_rows(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order."""
        for _, layer in self._written():
            index = torch.tensor(rows, device=layer.keys.device)
            layer.keys, layer.values = layer.keys[index], layer.values[index]
        self.rows.of_row = [self.rows.of_row[row] for row in rows]

    def load(self, source: Cache) -> None:
        """Take over a DynamicCache that was handed in, at absolute positions, all rows equally long.

        Entries that a sliding layer has already dropped are zeros here: no mask lets anybody see them. Layers that
        share another's entries hold none.
        """
        length = source.get_seq_length()
        for index, layer in enumerate(source.layers):
            if layer.keys is None:
                continue
            missing = length - layer.keys.shape[2]
            padded = [
                torch.cat([states.new_zeros(*states.shape[:2], missing, states.shape[3]), states], dim=2)
                for states in (layer.keys, layer.values)
            ]
            self.update(padded[0], padded[1], index)
        self.set_lengths([length] * len(self.rows.of_row))

    def store(self, target: Cache) -> None:
        """Replace ``target``'s content by the committed entries; all rows must be equally long."""
        lengths = set(self.rows.of_row)
        assert len(lengths) == 1, lengths
        length = lengths.pop()
        target.reset()
        for index, layer in self._written():
            target.update(layer.keys[:, :, :length].clone(), layer.values[:, :, :length].clone(), index)


def _fix_address(*tensors: torch.Tensor) -> None:
    """Tell the compiler that these stay where they are, so that a captured graph may write into them."""
    from torch._dynamo import mark_static_address  # takes seconds to import

    for tensor in tensors:
        mark_static_address(tensor)
