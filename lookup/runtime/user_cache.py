"""The user's cache folder: where what takes long to make is kept, and one warning where there is no such place."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)
_told: Final[list[str]] = []
_stand_ins: Final[list[Path]] = []


def user_cache() -> Path | None:
    """zerodraft's folder in the platform's user cache (``XDG_CACHE_HOME`` on Linux); it need not exist.

    None where the system knows none: no home, no entry in the user table, a relative path.
    """
    try:
        try:
            import platformdirs
        except ImportError:  # the folder of Linux
            path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zerodraft"
        else:
            path = Path(platformdirs.user_cache_dir("zerodraft", appauthor=False))
    except RuntimeError:  # Path.home() without a home
        return None
    return path if path.is_absolute() else None  # "~/.cache": nobody could say whose home


def writable(folder: Path, name: str) -> Path:
    """``folder``, made if need be, where files can be written to it; else ``name`` in ``stand_in``, with a warning."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        not_kept(error)
        return stand_in() / name
    return folder


def is_writable(folder: Path) -> bool:
    """Could files be written to this folder? Nothing is made, so a full disk is not noticed."""
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def not_kept(error: Exception) -> None:
    """Say, once per process, that what takes long to make has no place to be kept in."""
    if not _told:
        _told.append(str(error))
        _log.warning(
            "zerodraft has no place to keep what takes long to make, so every process makes it anew (%s): set "
            "XDG_CACHE_HOME, or NUMBA_CACHE_DIR for compiled kernels, to a writable folder",
            error,
        )


def stand_in() -> Path:
    """A folder of this process alone, gone when it ends, for what is too large to keep in memory."""
    if not _stand_ins:
        made = Path(tempfile.mkdtemp(prefix="zerodraft-"))
        _stand_ins.append(made)
        atexit.register(_remove, made, os.getpid())
    return _stand_ins[0]


def stand_ins() -> tuple[Path, ...]:
    """The folder that ``stand_in`` made, if it was asked for."""
    return tuple(_stand_ins)


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # not in a fork
        shutil.rmtree(folder, ignore_errors=True)
