"""The way back from an answer to the file: what was left alone comes back as it was, whatever its bytes are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_ins import byte_tokenizer, llama2_style_tokenizer, metaspace_tokenizer

from zerodraft.integrations.pipelines.losses import has_shrunk, placeholder, remarks
from zerodraft.integrations.pipelines.original import Original
from zerodraft.integrations.pipelines.text_ids import TextError

PIECES = ["a", "b", " ", "\r", "\n", "\r\n", "\n\n", "\x0c", "\u2028", "\t", "é", "e\u0301", "\ufffd", "字"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=16).map("".join).filter(str.strip)


@given(TEXTS)
def test_an_unchanged_text_comes_back(text: str) -> None:
    original = Original.of(text)
    assert original.restore(original.lines) == text
    assert original.source.rstrip("\n").split("\n") == original.lines


@given(TEXTS, st.data())
def test_one_changed_line_changes_no_other_byte(text: str, data: st.DataObject) -> None:
    original = Original.of(text)
    at = data.draw(st.integers(0, len(original.lines) - 1))
    new = [*original.lines[:at], "new", *original.lines[at + 1 :]]
    ends = [*original.ends, original.tail]
    assert original.restore(new) == "".join(line + end for line, end in zip(new, ends))


def test_further_lines_get_the_commonest_end() -> None:
    assert Original.of("a\r\nb\nc\r\nd\n").restore(["a", "B", "c", "d", "e"]) == "a\r\nB\nc\r\nd\ne\n"
    assert Original.of("a\r\nb").restore(["a", "x", "b"]) == "a\r\nx\r\nb"
    assert Original.of("a\rb\r").restore(["a", "x", "b"]) == "a\rx\rb\r"


@pytest.mark.parametrize("make", [byte_tokenizer, llama2_style_tokenizer, metaspace_tokenizer])
def test_lines_that_a_tokenizer_changes_are_put_back(make: Any) -> None:
    text = "  first\ne\u0301 = 1\nx = 2\n"
    original = Original.of(text, make())
    assert original.restore(original.seen) == text
    new = [*original.seen[:2], "x = 3"]
    assert original.restore(new) == "  first\ne\u0301 = 1\nx = 3\n"


def _lossy() -> Any:
    """Knows no letter outside ASCII, and has no bytes to spell one."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    letters = ["<unk>", *map(chr, range(32, 127)), "\n"]
    inner = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, [], unk_token="<unk>"))
    inner.decoder = decoders.Fuse()
    inner.normalizer = normalizers.Replace("\t", " ")
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")


def test_a_line_that_is_lost_is_kept_or_the_edit_of_it_is_refused() -> None:
    original = Original.of("s = '字'\nx = 1\n", _lossy())
    assert original.seen[0] == "s = '<unk>'"
    assert original.restore(["s = '<unk>'", "x = 2"]) == "s = '字'\nx = 2\n"
    assert original.restore(["x = 1"]) == "x = 1\n", "a line may go"
    with pytest.raises(TextError, match="line 1, which this model's tokenizer cannot carry"):
        original.restore(["t = '<unk>'", "x = 1"])


def test_a_tokenizer_without_line_breaks_is_refused() -> None:
    from tokenizers import normalizers

    tokenizer = _lossy()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\n", " ")
    with pytest.raises(TextError, match="line breaks"):
        Original.of("a\nb\n", tokenizer)


def test_an_answer_that_broke_off_goes_on_as_the_old_text() -> None:
    original = Original.of("a\nb\nc\nd\n")
    for new, whole in [
        (["a", "B"], ["a", "B", "c", "d"]),
        (["a"], ["a", "b", "c", "d"]),
        (["X"], ["X", "b", "c", "d"]),
        (["a", "c"], ["a", "c", "d"]),
        ([], ["a", "b", "c", "d"]),
    ]:
        assert original.completed(new) == whole


PLACEHOLDERS = [
    "# rest of the code unchanged",
    "# ... rest of the code ...",
    "...",
    "    ...",
    "// ... existing code ...",
    "/* unchanged */",
    "<!-- rest of the document -->",
    "[rest of the code unchanged]",
    "# The rest of the file stays the same.",
    "-- remaining queries",
    "{/* ... */}",
    "…",
    "# Existing imports",
    "The rest of the file is unchanged.",
    "# omitted for brevity",
    "<snip>",
]
LINES_OF_CODE = [
    "# TODO: keep this in sync",
    "x = 1  # ...",
    "print('...')",
    "def f(): ...",
    "# Remaining balance of the account",
    "[...spread, x]",
    "(...args) => f(...args)",
    "...props,",
    "rest = other + remaining",
    "",
]
OLD = [f"line {i}" for i in range(8)]


@pytest.mark.parametrize("line", PLACEHOLDERS)
def test_a_line_that_stands_for_code_is_found(line: str) -> None:
    assert placeholder(OLD, [OLD[0], line, OLD[-1]]) == (2, line.strip())
    assert placeholder([*OLD, line], [OLD[0], line]) is None, "the old file has it, too"
    assert placeholder(OLD, [*OLD, line]) is None, "it stands for nothing"


@pytest.mark.parametrize("line", LINES_OF_CODE)
def test_code_is_no_placeholder(line: str) -> None:
    assert placeholder(OLD, [OLD[0], line, OLD[-1]]) is None


def test_a_new_body_of_three_dots_is_a_statement() -> None:
    assert (
        placeholder(["class A:", "    x = 1"], ["class A(Protocol):", "    def f(self) -> int:", "        ..."]) is None
    )


@pytest.mark.parametrize(
    ("instruction", "is_asked"),
    [
        ("Rename x to y.", False),
        ("Rename `remove` to `drop`.", False),
        ("Rename remove_item to delete_item.", False),
        ("Call list.remove() first.", False),
        ("Replace tabs.", False),
        ("Add a docstring.", False),
        ("Remove all but the first function.", True),
        ("Keep only the imports.", True),
        ("Shorten this.", True),
        ("Get rid of the tests.", True),
    ],
)
def test_a_text_may_shrink_only_where_that_is_asked_for(instruction: str, is_asked: bool) -> None:
    assert has_shrunk(OLD, OLD[:3], instruction) != is_asked
    assert not has_shrunk(OLD, OLD[:5], instruction)
    assert not has_shrunk(OLD[:3], OLD[:1], instruction), "two lines are soon gone"


def test_lines_that_went_unasked_are_named() -> None:
    old = ["import os", "A = 1", "B = 2", "C = 3", "def f():", "    return os", "x = f()"]
    new = ["import os", "def g():", "    return os", "x = g()", "# a", "# b", "# c", "# d"]
    assert list(remarks(old, new, "Rename f to g.", "")) == [
        "3 lines are gone that the instruction does not speak of: 2-4"
    ]
    assert list(remarks(old, new, "Rename f to g, remove the constants.", "")) == []
    moved = ["import os", "def g():", "    return os", "x = g()", "A = 1", "B = 2", "C = 3"]
    assert list(remarks(old, moved, "Rename f to g.", "")) == []


def test_python_that_does_not_parse_any_more_is_said() -> None:
    said = "the file was valid Python before and is not any more"
    assert list(remarks(["x = 1"], ["x = ("], "Change.", "python")) == [said]
    assert list(remarks(["x = ("], ["x = [("], "Change.", "python")) == []
    assert list(remarks(["x = 1"], ["x = ("], "Change.", "")) == []
    assert list(remarks(["x = 1"], ["x = " + "(" * 5000], "Change.", "python")) == [said]
