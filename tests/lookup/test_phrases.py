"""PhraseBook against the oracle, fed in pieces of any size (cases 4, 6)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import reference.phrases
from hypothesis import given
from hypothesis import strategies as st

from zerodraft.lookup.draft import PHRASE
from zerodraft.lookup.sources.phrases import PhraseBook

phrase_lists = st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=8), max_size=8)
pieces = st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=8)


@given(phrase_lists, pieces, st.integers(1, 2))
def test_a_cursor_finds_what_the_oracle_finds(phrases, parts, min_match):
    book = PhraseBook(phrases, min_match=min_match)
    cursor, text = book.begin(), []
    unique = list(dict.fromkeys(map(tuple, phrases)))
    assert book.phrases == tuple(unique)
    for part in parts:
        cursor.feed(part)
        text += part
        if not part:
            continue
        match, rests = cursor.match()
        assert (match, [rest.tolist() for rest in rests]) == reference.phrases.phrase_match(phrases, text, min_match)
        assert book.begin(text).match()[0] == match
        draft = book.propose(text, 4)
        draft.check()
        assert draft.token_ids.tolist() == (rests[0].tolist()[:4] if rests else [])
        assert set(draft.source.tolist()) <= {PHRASE}


def test_large_ids_are_kept_exactly():
    ids = [0, 65535, 65536, 151935, 2**31 - 1]
    assert PhraseBook([ids]).propose(ids[:3], 9).token_ids.tolist() == ids[3:]


@pytest.mark.parametrize("bad", [[1, -1, 2, 3], [1, 2, 3, 2**31], [1.5, 2, 3, 4], [[1, 2]], [1, 2, 3], []])
def test_bad_phrases_are_named(bad):
    with pytest.raises(ValueError, match="phrase 1"):
        PhraseBook([[1, 2, 3, 4], bad])


@pytest.mark.parametrize("bad", [0, -1, 4096, 1.5, True, None])
def test_an_impossible_minimum_is_named(bad):
    with pytest.raises(ValueError, match="min_match"):
        PhraseBook([], min_match=bad)


def test_the_minimum_has_an_effect():
    assert len(PhraseBook([[1, 2, 3, 4]], min_match=2).propose([1, 2], 9)) == 2
    assert len(PhraseBook([[1, 2, 3, 4]], min_match=3).propose([1, 2], 9)) == 0


def test_an_empty_book_drafts_nothing():
    assert len(PhraseBook([]).propose([1, 2, 3], 9)) == 0


def test_saved_as_a_plain_list(tmp_path):
    book = PhraseBook([[1, 2, 3, 4], [5, 6, 7, 2**31 - 1]], min_match=2)
    book.save(tmp_path / "book.json")
    assert json.loads((tmp_path / "book.json").read_text())["phrases"] == [[1, 2, 3, 4], [5, 6, 7, 2**31 - 1]]
    again = PhraseBook.load(tmp_path / "book.json")
    assert (again.phrases, again.min_match) == (book.phrases, book.min_match)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "\x80",
        '{"format": "zerodraft-phrases", "version": 2, "min_match": 3, "phrases": []}',
        '{"format": "zerodraft-phrases", "version": 1, "min_match": 3, "phrases": {"a": 1}}',
        '{"format": "zerodraft-phrases", "version": 1, "phrases": []}',
        '{"format": "zerodraft-phrases", "version": 1, "min_match": 3, "phrases": [[1, 2, 3, -4]]}',
        "[" * 100_000,
    ],
)
def test_a_foreign_file_is_refused(tmp_path, content):
    path = tmp_path / "book.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ValueError):
        PhraseBook.load(path)


def test_from_texts_takes_both_kinds_of_tokenizers():
    class Lists:
        def encode(self, text, add_special_tokens):
            assert not add_special_tokens
            return [ord(c) for c in text]

    class Encodings(Lists):
        def encode(self, text, add_special_tokens):
            return type("Encoding", (), {"ids": super().encode(text, add_special_tokens)})

    for tokenizer in (Lists(), Encodings()):
        book = PhraseBook.from_texts(tokenizer, ["Copyright", "License"])
        assert "".join(map(chr, book.propose([ord(c) for c in "a Lic"], 9).token_ids)) == "ense"


def test_a_missing_package_is_named():
    code = (
        "import sys; sys.modules['ahocorasick'] = None\n"
        "from zerodraft.lookup.sources.phrases import PhraseBook\n"
        "try: PhraseBook([[1, 2, 3, 4]])\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "zerodraft[phrases]" in result.stdout
