"""Where a row's randomness comes from: the device's default generator, as in plain decoding, or one per row."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def generators_of(
    num_rows: int, seeds: Sequence[int] | None, do_sample: bool, device: torch.device
) -> list[torch.Generator | None]:
    """One source of randomness per row. A single row without a seed uses the device's default one, as plain does.

    A batch without seeds draws its rows' seeds from the default generator, so ``torch.manual_seed`` governs it.
    """
    if seeds is None:
        if num_rows == 1 or not do_sample:
            return [None] * num_rows
        seeds = torch.randint(2**62, (num_rows,)).tolist()
    if len(seeds) != num_rows:
        raise ValueError(f"seeds must be one per row: expected {num_rows}, got {len(seeds)}")
    return [torch.Generator(device).manual_seed(int(seed)) for seed in seeds]


def default_generator(device: torch.device) -> torch.Generator:
    """The generator that torch draws from on this device where it is given none."""
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    return torch.default_generator
