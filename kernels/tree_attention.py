"""Who sees whom when a tree of drafted tokens is checked in one forward: ancestor masks and positions by depth.

One mechanism serves chains, trees and Lookahead windows: every node sees the row's cached tokens, its ancestors and
itself; its position is the root's plus its depth. Source: SpecInfer (arXiv:2305.09781), section 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch


def ancestor_mask(
    parents: Sequence[int] | npt.NDArray[np.integer],
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Return which positions of one forward see each other, and their depths.

    Position 0 is the root (the last emitted token), position i + 1 is node i.

    Args:
        parents: (n,), ``-1 <= parents[i] < i``, -1 is the root.

    Returns:
        mask bool (n + 1, n + 1): ``mask[i, j]`` if j is i or an ancestor of i; depths int64 (n + 1,), root 0.

    The tree r, a, b, c, d with a and b under r, c and d under a:

    >>> mask, depths = ancestor_mask([-1, -1, 0, 0])
    >>> print(mask.astype(int))
    [[1 0 0 0 0]
     [1 1 0 0 0]
     [1 0 1 0 0]
     [1 1 0 1 0]
     [1 1 0 0 1]]
    >>> depths.tolist()
    [0, 1, 1, 2, 2]
    """
    size = len(parents) + 1
    up = np.asarray(parents, dtype=np.int64)
    if size == 1 or np.array_equal(up, np.arange(-1, size - 2)):
        return np.tri(size, dtype=np.bool_), np.arange(size, dtype=np.int64)
    mask = np.eye(size, dtype=np.bool_)
    mask[0, 0] = True
    for node, parent in enumerate(up.tolist()):
        mask[node + 1] |= mask[parent + 1]
    return mask, mask.sum(1, dtype=np.int64) - 1


def forward_inputs(
    lengths: Sequence[int],
    parents: Sequence[Sequence[int] | npt.NDArray[np.integer]],
    windows: Sequence[int | None],
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    width: int | None = None,
    num_columns: int | None = None,
) -> tuple[torch.Tensor, dict[int | None, torch.Tensor]]:
    """Positions and additive masks to check one draft per row, rows of different lengths side by side.

    Rows with fewer nodes than the widest are filled up with positions that see what their root sees; nobody sees them.

    Args:
        lengths: cached tokens per row (B values); the root of row b stands at position ``lengths[b]``.
        parents: per row, the parents of its draft's nodes.
        windows: the distinct sliding-window sizes of the model's layers; None stands for full attention. A window of w
            sees the last w positions, itself included, counted in positions, not in columns.
        dtype, device: of the masks; ``dtype`` must be the model's.
        width: T, where it is not 1 + nodes of the widest draft: forwards of a few fixed widths can be compiled once.
        num_columns: of the cache, where not max(lengths) + T; nobody sees the further ones.

    Returns:
        position_ids int64 (B, T) and, per window, an additive mask (B, 1, T, columns): 0 where seen, the smallest
        number of ``dtype`` where not.

    Raises:
        ValueError: a width or a number of columns that does not hold the drafts.
    """
    least = 1 + max(len(up) for up in parents)
    width = least if width is None else width
    need = max(lengths) + width if num_columns is None else num_columns
    if width < least or need < max(lengths) + width:
        raise ValueError(f"expected width >= {least} and num_columns >= {max(lengths) + width}, got {width}, {need}")
    rows = len(lengths)
    positions = np.empty((rows, width), np.int64)
    seen = np.zeros((rows, width, need), np.bool_)
    columns = np.full((rows, need), -1, np.int64)  # the position that stands in each column of the cache
    for row, (length, up) in enumerate(zip(lengths, parents)):
        size = len(up) + 1
        mask, depths = ancestor_mask(up)
        positions[row, :size] = depths + length
        positions[row, size:] = length
        columns[row, :length] = np.arange(length)
        columns[row, length : length + size] = positions[row, :size]
        seen[row, :, :length] = True
        seen[row, :size, length : length + size] = mask
        seen[row, size:, length] = True
    masks = _additive(seen, positions, columns, windows, dtype, device)
    return torch.from_numpy(positions).to(device), masks


def packed_inputs(
    lengths: Sequence[int],
    parents: Sequence[Sequence[int] | npt.NDArray[np.integer]],
    windows: Sequence[int | None],
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> tuple[torch.Tensor, dict[int | None, torch.Tensor]]:
    """The same rows one behind the other in a forward of batch 1: no position is spent on filling up.

    Row b's positions see row b's columns alone; these are its cached tokens and then its own positions.

    Args:
        lengths, parents, windows, dtype, device: as of ``forward_inputs``.

    Returns:
        position_ids int64 (1, T) with T = sum of 1 + nodes, and, per window, an additive mask (1, 1, T, columns) with
        columns = sum(lengths) + T.
    """
    masks_and_depths = [ancestor_mask(up) for up in parents]
    positions = np.concatenate([depths + length for length, (_, depths) in zip(lengths, masks_and_depths)])
    seen = np.zeros((len(positions), sum(lengths) + len(positions)), np.bool_)
    columns = np.empty(seen.shape[1], np.int64)
    row = column = 0
    for length, (mask, depths) in zip(lengths, masks_and_depths):
        end = column + length
        seen[row : row + len(mask), column:end] = True
        seen[row : row + len(mask), end : end + len(mask)] = mask
        columns[column:end] = np.arange(length)
        columns[end : end + len(mask)] = depths + length
        row, column = row + len(mask), end + len(mask)
    masks = _additive(seen[None], positions[None], columns[None], windows, dtype, device)
    return torch.from_numpy(positions[None]).to(device), masks


def _additive(
    seen: npt.NDArray[np.bool_],
    positions: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int64],
    windows: Sequence[int | None],
    dtype: torch.dtype,
    device: torch.device | str,
) -> dict[int | None, torch.Tensor]:
    """Per window the mask (B, 1, T, columns): 0 where seen (B, T, columns) and inside the window, else the smallest."""
    masks = {}
    smallest = torch.finfo(dtype).min
    for window in windows:
        sees = seen if window is None else seen & (columns[:, None, :] > positions[:, :, None] - window)
        additive = torch.zeros((seen.shape[0], 1, *seen.shape[1:]), dtype=dtype)
        masks[window] = additive.masked_fill_(torch.from_numpy(~sees)[:, None], smallest).to(device)
    return masks


_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)


def bucket(width: int) -> int:
    """The fixed width that a forward over ``width`` positions is filled up to: 1, 2, 4 ... 128, then multiples of 128.

    >>> [bucket(width) for width in (1, 3, 16, 17, 129)]
    [1, 4, 16, 32, 256]
    """
    return next((size for size in _BUCKETS if size >= width), -(-width // _BUCKETS[-1]) * _BUCKETS[-1])
