"""Triton twins of what the ragged cache does per step: append new entries at each row's own length, and move the
accepted entries of a tree behind the prefix. One launch per layer to append, one for all layers to commit.

Values are only copied, never computed with, so any dtype of 1, 2, 4 or 8 bytes is taken, as integers of that size.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 16
_APPEND_BLOCK = 1024


@triton.jit
def _append_one(new, buffer, start, width, dim, new_t, buffer_t, block, BLOCK: tl.constexpr):
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < width * dim
    t = (at // dim).to(tl.int64)
    d = at % dim
    states = tl.load(new + t * new_t + d, mask=inside)
    tl.store(buffer + (start + t) * buffer_t + d, states, mask=inside)


@triton.jit
def append_kernel(
    new_keys,  # (B, H, T, key_dim), last stride 1
    new_values,  # (B, H, T, value_dim), last stride 1
    keys,  # (B, H, capacity, key_dim), contiguous
    values,  # (B, H, capacity, value_dim), contiguous
    starts,  # (B,) int32
    heads,
    width,
    capacity,
    key_dim,
    value_dim,
    nk_b,
    nk_h,
    nk_t,
    nv_b,
    nv_h,
    nv_t,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    plane = row * heads + head
    start = tl.load(starts + row).to(tl.int64)
    if (start >= 0) & (start + width <= capacity):  # never outside the buffer, whatever the lengths say
        block = tl.program_id(0)
        source = new_keys + row * nk_b + head * nk_h
        _append_one(source, keys + plane * capacity * key_dim, start, width, key_dim, nk_t, key_dim, block, BLOCK)
        source = new_values + row * nv_b + head * nv_h
        _append_one(
            source, values + plane * capacity * value_dim, start, width, value_dim, nv_t, value_dim, block, BLOCK
        )


@triton.jit
def commit_kernel(
    addresses,  # (num_buffers,) int64: where each layer's keys and values (B, H, capacity, dim) start, contiguous
    moves,  # (B, 2 + K) int32: start, count, then the places to keep, increasing
    moves_b,
    heads,
    capacity,
    dim,
    WORD: tl.constexpr,  # integer type of one element
    CHUNK: tl.constexpr,
    D_BLOCK: tl.constexpr,
):
    row = (tl.program_id(1) // heads).to(tl.int64)
    plane = tl.program_id(1).to(tl.int64)
    buffer = tl.load(addresses + tl.program_id(2)).to(tl.pointer_type(WORD)) + plane * capacity * dim
    d = tl.program_id(0) * D_BLOCK + tl.arange(0, D_BLOCK)
    start = tl.load(moves + row * moves_b).to(tl.int64)
    count = tl.load(moves + row * moves_b + 1)
    # Places only move forward, so a chunk's target never holds what a later chunk has still to read.
    for first in range(0, count, CHUNK):
        i = first + tl.arange(0, CHUNK)
        entry = tl.load(moves + row * moves_b + 2 + i, mask=i < count, other=0).to(tl.int64)
        moved = (i < count) & (entry > i) & (start + i >= 0) & (start + entry < capacity)
        mask = moved[:, None] & (d < dim)[None, :]
        states = tl.load(buffer + (start + entry)[:, None] * dim + d[None, :], mask=mask)
        tl.debug_barrier()
        tl.store(buffer + (start + i)[:, None] * dim + d[None, :], states, mask=mask)
        tl.debug_barrier()


def append(
    new_keys: torch.Tensor,
    new_values: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    starts: torch.Tensor,
) -> None:
    """Write every row's new entries into its buffers, from the row's own length on.

    Args:
        new_keys, new_values: (B, H, T, key_dim) and (B, H, T, value_dim), any strides but the last, which must be 1.
        keys, values: (B, H, capacity, key_dim) and (..., value_dim), contiguous, dtypes as the new ones.
        starts: int32 (B,), on the same device. A row that would not fit its buffer is left as it is.

    Raises:
        ValueError: a dtype, shape or stride that the kernel does not take, by name.
    """
    for name, new, buffer in (("keys", new_keys, keys), ("values", new_values, values)):
        expected = (*buffer.shape[:2], new.shape[2], buffer.shape[3])
        if tuple(new.shape) != expected:
            raise ValueError(f"new {name} must have shape {expected}, got {tuple(new.shape)}")
        if new.dtype != buffer.dtype:
            raise ValueError(f"new {name} must have dtype {buffer.dtype}, got {new.dtype}")
        if new.stride(3) != 1 and new.shape[3] > 1:
            raise ValueError(f"new {name} must have a last stride of 1, got strides {new.stride()}")
    _check_buffers([keys, values], same_shape=False)
    _check_int32(starts, "starts", (keys.shape[0],))
    if keys.shape[:3] != values.shape[:3] or new_keys.shape[2] != new_values.shape[2]:
        raise ValueError(f"keys and values must agree but for the last size, got {keys.shape} and {values.shape}")
    rows, heads, capacity, key_dim = keys.shape
    value_dim, width = values.shape[3], new_keys.shape[2]
    as_word = _INTEGER_OF_SIZE[keys.element_size()]
    grid = (triton.cdiv(width * max(key_dim, value_dim), _APPEND_BLOCK), rows * heads)
    append_kernel[grid](
        new_keys.view(as_word),
        new_values.view(as_word),
        keys.view(as_word),
        values.view(as_word),
        starts,
        heads,
        width,
        capacity,
        key_dim,
        value_dim,
        *new_keys.stride()[:3],
        *new_values.stride()[:3],
        BLOCK=_APPEND_BLOCK,
    )


def addresses_of(buffers: Sequence[torch.Tensor]) -> torch.Tensor:
    """Where the buffers start, int64 (num_buffers,) on their device, for ``commit``; valid until one is replaced."""
    return torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.int64, device=buffers[0].device)


def commit(buffers: Sequence[torch.Tensor], moves: torch.Tensor, addresses: torch.Tensor | None = None) -> None:
    """Move every row's accepted entries behind its prefix, in all layers at once.

    Args:
        buffers: all layers' keys and values, each (B, H, capacity, dim), contiguous, one shape and dtype.
        moves: int32 (B, 2 + K), contiguous, on the same device: the row's length, the number of places kept, the
            places, counted from that length and strictly increasing.
        addresses: ``addresses_of(buffers)``, if it is at hand.

    Raises:
        ValueError: a dtype, shape or stride that the kernel does not take, by name.
    """
    _check_buffers(buffers)
    rows, heads, capacity, dim = buffers[0].shape
    _check_int32(moves, "moves", (rows, moves.shape[-1]))
    word = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}[buffers[0].element_size()]
    d_block = min(64, triton.next_power_of_2(dim))
    commit_kernel[(triton.cdiv(dim, d_block), rows * heads, len(buffers))](
        addresses_of(buffers) if addresses is None else addresses,
        moves,
        moves.stride(0),
        heads,
        capacity,
        dim,
        WORD=word,
        CHUNK=_CHUNK,
        D_BLOCK=d_block,
    )


def _check_buffers(buffers: Sequence[torch.Tensor], *, same_shape: bool = True) -> None:
    first = buffers[0]
    for buffer in buffers:
        if buffer.ndim != 4 or not buffer.is_contiguous():
            raise ValueError(f"buffers must be (B, H, capacity, dim), contiguous, got {buffer.shape} {buffer.stride()}")
        if buffer.element_size() not in _INTEGER_OF_SIZE or buffer.is_complex():
            raise ValueError(f"buffers must have elements of 1, 2, 4 or 8 bytes, got {buffer.dtype}")
        if buffer.dtype != first.dtype or (same_shape and buffer.shape != first.shape):
            raise ValueError(
                f"buffers must be alike, got {first.shape} {first.dtype} and {buffer.shape} {buffer.dtype}"
            )


def _check_int32(tensor: torch.Tensor, name: str, shape: tuple[int, ...]) -> None:
    if tensor.dtype != torch.int32 or not tensor.is_contiguous() or tuple(tensor.shape) != shape:
        raise ValueError(
            f"{name} must be contiguous int32 {shape}, got {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}"
        )
