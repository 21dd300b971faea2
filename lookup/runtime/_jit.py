"""How every kernel compiles: eagerly, cached on disk where that works, and working where it does not."""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import numpy.ma  # numba asks for it at the first array it looks at: in a thread, beside a fork, too late
import numpy.typing as npt
from numba import from_dtype, njit, types
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

if TYPE_CHECKING:
    from importlib.abc import Traversable

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# What the parameters of kernels are called: to a reader and to mypy arrays of numpy, to numba contiguous arrays of this
# type. Read...: read-only ones (mapped files, frozen values) are taken, too.
Ints = Annotated[npt.NDArray[np.int32], types.Array(types.int32, 1, "C")]
Ints2D = Annotated[npt.NDArray[np.int32], types.Array(types.int32, 2, "C")]
Ints3D = Annotated[npt.NDArray[np.int32], types.Array(types.int32, 3, "C")]
Longs = Annotated[npt.NDArray[np.int64], types.Array(types.int64, 1, "C")]
Longs2D = Annotated[npt.NDArray[np.int64], types.Array(types.int64, 2, "C")]
Floats = Annotated[npt.NDArray[np.float64], types.Array(types.float64, 1, "C")]
Floats2D = Annotated[npt.NDArray[np.float64], types.Array(types.float64, 2, "C")]
ReadInts = Annotated[npt.NDArray[np.int32], types.Array(types.int32, 1, "C", readonly=True)]
ReadInts2D = Annotated[npt.NDArray[np.int32], types.Array(types.int32, 2, "C", readonly=True)]
ReadLongs = Annotated[npt.NDArray[np.int64], types.Array(types.int64, 1, "C", readonly=True)]
ReadBytes = Annotated[npt.NDArray[np.uint8], types.Array(types.uint8, 1, "C", readonly=True)]
ReadFloats = Annotated[npt.NDArray[np.float64], types.Array(types.float64, 1, "C", readonly=True)]
ReadFloats2D = Annotated[npt.NDArray[np.float64], types.Array(types.float64, 2, "C", readonly=True)]
Word = Annotated[Any, types.uint64]
Words = Annotated[npt.NDArray[np.uint64], types.Array(types.uint64, 1, "C")]
Record = TypeVar("Record", bound=type)

_log = logging.getLogger(__name__)
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
_PLAIN: Final = {int: types.int64, float: types.float64, bool: types.boolean, type(None): types.void}
SAY_AFTER: Final = 1.0  # seconds of compiling before it is said


def record(cls: Record) -> Record:
    """Make a class of annotated fields a record: ``dtype_of(cls)`` for numpy, and itself as an annotation of kernels.

    ``int`` and ``float`` are int64 and float64; another record is nested; ``Annotated[..., kind, shape]`` is an array.

    >>> @record
    ... class Place:
    ...     at: int
    ...     counts: Annotated[list[int], int, (3,)]
    >>> np.zeros(2, dtype_of(Place))[1].counts.tolist()
    [0, 0, 0]
    """
    fields: list[Any] = []
    for name, hint in get_type_hints(cls, include_extras=True).items():
        *_, kind, shape = hint.__metadata__ if get_origin(hint) is Annotated else (hint, ())
        fields.append((name, {int: "i8", float: "f8"}.get(kind) or dtype_of(kind), shape))
    cls._dtype = np.dtype((np.record, fields))  # type: ignore[attr-defined]
    return cls


def dtype_of(cls: type) -> np.dtype[Any]:
    """The dtype of a ``record``; a TypeError for anything else."""
    dtype: np.dtype[Any] | None = getattr(cls, "_dtype", None)
    if dtype is None:
        raise TypeError(f"expected int, float or a record, got {cls}")
    return dtype


