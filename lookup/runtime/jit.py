"""How every ``_core`` file compiles: eagerly, cached on disk where that works, and working where it does not."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

import numpy.ma  # noqa: F401  # numba asks for it at the first array it looks at: in a thread, beside a fork, too late
from numba import njit, types
from numba.core import config
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    InTreeCacheLocator,
    NullCache,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
)

from zerodraft.lookup.runtime.user_cache import not_kept

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# Argument types of the kernels: contiguous arrays; READ_* also takes read-only arrays (mmap, frozen values).
I64 = types.Array(types.int64, 1, "C")
I32 = types.Array(types.int32, 1, "C")
I32_2D = types.Array(types.int32, 2, "C")
I64_2D = types.Array(types.int64, 2, "C")
READ_I32 = types.Array(types.int32, 1, "C", readonly=True)
READ_I32_2D = types.Array(types.int32, 2, "C", readonly=True)

_log = logging.getLogger(__name__)
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
SAY_AFTER: Final = 1.0  # seconds of compiling before it is said


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
            dispatcher._cache = _NoCache()
            not_kept(error)
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


class _UserWide(UserWideCacheLocator):  # type: ignore[misc]
    """The user's cache folder, where the system knows one; numba would else make a folder called "~" right here."""

    def ensure_cache_path(self) -> None:
        if not os.path.isabs(self.get_cache_path()):
            raise OSError(f"no home, so no cache folder: {self.get_cache_path()}")
        super().ensure_cache_path()


class _FromAnArchive(_UserWide):
    """As ``_UserWide`` or in ``NUMBA_CACHE_DIR``, for a file in a zip archive, whatever the archive is called."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        super().__init__(function, file)
        self._source: str = _digest_of(sys.modules[function.__module__])
        if config.CACHE_DIR:
            self._cache_path = os.path.join(config.CACHE_DIR, self.get_suitable_cache_subpath(file))

    def get_source_stamp(self) -> str:
        return self._source

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> _FromAnArchive | None:
        module = sys.modules.get(function.__module__)
        if os.path.exists(file) or not hasattr(getattr(module, "__loader__", None), "archive"):
            return None
        try:
            locator = cls(function, file)
            locator.ensure_cache_path()
        except OSError:
            return None
        return locator


class _BesideTheFile(InTreeCacheLocator):  # type: ignore[misc]
    """``__pycache__`` beside the file even if it is not writable: a cache shipped with a read-only install is used."""

    def ensure_cache_path(self) -> None:
        """Ask for nothing; a save that fails is logged and forgotten."""


class _CacheImpl(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (UserProvidedCacheLocator, InTreeCacheLocator, _UserWide, _FromAnArchive, _BesideTheFile)


class _BoundFile(IndexDataCacheFile):  # type: ignore[misc]
    """One file per signature and processor: machine code behind a digest of it and of whose it is.

    Numba keeps an index file beside it, which it unpickles unchecked. Here the name says where to look and the digest
    says whether this is the code of this kernel, of these sources, signature, processor and numba: a file that is
    damaged, stale or swapped for another kernel's is a miss, and overwritten when the kernel has been compiled.
    """

    def load(self, key: Any) -> Any:
        try:
            content = Path(self._path_of(key)).read_bytes()
        except FileNotFoundError:
            return None
        digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if self._digest(key, body) != digest:
            raise ValueError(f"{self._path_of(key)} is damaged, stale or of another kernel")
        return pickle.loads(body)

    def save(self, key: Any, data: Any) -> None:
        body = self._dump(data)
        with self._open_for_write(self._path_of(key)) as file:
            file.write(self._digest(key, body) + body)

    def flush(self) -> None:
        """Nothing is left to clear: what does not fit is not used, and is overwritten."""

    def _path_of(self, key: Any) -> str:
        signature, processor, _ = key
        which = hashlib.sha256(repr((signature, processor)).encode()).hexdigest()[:16]
        return os.path.join(self._cache_path, f"{self._index_name.removesuffix('.nbi')}.{which}.nbc")

    def _digest(self, key: Any, body: bytes) -> bytes:
        identity = repr((self._index_name, self._source_stamp, self._version, key)).encode()
        return hashlib.sha256(hashlib.sha256(identity).digest() + body).digest()


class _TolerantCache(FunctionCache):  # type: ignore[misc]
    """Numba's function cache, except that an entry that does not fit is a miss and a failed save is no error."""

    _impl_class = _CacheImpl

    def __init__(self, function: Callable[..., Any], uses: tuple[ModuleType, ...]) -> None:
        super().__init__(function)
        name = f"{function.__module__}.{function.__qualname__}"
        stamp = (name, self._impl.locator.get_source_stamp(), *map(_digest_of, uses))
        self._cache_file = _BoundFile(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            found = super().load_overload(sig, target_context)
        except Exception as error:  # whatever a foreign file can raise while it is unpickled
            _log.info("cache of %s not usable, compiling: %r", self._name, error)
            found = None
        if found is None:
            compilations.begin()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception as error:  # disk full, read-only
            _log.info("cache of %s not written: %r", self._name, error)
            not_kept(error)


class _NoCache(NullCache):  # type: ignore[misc]
    """Where nothing can be kept: every load is a miss."""

    def load_overload(self, sig: Any, target_context: Any) -> None:
        compilations.begin()


class Compilations:
    """What this process compiled because no cache had it. Says so once, if it takes long; never for what was loaded.

    Attributes:
        num_kernels: kernels compiled so far.
    """

    def __init__(self) -> None:
        self.num_kernels = 0
        self._first = 0.0
        self._is_said = False

    def begin(self) -> None:
        """A kernel is going to be compiled."""
        self.num_kernels += 1
        now = time.perf_counter()
        self._first = self._first or now
        if now - self._first > SAY_AFTER and not self._is_said:
            self._is_said = True
            _log.warning("zerodraft compiles its lookup kernels, which takes 10 to 70 s, as a rule once per machine")


compilations: Final = Compilations()


@functools.cache
def _digest_of(module: ModuleType) -> str:
    """Digest of a module's source, wherever it comes from: a folder or a zip file; "" where there is none."""
    loader, file = module.__loader__, module.__file__
    try:
        return hashlib.sha256(loader.get_data(file)).hexdigest()  # type: ignore[union-attr]
    except (OSError, AttributeError, TypeError):  # a frozen program
        return ""
