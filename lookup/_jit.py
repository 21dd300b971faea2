"""How every ``_core`` file compiles: eagerly, cached on disk where that works, and working where it does not."""

from __future__ import annotations

import hashlib
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from numba import njit, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, InTreeCacheLocator

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# Argument types of the kernels: contiguous arrays; READ_* also takes read-only arrays (mmap, frozen values).
I64 = types.Array(types.int64, 1, "C")
I32 = types.Array(types.int32, 1, "C")
I32_2D = types.Array(types.int32, 2, "C")
I64_2D = types.Array(types.int64, 2, "C")
READ_I32 = types.Array(types.int32, 1, "C", readonly=True)
READ_I32_2D = types.Array(types.int32, 2, "C", readonly=True)

_log = logging.getLogger(__name__)
_DIGEST_BYTES = hashlib.sha256().digest_size


def kernel(*signatures: Any, nogil: bool = False, uses: tuple[ModuleType, ...] = ()) -> Callable[[Kernel], Kernel]:
    """Compile a function for exactly these signatures, now, at import: the decorator of every ``_core`` kernel.

    Machine code is kept where numba keeps it (``NUMBA_CACHE_DIR``, else ``__pycache__`` beside the file, else the
    user's cache folder; beside the file also read-only). No state of the disk can make the import fail: an unreadable,
    truncated, altered or unwritable cache costs the compilation again, nothing else. Calls with other types raise a
    TypeError instead of compiling a second version in mid-decode. Read-only arrays are refused where
    the signature does not say ``READ_...``.

    The cache notices changes only in the file of the function itself and in those named in ``uses``: a kernel may call
    kernels and read compile-time constants of these files and no others.

    Args:
        signatures: numba signatures, or strings such as ``"int64(int32[::1], int64)"``.
        nogil: release the GIL; for bulk builds and batch calls only. A short kernel that gives the GIL away beside a
            busy Python thread waits for milliseconds to get it back.
        uses: the modules whose kernels or constants it uses, its own left out.

    >>> @kernel("int64(int64)")
    ... def double(x: int) -> int:
    ...     return 2 * x
    >>> double(21)
    42
    """

    def compile_now(function: Kernel) -> Kernel:
        dispatcher: Any = njit(nogil=nogil)(function)
        if not hasattr(dispatcher, "compile"):  # NUMBA_DISABLE_JIT=1 hands the plain function back
            return function
        try:
            dispatcher._cache = _TolerantCache(function, uses)
        except (RuntimeError, OSError) as error:  # no place at all: a frozen program, a zip file without HOME
            _log.info("no cache for %s: %s", function.__qualname__, error)
        for signature in signatures:
            dispatcher.compile(signature)
        dispatcher.disable_compile()
        compiled: Kernel = dispatcher
        return compiled

    return compile_now


def direct(of: Kernel) -> Kernel:
    """The machine code behind a kernel of one signature, which does not look at the types of its arguments.

    A call costs some 30 ns per array less, a third of what a short kernel takes. For arrays that are the caller's own,
    so of the right types and contiguous: nothing checks that. Kernels call each other as they are.

    >>> @kernel("int64(int64)")
    ... def double(x: int) -> int:
    ...     return 2 * x
    >>> direct(double)(21)
    42
    """
    versions = getattr(of, "overloads", None)
    if versions is None:  # NUMBA_DISABLE_JIT=1
        return of
    (version,) = versions.values()
    code: Kernel = version.entry_point
    return code


class _BesideTheFile(InTreeCacheLocator):  # type: ignore[misc]
    """``__pycache__`` beside the file even if it is not writable: a cache shipped with a read-only install is used."""

    def ensure_cache_path(self) -> None:
        """Ask for nothing; a save that fails is logged and forgotten."""


class _CacheImpl(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (*CompileResultCacheImpl._locator_classes, _BesideTheFile)


class _CheckedFile(IndexDataCacheFile):  # type: ignore[misc]
    """Numba's pair of index and data files, with a digest before the data: altered machine code is never run."""

    def _save_data(self, name: str, data: Any) -> None:
        body = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(body).digest() + body)

    def _load_data(self, name: str) -> Any:
        content = Path(self._data_path(name)).read_bytes()
        digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != digest:
            raise ValueError(f"{name} is damaged")
        return pickle.loads(body)


class _TolerantCache(FunctionCache):  # type: ignore[misc]
    """Numba's function cache, except that a damaged entry is a miss and a failed save is no error."""

    _impl_class = _CacheImpl

    def __init__(self, function: Callable[..., Any], uses: tuple[ModuleType, ...]) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        if uses:
            stamp = (stamp, *map(_stamp_of, uses))
        # A name of its own: numba's plain cache of the same function (an older version of this file) is not ours.
        self._cache_file = _CheckedFile(self._cache_path, f"{self._impl.filename_base}.checked", stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # whatever a foreign file can raise while it is unpickled
            _log.info("cache of %s not usable, compiling: %r", self._name, error)
            self._forget()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception as error:  # disk full, read-only, an index another process is damaging just now
            _log.info("cache of %s not written: %r", self._name, error)

    def _forget(self) -> None:
        try:
            self.flush()
        except OSError as error:
            _log.info("cache of %s not cleared: %r", self._name, error)


def _stamp_of(module: ModuleType) -> tuple[float, int] | None:
    """When the file of a module was written and its size; None in a zip file or a frozen program."""
    try:
        status = Path(str(module.__file__)).stat()
    except OSError:
        return None
    return status.st_mtime, status.st_size
