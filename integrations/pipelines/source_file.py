"""A text file that is to be edited: read once, written so that it stays what it was, never if it changed meanwhile."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zerodraft.integrations.pipelines.file_writer import FileError, check_writable, write_file
from zerodraft.integrations.pipelines.line_diff import unified_diff

_BOM: Final = "\ufeff"

LANGUAGES: Final = {
    ".c": "c",
    ".cpp": "cpp",
    ".css": "css",
    ".go": "go",
    ".h": "c",
    ".html": "html",
    ".java": "java",
    ".js": "javascript",
    ".json": "json",
    ".md": "markdown",
    ".py": "python",
    ".pyi": "python",
    ".rb": "ruby",
    ".rs": "rust",
    ".sh": "bash",
    ".sql": "sql",
    ".toml": "toml",
    ".ts": "typescript",
    ".tsx": "tsx",
    ".yaml": "yaml",
    ".yml": "yaml",
}
"""Suffix to the language tag of a code fence."""


STDIN: Final = Path("-")


@dataclass(frozen=True)
class SourceFile:
    """A UTF-8 file as it was read.

    Attributes:
        path: as given; a symbolic link is followed for reading and writing, and stays a link. ``STDIN`` for the
            standard input.
        data: its bytes.
        text: its text, without a byte order mark.
    """

    path: Path
    data: bytes
    text: str

    @classmethod
    def read(cls, path: Path, *, max_bytes: int | None = None) -> SourceFile:
        """Read a file, or the standard input for ``STDIN``.

        Raises:
            FileError: absent, not a regular file, not readable, not UTF-8, or of more than ``max_bytes`` bytes, which
                are then not read.
        """
        if path == STDIN:
            return cls._decoded(path, _read_stdin())
        try:
            if path.exists() and not path.is_file():
                raise FileError(f"{path} is not a regular file")
            size = path.stat().st_size
            if max_bytes is not None and size > max_bytes:
                raise FileError(
                    f"{path} is too large: {size} bytes, and at most {max_bytes} can fit the model's context"
                )
            data = path.read_bytes()
        except (OSError, ValueError) as error:  # a ValueError: a zero byte in the name
            if isinstance(error, FileError):
                raise
            raise FileError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
        return cls._decoded(path, data)

    @classmethod
    def _decoded(cls, path: Path, data: bytes) -> SourceFile:
        try:
            return cls(path, data, data.decode("utf-8").removeprefix(_BOM))
        except UnicodeDecodeError as error:
            name = "the standard input" if path == STDIN else path
            raise FileError(f"{name} is not UTF-8: byte {data[error.start]:#04x} at {error.start}") from None

    @property
    def language(self) -> str:
        """Language tag for a code fence, empty where the suffix says nothing."""
        return LANGUAGES.get(self.path.suffix.lower(), "")

    def encode(self, text: str) -> bytes:
        """Return the bytes of a new text, with a byte order mark if the old one had it."""
        return self._whole(text).encode("utf-8")

    def _whole(self, text: str) -> str:
        return _BOM * self.data.startswith(_BOM.encode()) + text

    def replace(self, text: str) -> None:
        """Make the file hold ``text``, as ``write_file`` does.

        Raises:
            FileError: it is write-protected, was changed or removed since it was read, or cannot be written.
        """
        write_file(self.path, self.encode(text), expected=self.data)

    def check_writable(self) -> None:
        """Raise a FileError if the file is write-protected or gone."""
        if not os.path.exists(self.path):
            raise FileError(f"cannot write {self.path}: it is gone")
        check_writable(self.path)

    def diff(self, text: str, folder: Path | None = None) -> str:
        """Return the unified diff from the old text to ``text``, in the form that patch and git apply take.

        Args:
            text: the new text.
            folder: what the file's name is given from, and where ``patch -p1`` applies the diff: one that holds it.
                ``diff_folder`` of the file by default.
        """
        name = diff_name(self.path, diff_folder([self.path]) if folder is None else folder)
        return unified_diff(self._whole(self.text), self._whole(text), _quoted(f"a/{name}"), _quoted(f"b/{name}"))


def _read_stdin() -> bytes:
    if sys.stdin is None:
        raise FileError("the standard input is closed")
    try:
        return sys.stdin.buffer.read()
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read the standard input: {error}") from None


def diff_folder(paths: list[Path]) -> Path:
    """The nearest folder that holds the current one and all these files; the root if an absolute name is elsewhere."""
    here = os.path.realpath(os.curdir)
    folders = [os.path.dirname(os.path.realpath(path)) for path in paths]
    is_elsewhere = [path.is_absolute() and os.path.commonpath([here, at]) != here for path, at in zip(paths, folders)]
    return Path(Path(here).anchor if any(is_elsewhere) else os.path.commonpath([here, *folders]))


def diff_name(path: Path, folder: Path) -> str:
    """A file's name as seen from a folder above it, without links on the way: diff tools refuse those, and ".."."""
    return Path(os.path.relpath(os.path.realpath(path), folder)).as_posix()


def _quoted(name: str) -> str:
    """A name as git writes it in the head of a diff: in quotes where it holds what would end it, else as it is.

    Behind a name with a blank there is a tab, by which ``patch`` knows where it ends.
    """
    data = os.fsencode(name)
    try:
        is_plain = all(char >= " " and char not in '"\\\x7f' for char in data.decode("utf-8")) and name[-1] != " "
    except UnicodeDecodeError:
        is_plain = False
    if is_plain:
        return f"{name}\t" if " " in name else name
    escapes = {ord('"'): '\\"', ord("\\"): "\\\\", 9: "\\t", 10: "\\n", 13: "\\r"}
    return '"' + "".join(escapes.get(b, chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in data) + '"'
