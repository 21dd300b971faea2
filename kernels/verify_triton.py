"""The Triton twin of ``verify.pick_and_walk``: the target's token at every node and the walk, in one launch.

One program per position picks its token; the last program of a row to finish (they count themselves) walks the row.
So all positions are read at full bandwidth, and neither a second launch nor a second look by the host is needed.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
from __future__ import annotations

import torch
import triton
import triton.language as tl

MAX_NODES = 1024
_BLOCK = 4096  # scores per step of one program
_NOISY_BLOCK = 1024  # with noise: more would not fit the registers


@triton.jit
def _exp(x):
    """exp for x <= 0 to the last bits: the hardware's exp2 alone loses them where x is large."""
    n = tl.floor(x * 1.4426950408889634 + 0.5)
    n = tl.maximum(n, -150.0)
    rest = (x - n * 0.693145751953125) - n * 1.428606765330187e-06
    return tl.exp2(n) * tl.exp2(rest * 1.4426950408889634)


@triton.jit
def _first_best(values, at):
    """(largest value, its lowest place); every lane holds its own best."""
    best = tl.max(values, 0)
    return best, tl.min(tl.where(values == best, at, 2147483647), 0)


@triton.jit
def pick_and_walk_kernel(
    scores,  # (B, T, V) float32, float16 or bfloat16, last stride 1
    noise,  # (B, D, V) float32, last stride 1; not read unless NOISY
    token_ids,  # (B, T - 1) int32, contiguous
    parents,  # (B, T - 1) int32, contiguous
    verify,  # (B, T - 1) int8, contiguous
    picks,  # (B, T) int32, scratch, contiguous
    chances,  # (B, T) float32, probability of the pick; not written unless NOISY
    arrived,  # (B,) int32, zeros
    packed,  # (B, T + 1) int32: count, next token, path
    T,
    vocab,
    noise_rows,
    scores_b,
    scores_t,
    noise_b,
    noise_d,
    T_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    NOISY: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    tree = row * (T - 1)
    x_row = scores + row * scores_b + place.to(tl.int64) * scores_t
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    where = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, vocab, BLOCK):
        at = begin + lanes
        x = tl.load(x_row + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
        where = tl.where(x > best, at, where)
        best = tl.maximum(best, x)
    top, token = _first_best(best, where)
    if NOISY:
        depth = place * 0
        node = place - 1
        while node >= 0:
            up = tl.load(parents + tree + node)
            depth += 1
            node = tl.where(up < node, up, -1)  # a parent comes before its child, or the draft is not a tree
        if depth < noise_rows:
            total = tl.zeros([BLOCK], tl.float32)
            for begin in range(0, vocab, BLOCK):
                at = begin + lanes
                x = tl.load(x_row + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
                total += _exp(x - top)
            mass = tl.sum(total, 0)
            e_row = noise + row * noise_b + depth.to(tl.int64) * noise_d
            best = tl.full([BLOCK], -1.0, tl.float32)
            where = tl.zeros([BLOCK], tl.int32)
            for begin in range(0, vocab, BLOCK):
                at = begin + lanes
                x = tl.load(x_row + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
                e = tl.load(e_row + at, mask=at < vocab, other=1.0)
                r = tl.where(at < vocab, tl.div_rn(tl.div_rn(_exp(x - top), mass), e), -1.0)
                where = tl.where(r > best, at, where)
                best = tl.maximum(best, r)
            _, token = _first_best(best, where)
            x = tl.load(x_row + token).to(tl.float32)
            tl.store(chances + row * T + place, tl.div_rn(_exp(x - top), mass))
        else:
            token = -1  # deeper than the noise reaches: the walk ends at the node before
    tl.store(picks + row * T + place, token)

    if tl.atomic_add(arrived + row, 1, sem="acq_rel") == T - 1:
        nodes = tl.arange(0, T_BLOCK)
        real = nodes < T - 1
        ids = tl.load(token_ids + tree + nodes, mask=real, other=-1)
        ups = tl.load(parents + tree + nodes, mask=real, other=-2)
        may = tl.load(verify + tree + nodes, mask=real, other=0) != 0
        out = packed + row * (T + 1)
        node = -1
        count = 0
        going = 1
        while going == 1:
            token = tl.load(picks + row * T + node + 1, cache_modifier=".cg")
            child = tl.max(tl.where((ups == node) & (ids == token) & may & (nodes > node), nodes, -1), 0)
            if child >= 0:
                tl.store(out + 2 + count, child)
                count += 1
                node = child
            else:
                tl.store(out, count)
                tl.store(out + 1, token)
                going = 0


def pick_and_walk(
    scores: torch.Tensor,
    token_ids: torch.Tensor,
    parents: torch.Tensor,
    verify: torch.Tensor,
    noise: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the kernel; arguments as ``verify.pick_and_walk``, already checked for shapes.

    Scores and noise may have any strides but the last, which must be 1; the trees must be contiguous.

    Returns:
        packed int32 (B, T + 1): number of accepted nodes, next token, their indices, then unspecified; and the
        probability float32 (B, T) of the token picked at each node (unspecified without noise).

    Raises:
        ValueError: a dtype, stride or size that the kernel does not take, by name.
    """
    rows, width, vocab = scores.shape
    _refuse_other(scores, "scores", (torch.float32, torch.float16, torch.bfloat16))
    if width - 1 > MAX_NODES:
        raise ValueError(f"expected at most {MAX_NODES} nodes per row, got {width - 1}")
    for name, tree in (("token_ids", token_ids), ("parents", parents)):
        _refuse_other(tree, name, (torch.int32,), contiguous=True)
    _refuse_other(verify, "verify", (torch.bool,), contiguous=True)
    if noise is not None:
        _refuse_other(noise, "noise", (torch.float32,))
    device = scores.device
    scratch = torch.zeros(rows * (width + 1), dtype=torch.int32, device=device)
    chances = torch.empty((rows, width), dtype=torch.float32, device=device)
    packed = torch.empty((rows, width + 1), dtype=torch.int32, device=device)
    energy = scores if noise is None else noise
    block = _BLOCK if noise is None else _NOISY_BLOCK
    pick_and_walk_kernel[(width, rows)](
        scores,
        energy,
        token_ids,
        parents,
        verify.view(torch.int8),
        scratch[rows:],
        chances,
        scratch[:rows],
        packed,
        width,
        vocab,
        energy.shape[1],
        scores.stride(0),
        scores.stride(1),
        energy.stride(0),
        energy.stride(1),
        T_BLOCK=max(16, triton.next_power_of_2(width)),
        BLOCK=min(block, max(16, triton.next_power_of_2(vocab))),
        NOISY=noise is not None,
        num_warps=8,
        enable_fp_fusion=False,
    )
    return packed, chances


def _refuse_other(
    tensor: torch.Tensor, name: str, dtypes: tuple[torch.dtype, ...], *, contiguous: bool = False
) -> None:
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name} must have dtype {' or '.join(map(str, dtypes))}, got {tensor.dtype}")
    if contiguous and not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}")
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise ValueError(f"{name} must have a last stride of 1, got strides {tensor.stride()}")
