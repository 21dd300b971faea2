"""Which files a command means: names, folders with what is below them, patterns that no shell has resolved."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_NOT_OURS: Final = frozenset({"node_modules", "site-packages", "__pycache__"})
"""Folders of other people's files and of what machines made."""


def find_files(sources: Sequence[Path], suffixes: Sequence[str] = ()) -> Iterator[tuple[Path, bool]]:
    """Yield (file, whether it was asked for by name), no file twice, folders in the order of their names.

    Below a folder hidden files and links are left out, and files that do not end with one of the suffixes.
    A source that is not there and holds ``*``, ``?`` or ``[`` is taken as a pattern; ``**`` is any number of folders.

    Raises:
        ValueError: a pattern or a folder without a file.
    """
    seen: set[str] = set()
    for source in sources:
        is_folder = source.is_dir()
        found = [source] if not is_folder else _below(source, tuple(suffixes))
        if not is_folder and not os.path.lexists(source) and glob.has_magic(str(source)):
            found = [Path(name) for name in sorted(glob.glob(str(source), recursive=True)) if not os.path.isdir(name)]
            if not found:
                raise ValueError(f"no file is named like {source}")
        num = 0
        for path in found:
            num += 1
            if (place := os.path.realpath(path)) not in seen:
                seen.add(place)
                yield path, not is_folder
        if is_folder and not num:
            few = ", ".join(suffixes[:3]) + (" or the like" if len(suffixes) > 3 else "")
            raise ValueError(f"no file below {source}" + (f" that ends with {few}" if suffixes else ""))


def _below(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NOT_OURS)
        for name in sorted(names):
            path = Path(place, name)
            fits = not name.startswith(".") and (not suffixes or name.endswith(suffixes))
            if fits and path.is_file() and not path.is_symlink():
                yield path
