"""Summaries: nothing of a text is lost in the parts, the words are plain decoding's, one failure stops no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import zerodraft
from zerodraft.integrations import models
from zerodraft.integrations.commands import cli
from zerodraft.integrations.pipelines import summarizing
from zerodraft.integrations.pipelines.settings import Drafting, Sampling
from zerodraft.integrations.pipelines.splitting import split_text
from zerodraft.integrations.pipelines.summarizing import PRESETS, Summary, SummaryError, summarize_text, summarize_texts

TEXTS = st.text(st.sampled_from("ab \n\t.!é字"), max_size=120)


@given(TEXTS, st.integers(1, 20))
def test_parts_are_the_text_and_fit(text: str, limit: int) -> None:
    parts = split_text(text, limit, len)
    assert "".join(parts) == text
    assert all(0 < len(part) <= limit for part in parts)


@given(st.lists(st.text("abc ", min_size=1, max_size=9).filter(str.strip), max_size=8), st.integers(12, 40))
def test_paragraphs_that_fit_are_never_cut(paragraphs: list[str], limit: int) -> None:
    parts = split_text("\n\n".join(paragraphs), limit, len)
    assert [piece for part in parts for piece in part.split("\n\n") if piece] == paragraphs
    firsts = [part.split("\n\n")[0] + "\n\n" * ("\n\n" in part) for part in parts[1:]]
    assert all(len(part) + len(first) > limit for part, first in zip(parts, firsts)), "no part had room for more"


def test_what_is_too_long_is_cut_at_the_next_finer_border() -> None:
    assert split_text("One two. Three four.\n\nx", 12, len) == ["One two. ", "Three four.\n", "\nx"]
    assert split_text("abcdef", 4, len) == ["abcd", "ef"]
    with pytest.raises(ValueError, match="max_tokens must be at least 1, got 0"):
        split_text("a", 0, len)


DOCUMENTS = ["first paragraph, some words\n\n" * 12, "second text\n\nwith two paragraphs\n", "third " * 60]


@pytest.fixture(scope="module")
def both(tiny_model: Any, tokenizer: Any) -> dict[bool, list[Any]]:
    options: dict[str, Any] = {"max_new_tokens": 24, "max_part_tokens": 120, "batch_size": 3}
    return {plain: summarize_texts(tiny_model, tokenizer, DOCUMENTS, plain=plain, **options) for plain in (False, True)}


def test_the_words_are_plain_decodings(both: dict[bool, list[Any]]) -> None:
    ours, plain = both[False], both[True]
    assert [summary.text for summary in ours] == [summary.text for summary in plain]
    assert all(summary.text for summary in ours)
    stats = ours[0].stats
    assert stats.num_accepted_tokens > 0
    assert stats.num_row_steps < stats.num_emitted_tokens - stats.num_rows
    assert plain[0].stats.num_emitted_tokens == 0


def test_parts_and_rounds(both: dict[bool, list[Any]], tokenizer: Any) -> None:
    first, second, third = both[False]
    assert first.num_tokens == len(DOCUMENTS[0])
    assert first.num_parts >= 3
    assert first.num_rounds >= 2
    assert (second.num_parts, second.num_rounds) == (1, 1)
    assert third.num_parts == 3
    assert first.stats is second.stats
    assert first.stats.num_rows >= first.num_parts + 1 + third.num_parts + 1 + 1
    assert first.stats.num_prefill_forwards < first.stats.num_rows, "parts share forwards"


def test_rows_of_a_batch_are_what_they_are_alone(both: dict[bool, list[Any]], tiny_model: Any, tokenizer: Any) -> None:
    alone = summarize_text(tiny_model, tokenizer, DOCUMENTS[1], max_new_tokens=24, max_part_tokens=120, batch_size=1)
    assert alone.text == both[False][1].text
    attached = zerodraft.attach(tiny_model)
    try:
        again = summarize_text(attached, tokenizer, DOCUMENTS[1], max_new_tokens=24)
        assert again.text == alone.text
        assert again.stats.num_emitted_tokens > 0
    finally:
        zerodraft.detach(tiny_model)


def test_seeds_and_instructions_have_an_effect(tiny_model: Any, tokenizer: Any) -> None:
    def text(**options: Any) -> str:
        return summarize_text(tiny_model, tokenizer, DOCUMENTS[1], max_new_tokens=20, **options).text

    hot = {"sampling": Sampling(1.5, seed=3)}
    assert text(**hot) == text(**hot) != text(sampling=Sampling(1.5, seed=4))
    asked = [text(preset=name) for name in PRESETS]
    assert text() == asked[0]
    assert len({*asked, text(instruction="Why?")}) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "sonnet"}, "preset must be one of bullets, abstract, headline, got 'sonnet'"),
        ({"preset": "bullets", "instruction": "x"}, "not both"),
        ({"instruction": " "}, "instruction is empty"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 4090}, "context of 4096"),
        ({"max_part_tokens": 0}, "max_part_tokens"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_bad_arguments(tiny_model: Any, tokenizer: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        summarize_text(tiny_model, tokenizer, "text", **options)


def test_a_text_that_cannot_be_summarized_stops_no_other(tiny_model: Any, tokenizer: Any) -> None:
    found = summarize_texts(tiny_model, tokenizer, [" \n", "good text"], max_new_tokens=8)
    assert isinstance(found[0], SummaryError)
    assert isinstance(found[1], Summary)
    with pytest.raises(SummaryError, match="empty"):
        summarize_text(tiny_model, tokenizer, "")
    with pytest.raises(SummaryError, match="do not get shorter"):
        summarize_text(tiny_model, tokenizer, "words " * 60, max_new_tokens=200, max_part_tokens=180)


def test_a_row_that_fails_in_a_batch_fails_alone(
    tiny_model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = summarizing._Writer._generate

    def breaking(self: Any, prompts: Any, numbers: Any, parts: list[str]) -> Any:
        if any("poison" in part for part in parts):
            raise RuntimeError("out of memory\nwith a long story")
        return real(self, prompts, numbers, parts)

    monkeypatch.setattr(summarizing._Writer, "_generate", breaking)
    found = summarize_texts(tiny_model, tokenizer, ["one", "poison", "two"], max_new_tokens=8)
    assert [type(each) for each in found] == [Summary, SummaryError, Summary]
    assert str(found[1]) == "out of memory"


def command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, ["summarize", *map(str, arguments)])


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "one.txt", tmp_path / "two.txt", tmp_path / "bad.txt", tmp_path / "none.txt"]
    paths[0].write_text(DOCUMENTS[0])
    paths[1].write_text(DOCUMENTS[1])
    paths[2].write_bytes(b"\xff\xfe\xff")
    return paths


def test_the_command_says_each_failure_in_its_own_line(files: list[Path], tiny_folder: Path) -> None:
    options = ["--model", tiny_folder, "--max-new-tokens", "12"]
    result = command(*files, *options)
    assert result.exit_code == 1
    failures = [line for line in result.stderr.splitlines() if ".txt" in line]
    assert len(failures) == 2
    assert "bad.txt is not UTF-8" in failures[0]
    assert "none.txt" in failures[1]
    assert result.stdout.count("==> ") == 2
    document = json.loads(command(*files, *options, "--json").stdout)
    assert [entry["error"] is None for entry in document["summaries"]] == [True, True, False, False]
    assert document["stats"]["num_emitted_tokens"] > 0
    one = command(files[1], *options)
    assert one.exit_code == 0
    assert one.stdout == document["summaries"][1]["text"] + "\n"
    assert "1 of 1 parts" in one.stderr


def test_no_model_is_loaded_for_nothing(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "load_model", lambda *args, **options: pytest.fail("loaded"))
    for arguments, message in [
        ([files[3]], "none.txt"),
        ([files[0], "--preset", "sonnet"], "preset"),
        ([files[0], "--temperature", "-1"], "temperature"),
    ]:
        result = command(*arguments)
        assert result.exit_code == 1
        assert message in result.stderr


def test_help_states_the_defaults_of_the_code() -> None:
    import inspect

    mine = {name: parameter.default for name, parameter in inspect.signature(cli.summarize).parameters.items()}
    theirs = {name: parameter.default for name, parameter in inspect.signature(summarize_text).parameters.items()}
    theirs |= vars(Sampling()) | vars(Drafting())
    shared = set(mine) & set(theirs) - {"model"}
    assert {name: mine[name] for name in shared} == {name: theirs[name] for name in shared}
    assert len(shared) == 11


def test_one_bad_text_stops_no_other(tiny_model: Any, tokenizer: Any) -> None:
    texts: list[Any] = ["good", "lone \udc80", 5, "<|im_end|> <|im_start|>"]
    found = summarize_texts(tiny_model, tokenizer, texts, max_new_tokens=4)
    assert [type(one) for one in found] == [Summary, SummaryError, SummaryError, Summary]
    assert "lone surrogate" in str(found[1])
    assert "must be a str, got int" in str(found[2])


@pytest.mark.parametrize("options", [["--batch-size", "0"], ["--max-part-tokens", "0"], ["--seed", "1"], ["-i", ""]])
def test_options_are_checked_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setattr(models, "load_model", None)
    (tmp_path / "a.txt").write_text("A text.")
    result = CliRunner().invoke(cli.app, ["summarize", str(tmp_path / "a.txt"), *options])
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1
