"""Writes a file so that it stays what it was: whole, with its rights, attributes and links, or through a device."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

_NOT_BY_RENAMING: Final = frozenset(
    {errno.EBUSY, errno.EXDEV, errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOTSUP, errno.EINVAL}
)
"""How a system says that a file cannot be replaced though it can be written: a mount, a sticky or protected folder."""


class FileError(ValueError):
    """The file cannot be read or written; the message says why in one line."""


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before any work goes into what it is to hold.

    A new file needs a folder that takes one; a device or a FIFO only has to let itself be written to.

    Raises:
        FileError: naming what is in the way.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        folder = Path(os.path.realpath(path)).parent
        if not folder.is_dir():
            raise FileError(f"cannot write {path}: no folder {folder}") from None
        if not os.access(folder, os.W_OK):
            raise FileError(f"cannot write {path}: the folder {folder} is write-protected") from None
    except (OSError, ValueError) as error:  # a name that is too long, or holds a zero byte
        raise FileError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from None
    else:
        if stat.S_ISDIR(mode):
            raise FileError(f"cannot write {path}: it is a folder")
        if not os.access(path, os.W_OK):
            raise FileError(f"cannot write {path}: it is write-protected")


def write_file(path: Path, data: bytes, *, expected: bytes | None = None) -> None:
    """Make ``path`` hold ``data``. A symbolic link is followed and stays one.

    A regular file is replaced by a new one beside it, so that at any time one of the two is there; mode, owner and, on
    Linux, extended attributes (access lists among them) go over. Where that cannot be, because the file has further
    hard links, is a mount point, belongs to somebody else or has an attribute that cannot be copied, it is written in
    place, and what it held is put back if that fails. What is no regular file, such as a FIFO or ``/dev/stdout``, is
    written through.

    Args:
        path: where to.
        data: the new content.
        expected: what the file must still hold just before, None if that does not matter.

    Raises:
        FileError: it holds something else, or cannot be written. It is then as it was.
    """
    try:
        known = os.stat(path)
    except FileNotFoundError:
        known = None
    except OSError as error:
        raise _cannot_write(path, error) from None
    if known is not None and not stat.S_ISREG(known.st_mode):
        _write_through(path, data)
        return
    target = Path(os.path.realpath(path))
    _check_unchanged(target, expected)
    if known is not None and known.st_nlink > 1:
        _write_in_place(target, data)
        return
    try:
        _replace(target, data, known, expected)
    except OSError as error:
        if known is None or error.errno not in _NOT_BY_RENAMING:
            raise _cannot_write(path, error) from None
        _check_unchanged(target, expected)
        _write_in_place(target, data)


def _cannot_write(path: Path, error: OSError) -> FileError:
    return FileError(f"cannot write {path}: {error.strerror or error}")


def _check_unchanged(target: Path, expected: bytes | None) -> None:
    if expected is None:
        return
    try:
        is_same = target.read_bytes() == expected
    except OSError:
        is_same = False
    if not is_same:
        raise FileError(f"{target} changed while the model was writing; it was left as it is")


def _write_through(path: Path, data: bytes) -> None:
    """Write to a device or a FIFO, which waits for its reader."""
    try:
        with open(path, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) or 0 :]
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _cannot_write(path, error) from None


def _write_in_place(target: Path, data: bytes) -> None:
    """Overwrite a regular file, without emptying it first; put the old content back where that fails."""
    try:
        with open(target, "r+b", buffering=0) as file:
            old = file.read()
            try:
                _overwrite(file.fileno(), data)
            except OSError:
                with contextlib.suppress(OSError):
                    _overwrite(file.fileno(), old)
                raise
    except OSError as error:
        raise _cannot_write(target, error) from None


def _overwrite(handle: int, data: bytes) -> None:
    os.lseek(handle, 0, os.SEEK_SET)
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
    os.ftruncate(handle, len(data))
    os.fsync(handle)


def _replace(target: Path, data: bytes, known: os.stat_result | None, expected: bytes | None) -> None:
    """Write a new file beside the target and rename it. An OSError leaves the target alone and nothing beside it."""
    # A short name: the target's may be as long as names can be.
    handle, name = tempfile.mkstemp(prefix=".zerodraft-", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            _take_over(file.fileno(), target, known)
            os.fsync(file.fileno())
        _check_unchanged(target, expected)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _take_over(handle: int, target: Path, known: os.stat_result | None) -> None:
    """Give a new file the owner, attributes and mode of the one it replaces; an OSError where it may not have them."""
    if known is None:
        mask = os.umask(0)
        os.umask(mask)
        os.fchmod(handle, 0o666 & ~mask)
        return
    mine = os.fstat(handle)
    if (mine.st_uid, mine.st_gid) != (known.st_uid, known.st_gid):
        os.fchown(handle, known.st_uid, known.st_gid)
    os.fchmod(handle, stat.S_IMODE(known.st_mode))
    if hasattr(os, "listxattr"):
        old = {name: os.getxattr(target, name) for name in _attributes(target)}
        new = {name: os.getxattr(handle, name) for name in _attributes(handle)}
        for name in new.keys() - old.keys():
            os.removexattr(handle, name)
        for name in {name for name, value in old.items() if new.get(name) != value}:
            os.setxattr(handle, name, old[name])


def _attributes(file: Path | int) -> list[str]:
    try:
        return os.listxattr(file)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOSYS):  # a file system without any
            return []
        raise
