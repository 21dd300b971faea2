"""Memories as people name them: a directory and the model's tokenizer in, a DraftMemory out, or one line of words."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from zerodraft.lookup.memory.draft_memory import DraftMemory

MAX_TOKENS: Final = 2**30  # a smaller cap would drop texts of a larger memory with the first save


def open_memory(
    directory: str | os.PathLike[str], tokenizer: Any = None, *, max_tokens: int = MAX_TOKENS
) -> DraftMemory:
    """Open a memory that is kept in a directory, or start one there, for a model with this tokenizer.

    Nothing is written before ``memory.save()``. That publishes what was added, and the tokenizer's fingerprint where
    the directory has none; it takes in what others published, so it can be called after every text. If it fails
    (MemoryFileError, OSError) the directory is as it was, and what was added is still in the memory.

    Cost: headers of the files, and ``fingerprint`` (half a second for 150,000 tokens); no text is read.

    Args:
        directory: where the memory is kept.
        tokenizer: of transformers or of tokenizers, or None to check nothing.
        max_tokens: cap of the memory and, from the next save on, of the directory.

    Raises:
        ValueError: no directory, or options out of range.
        TokenizerError: (a ValueError) the memory is another tokenizer's; the message names both.
        MemoryFileError: it is damaged; the message names the command that repairs it.

    >>> import tempfile
    >>> memory = open_memory(tempfile.mkdtemp())
    >>> memory.add([1, 2, 3])
    True
    >>> memory.save()
    """
    from zerodraft.lookup.memory.draft_memory import DraftMemory

    name = None
    if tokenizer is not None:
        from zerodraft.integrations.vocabulary import fingerprint

        name = fingerprint(tokenizer)
    with naming_repair(directory):
        return DraftMemory(max_tokens, directory=directory, tokenizer=name)


@contextlib.contextmanager
def naming_repair(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Say of a damaged memory what mends it, and of a directory that the system refuses what the system says."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{error.filename or os.fspath(directory)}: {error.strerror or error}") from error
    except RuntimeError as error:
        from zerodraft.lookup.memory.manifest import NoMemoryError, TokenizerError
        from zerodraft.lookup.memory.segment_file import MemoryFileError

        if not isinstance(error, MemoryFileError) or isinstance(error, (NoMemoryError, TokenizerError)):
            raise
        command = f"zerodraft memory repair {shlex.quote(os.fspath(directory))}"
        raise MemoryFileError(f"{error}; this drops what is damaged: {command}") from error
