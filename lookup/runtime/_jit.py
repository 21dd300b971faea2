"""How every kernel compiles: eagerly, cached on disk where that works, and working where it does not."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import logging
import os
import pickle
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import numba
import numpy as np
import numpy.ma  # numba asks for it at the first array it looks at: in a thread, beside a fork, too late
import numpy.typing as npt
from numba import from_dtype, njit, types
from numba.core import config
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from zerodraft.lookup.runtime.user_cache import is_writable, not_kept, user_cache

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
ReadFloats = Annotated[npt.NDArray[np.float64], types.Array(types.float64, 1, "C", readonly=True)]
ReadFloats2D = Annotated[npt.NDArray[np.float64], types.Array(types.float64, 2, "C", readonly=True)]
Word = Annotated[Any, types.uint64]
Words = Annotated[npt.NDArray[np.uint64], types.Array(types.uint64, 1, "C")]
Record = TypeVar("Record", bound=type)

_log = logging.getLogger(__name__)
_ROOM: Final = __package__.rpartition(".")[0]  # the package whose kernels these are
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

    Machine code is kept in ``NUMBA_CACHE_DIR``, else in ``__pycache__`` beside the file, else in the user's cache
    folder. No state of the disk can make the import fail: an unreadable, truncated, altered or unwritable cache costs
    the compilation again, nothing else. Calls with other types raise a TypeError instead of compiling a second version
    in mid-decode. Read-only arrays are refused where the annotation does not say ``Read...``.

    What is kept is used as long as no kernel file of the package has changed: kernels call each other across files.

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
    dispatcher._cache = _Cache(function)
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


class _Cache(NullCache):  # type: ignore[misc]
    """One file per kernel, signature and processor: machine code behind a digest of it and of whose it is.

    Numba's own cache unpickles its index unchecked. Here the name says where to look and the digest says whether this
    is the code of this kernel, of these sources, signature, processor and numba: a file that is damaged, stale or
    swapped for another kernel's is a miss, and overwritten when the kernel has been compiled.

    Attributes:
        cache_path: the folder where the kernel was found or put, None: nowhere.
    """

    cache_path: str | None = None

    def __init__(self, function: Callable[..., Any]) -> None:
        self._kernel = f"{function.__module__}.{function.__qualname__}"
        self._stamp = _room_stamp()
        file = function.__code__.co_filename
        is_in_room = self._kernel.startswith(_ROOM) and file == sys.modules[function.__module__].__file__
        self._folders = _folders(Path(file)) if self._stamp and is_in_room else []

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        name, whose = self._name_of(sig, target_context.codegen())
        for folder in self._folders:
            try:
                content = (folder / name).read_bytes()
                digest, body = content[: len(whose)], content[len(whose) :]
                if digest == hashlib.sha256(whose + body).digest():
                    self.cache_path = str(folder)
                    return CompileResult._rebuild(target_context, *pickle.loads(body))
                _log.info("%s is damaged, stale or of another kernel", folder / name)
            except Exception as error:  # no such file, or whatever foreign code can raise while it is unpickled
                _log.info("%s is not in %s: %r", self._kernel, folder, error)
        compilations.begin()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        name, whose = self._name_of(sig, data.codegen)
        assert not data.library.has_dynamic_globals, f"{self._kernel}: its code would hold addresses of this process"
        body, reason = dumps(data._reduce()), OSError("there is no folder for machine code")
        for folder in self._folders:
            partial = folder / f"{name}.tmp.{uuid.uuid4().hex}"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                partial.write_bytes(hashlib.sha256(whose + body).digest() + body)
                os.replace(partial, folder / name)
            except OSError as error:  # disk full, read-only
                reason = error
                with contextlib.suppress(OSError):
                    partial.unlink()
            else:
                self.cache_path = str(folder)
                return
        not_kept(reason)

    def _name_of(self, sig: Any, codegen: Any) -> tuple[str, bytes]:
        """The name of the file, and a digest of all that decides which code belongs there."""
        of = repr((sig, codegen.magic_tuple(), sys.version, numba.__version__))
        whose = hashlib.sha256(repr((self._kernel, self._stamp, of)).encode()).digest()
        return f"{self._kernel.rpartition('._')[2]}-{hashlib.sha256(of.encode()).hexdigest()[:16]}.nbc", whose


def _folders(file: Path) -> list[Path]:
    """Where the code of a kernel file may be kept, the place to look into first, first."""
    own = f"kernels-{hashlib.sha256(str(file.parent).encode()).hexdigest()[:16]}"
    if config.CACHE_DIR and is_writable(Path(config.CACHE_DIR)):
        return [Path(config.CACHE_DIR) / own]
    users = user_cache()
    return [file.parent / "__pycache__", *([] if users is None else [users / own])]


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
        for file in sorted(_kernel_files(files(_ROOM)), key=str):
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