def kernel(function: Kernel) -> Kernel:
    """Compile a function for the types that its annotations name, now, at import: the decorator of every kernel.

    ``int``, ``float``, ``bool`` and None are int64, float64, boolean and void; ``Ints`` and the other names above are
    arrays; a ``record`` is a record, a list of it an array of them; a NamedTuple of such types, or a tuple, is one.

    Machine code is kept where numba keeps it (``NUMBA_CACHE_DIR``, else ``__pycache__`` beside the file, else the
    user's cache folder; beside the file also read-only). No state of the disk can make the import fail: an unreadable,
    truncated, altered or unwritable cache costs the compilation again, nothing else. Calls with other types raise a
    TypeError instead of compiling a second version in mid-decode. Read-only arrays are refused where
    the annotation does not say ``Read...``.

    A cache is used as long as no kernel file of the package has changed: kernels call each other across files.

    >>> @kernel
    ... def double(x: int) -> int:
    ...     return 2 * x
    >>> double(21)
    42
    """
    return _compiled(function, nogil=False)


def bulk_kernel(function: Kernel) -> Kernel:
    """As ``kernel``, without the GIL, for long builds only.

    A short kernel that gives the GIL away beside a busy Python thread waits for milliseconds to get it back.
    """
    return _compiled(function, nogil=True)


def _compiled(function: Kernel, nogil: bool) -> Kernel:
    dispatcher: Any = njit(nogil=nogil)(function)
    if not hasattr(dispatcher, "compile"):  # NUMBA_DISABLE_JIT=1 hands the plain function back
        return function
    try:
        dispatcher._cache = _TolerantCache(function)
    except (RuntimeError, OSError) as error:  # no place at all: a frozen program, a zip file without HOME
        _log.info("no cache for %s: %s", function.__qualname__, error)
        dispatcher._cache = _NoCache()
        not_kept(error)
    dispatcher.compile(_signature(function))
    dispatcher.disable_compile()
    compiled: Kernel = dispatcher
    return compiled


def _signature(function: Callable[..., Any]) -> Any:
    hints = get_type_hints(function, include_extras=True)
    found: list[Any] = []
    for name in (*inspect.signature(function).parameters, "return"):
        try:
            found.append(_type_of(hints[name]))
        except (KeyError, TypeError):
            got = hints.get(name, "none")
            raise TypeError(f"{function.__qualname__}: {name} needs a type that kernels know, got {got}") from None
    return found.pop()(*found)


def _type_of(hint: Any) -> Any:
    if get_origin(hint) is Annotated:
        return hint.__metadata__[0]
    if get_origin(hint) is tuple:
        return types.Tuple([_type_of(part) for part in get_args(hint)])
    if get_origin(hint) is list:
        return types.Array(_type_of(get_args(hint)[0]), 1, "C")
    if hasattr(hint, "_fields"):
        parts = [_type_of(part) for part in get_type_hints(hint, include_extras=True).values()]
        if len(set(parts)) == 1:
            return types.NamedUniTuple(parts[0], len(parts), hint)
        return types.NamedTuple(parts, hint)
    return _PLAIN[hint] if hint in _PLAIN else from_dtype(dtype_of(hint))


def direct(of: Kernel) -> Kernel:
    """The machine code behind a kernel of one signature, which does not look at the types of its arguments.

    A call costs some 30 ns per array less, a third of what a short kernel takes. For arrays that are the caller's own,
    so of the right types and contiguous: nothing checks that. Kernels call each other as they are.

    >>> @kernel
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

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = (f"{function.__module__}.{function.__qualname__}", _room_stamp())
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
def _room_stamp() -> str:
    """Digest of all kernel files, the package's ``_*.py``, in a folder or a zip file; "" where there are none."""
    digest = hashlib.sha256()
    try:
        for file in sorted(_kernel_files(files(__package__.rpartition(".")[0])), key=str):
            digest.update(file.read_bytes())
    except (OSError, TypeError, ModuleNotFoundError):  # a frozen program
        return ""
    return digest.hexdigest()


def _kernel_files(folder: Traversable) -> Iterator[Traversable]:
    for entry in folder.iterdir():
        if entry.name.startswith("_") and entry.name.endswith(".py") and entry.name != "__init__.py":
            yield entry
        elif not entry.name.startswith("_") and entry.is_dir():
            yield from _kernel_files(entry)


@functools.cache
def _digest_of(module: ModuleType) -> str:
    """Digest of a module's source, wherever it comes from: a folder or a zip file; "" where there is none."""
    loader, file = module.__loader__, module.__file__
    try:
        return hashlib.sha256(loader.get_data(file)).hexdigest()  # type: ignore[union-attr]
    except (OSError, AttributeError, TypeError):  # a frozen program
        return ""
