"""PhraseBook: stock phrases (licence heads, import blocks, JSON skeletons) that are drafted once they have begun."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from zerodraft.lookup._block import MATCH, NUM_ROWS, ORIGIN, PARENT, PHRASE, PRICE, PROB, SOURCE, TOKEN
from zerodraft.lookup.checks import bounds, int_in, shown
from zerodraft.lookup.draft import Draft, IntArray, as_token_ids
from zerodraft.lookup.runtime.whole_file import write_whole

FORMAT: Final = "zerodraft-phrases"
VERSION: Final = 1
MAX_PHRASE_TOKENS: Final = 4096
MAX_BRANCHES: Final = 4  # phrases with the same beginning that are drafted side by side


class PhraseBook:
    """Phrases of token ids; immutable, shared by sessions and threads.

    An Aho-Corasick automaton over the beginnings of all phrases (pyahocorasick, extra ``phrases``) says after every
    token which beginning the text ends with, at a cost that does not depend on the number of phrases. Of phrases that
    begin alike the first given ones are preferred. It is never pickled: what is saved is the list of phrases.

    >>> book = PhraseBook([[1, 2, 3, 4, 5], [1, 2, 3, 9]], min_match=2)
    >>> book.propose([7, 1, 2], max_tokens=8).token_ids.tolist()
    [3, 4, 5]
    """

    def __init__(self, phrases: Iterable[Sequence[int] | IntArray], *, min_match: int = 3) -> None:
        """Build the automaton. Cost: O(tokens²) per phrase, once.

        Args:
            phrases: each of ``min_match + 1`` to 4096 token ids; duplicates are dropped.
            min_match: tokens of a phrase that must have been written before the rest is drafted, at least 1.

        Raises:
            ModuleNotFoundError: pyahocorasick is not installed.
            ValueError: a phrase of another length, bad ids, or min_match out of range.
        """
        min_match = int_in("min_match", min_match, 1, MAX_PHRASE_TOKENS - 1)
        if isinstance(phrases, (str, bytes)) or not isinstance(phrases, Iterable):
            raise ValueError(f"phrases must be sequences of token ids, got {shown(phrases)}")
        self.min_match: Final = min_match
        unique: dict[tuple[int, ...], None] = {}
        for number, phrase in enumerate(phrases):
            ids = as_token_ids(phrase, f"phrase {number}")
            if not min_match < len(ids) <= MAX_PHRASE_TOKENS:
                wanted = f"{min_match + 1} to {MAX_PHRASE_TOKENS} tokens"
                raise ValueError(f"phrase {number} must have {wanted}, got {len(ids)}")
            unique[tuple(ids.tolist())] = None
        self.phrases: Final = tuple(unique)
        self._arrays = [np.array(phrase, np.int32) for phrase in self.phrases]
        self.max_tokens: Final = max(map(len, self.phrases), default=0)
        self._automaton = _build(self.phrases, min_match)

    @classmethod
    def from_texts(cls, tokenizer: Any, texts: Iterable[str], *, min_match: int = 3) -> PhraseBook:
        """Tokenise phrases without special tokens.

        A tokenizer may split a text differently where something stands before it: give a phrase with the space or
        line break that precedes it in real text, or in both forms.

        Args:
            tokenizer: anything with ``encode(text, add_special_tokens=False)`` that returns ids or has ``.ids``.

        Raises:
            ValueError: a text of fewer than ``min_match + 1`` tokens.
        """
        if not callable(getattr(tokenizer, "encode", None)):
            raise ValueError(f"tokenizer must have encode(text, add_special_tokens=False), got {shown(tokenizer)}")
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise ValueError(f"texts must be a sequence of strings, got {shown(texts)}")
        texts = list(texts)
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"texts must be strings, got {shown(texts)}")
        encoded = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        return cls([getattr(ids, "ids", ids) for ids in encoded], min_match=min_match)

    def __len__(self) -> int:
        """Number of phrases."""
        return len(self.phrases)

    def begin(self, context: Sequence[int] | IntArray = ()) -> PhraseCursor:
        """Follow one text, of which ``context`` is already written."""
        cursor = PhraseCursor(self)
        cursor.feed(as_token_ids(context)[-self.max_tokens :] if self.max_tokens else as_token_ids(()))
        return cursor

    def propose(self, context: Sequence[int] | IntArray, max_tokens: int) -> Draft:
        """Draft the rest of the phrase that the context ends in, a chain of source PHRASE.

        Raises:
            ValueError: max_tokens below 0, or bad ids.
        """
        max_tokens, _ = bounds(max_tokens, None)
        match, rests = self.begin(context).match()
        if not rests or not max_tokens:
            return Draft.empty()
        return Draft.from_block(chain_of(rests[0][:max_tokens], match))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the phrases as JSON, complete or not at all."""
        content = {"format": FORMAT, "version": VERSION, "min_match": self.min_match, "phrases": self.phrases}
        write_whole(Path(path), json.dumps(content).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PhraseBook:
        """Read what ``save`` wrote.

        Raises:
            ValueError: not such a file, of another version, or with impossible phrases.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{os.fspath(path)}: not a phrase list: {error}") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != VERSION:
            raise ValueError(f"{os.fspath(path)}: not a phrase list of version {VERSION}")
        phrases = content.get("phrases")
        if not isinstance(phrases, list) or not all(isinstance(phrase, list) for phrase in phrases):
            raise ValueError(f"{os.fspath(path)}: phrases must be lists of token ids")
        return cls(phrases, min_match=content.get("min_match"))  # type: ignore[arg-type]  # checked there


class PhraseCursor:
    """Where one growing text stands in the automaton. Not thread-safe."""

    __slots__ = ("_book", "_found", "_iterator", "_num_fed")

    def __init__(self, book: PhraseBook) -> None:
        self._book = book
        self._iterator = book._automaton.iter(()) if len(book) else None
        self._found: tuple[int, tuple[int, ...]] | None = None
        self._num_fed = 0

    def feed(self, ids: Sequence[int] | IntArray) -> None:
        """Go on by some tokens. Cost: below a microsecond per token."""
        tokens = tuple(ids.tolist() if isinstance(ids, np.ndarray) else ids)
        if self._iterator is None or not tokens:
            return
        self._iterator.set(tokens, False)  # goes on from the state it is in, and counts positions on
        self._num_fed += len(tokens)
        self._found = None
        for end, value in self._iterator:
            if end == self._num_fed - 1:
                self._found = value  # the first is the longest beginning that the text ends with
                break
        else:
            return
        for _ in self._iterator:
            pass  # the iterator must come to the end of these tokens before it is given more

    def match(self) -> tuple[int, list[IntArray]]:
        """The number of tokens of a phrase that the text ends with, and what may follow, likeliest first; (0, [])."""
        if self._found is None:
            return 0, []
        length, numbers = self._found
        return length, [self._book._arrays[number][length:] for number in numbers]


def chain_of(tokens: IntArray, match: int) -> IntArray:
    """A chain of phrase tokens as in ``_block``; node i has probability match / (match + i + 1)."""
    n = len(tokens)
    block = np.empty((NUM_ROWS, n), np.int32)
    block[TOKEN], block[PARENT], block[MATCH] = tokens, np.arange(-1, n - 1), match
    block[ORIGIN], block[SOURCE] = -1, PHRASE
    block[PROB].view(np.float32)[:] = match / (match + np.arange(1, n + 1))
    block[PRICE].view(np.float32)[:] = 1.0
    return block


def _build(phrases: tuple[tuple[int, ...], ...], min_match: int) -> Any:
    """The automaton: every beginning of min_match tokens or more leads to (its length, phrases that begin so)."""
    try:
        import ahocorasick
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "PhraseBook needs pyahocorasick: pip install 'zerodraft[phrases]'", name="ahocorasick"
        ) from None
    automaton = ahocorasick.Automaton(ahocorasick.STORE_ANY, ahocorasick.KEY_SEQUENCE)
    beginnings: dict[tuple[int, ...], list[int]] = {}
    for number, phrase in enumerate(phrases):
        for length in range(min_match, len(phrase)):
            beginnings.setdefault(phrase[:length], []).append(number)
    for beginning, numbers in beginnings.items():
        automaton.add_word(beginning, (len(beginning), tuple(_different(phrases, len(beginning), numbers))))
    if phrases:
        automaton.make_automaton()
    return automaton


def _different(phrases: tuple[tuple[int, ...], ...], length: int, numbers: list[int]) -> list[int]:
    """The first phrases that go on with different tokens after ``length`` tokens."""
    first: dict[int, int] = {}
    for number in numbers:
        first.setdefault(phrases[number][length], number)
    return list(first.values())[:MAX_BRANCHES]
