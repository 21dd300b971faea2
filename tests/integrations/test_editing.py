"""edit_text: what is asked of the model, what is taken from its answer, and what is refused."""

from __future__ import annotations

import functools
import warnings
from typing import Any, ClassVar

import pytest
from stand_ins import tiny_llama

import zerodraft
from zerodraft.integrations.pipelines.editing import EditError, edit_text
from zerodraft.integrations.pipelines.settings import Drafting, Sampling

CODE = "def area(width, height):\n    return width * height\n\n\nprint(area(3, 4))\n"
NEW = CODE.replace("width", "breadth")


def test_the_answers_block_is_the_new_file(scripted: Any, tokenizer: Any) -> None:
    result = edit_text(scripted(f"{NEW}````"), tokenizer, CODE, "Rename width to breadth.", language="python")
    assert result.text == NEW
    assert result.answer == f"````python\n{NEW}````"
    assert result.stats.num_emitted_tokens == len(result.token_ids) == len(NEW) + 5
    assert result.stats.num_decode_forwards < len(NEW) / 2


def test_the_old_file_is_the_prediction(scripted: Any, tokenizer: Any) -> None:
    class Spy(zerodraft.Drafter):
        predictions: ClassVar[list[list[int]]] = []

        def begin(self, prompt_ids: Any, prediction_ids: Any = None, namespace: Any = None) -> Any:
            self.predictions.append(list(prediction_ids))
            return super().begin(prompt_ids, prediction_ids, namespace)

    edit_text(scripted(f"{NEW}````"), tokenizer, CODE, "Rename.", drafting=Drafting(drafter=Spy()))
    assert [tokenizer.decode(ids) for ids in Spy.predictions] == [f"{CODE}````<|im_end|>"]


def test_the_instruction_follows_the_code_and_the_fence_is_opened(
    scripted: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = scripted(f"{NEW}````"), []
    monkeypatch.setattr(type(model), "forward", _spy(type(model).forward, seen))
    edit_text(model, tokenizer, CODE, "Rename width.", language="python")
    prompt = tokenizer.decode(seen[0])
    assert prompt.index(CODE) < prompt.index("Rename width.")
    assert prompt.endswith("<|im_start|>assistant\n````python\n")


def _spy(forward: Any, seen: list[list[int]]) -> Any:
    @functools.wraps(forward)
    def spying(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs["input_ids"][0].tolist())
        return forward(self, *args, **kwargs)

    return spying


def test_an_attached_model_stays_attached_and_uses_its_own_drafter(scripted: Any, tokenizer: Any) -> None:
    model = zerodraft.attach(scripted(f"{NEW}````"))
    generate = model.generate
    result = edit_text(model, tokenizer, CODE, "Rename.")
    assert result.text == NEW
    assert model.generate == generate
    assert result.stats is generate.stats


def test_a_model_that_is_not_attached_is_left_as_it_was(scripted: Any, tokenizer: Any) -> None:
    model = scripted(f"{NEW}````")
    edit_text(model, tokenizer, CODE, "Rename.")
    assert "generate" not in vars(model)


def test_talk_after_the_block_is_neither_taken_nor_waited_for(scripted: Any, tokenizer: Any) -> None:
    answer = f"{NEW}````\nI renamed it.\n````\nother\n````"
    result = edit_text(scripted(answer), tokenizer, CODE, "Rename.", compare=True)
    assert result.text == NEW
    assert len(result.token_ids) == len(f"{NEW}````\n")
    assert result.comparison is not None
    assert [result.comparison.verdict(way.name) for way in result.comparison.ways][::2] == ["reference", "identical"]
    assert result.comparison.verdict("HF prompt lookup").startswith("identical")


@pytest.mark.parametrize(
    ("answer", "limit", "message"),
    [
        (f"{NEW}````", len(NEW), f"hit the limit of {len(NEW)} tokens"),
        (NEW, None, "no complete code block"),
        ("Sure, I can do that.", None, "no complete code block"),
        ("", None, "no complete code block"),
        ("\n````", None, "an empty code block"),
        (f"{NEW}`````python", None, "no complete code block"),
    ],
)
def test_what_is_not_an_edited_file_is_refused(
    scripted: Any, tokenizer: Any, answer: str, limit: int | None, message: str
) -> None:
    with pytest.raises(EditError, match=message) as caught:
        edit_text(scripted(answer), tokenizer, CODE, "Rename.", max_new_tokens=limit)
    assert "\n" not in str(caught.value)


def test_a_block_closed_by_the_very_last_token_counts(scripted: Any, tokenizer: Any) -> None:
    result = edit_text(scripted(f"{NEW}````"), tokenizer, CODE, "Rename.", max_new_tokens=len(NEW) + 4)
    assert result.text == NEW


@pytest.mark.parametrize("code", ["", "\n\n", "  \r\n"])
def test_an_empty_file_is_refused_before_any_forward(code: str) -> None:
    with pytest.raises(EditError, match="empty"):
        edit_text(None, None, code, "Rename.")


def test_a_file_too_long_for_the_context_is_refused(tiny_model: Any, tokenizer: Any) -> None:
    with pytest.raises(EditError, match=r"too long.*4096"):
        edit_text(tiny_model, tokenizer, "x = 1\n" * 400, "Rename.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"instruction": " "}, "instruction"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"language": "a b"}, "language"),
    ],
)
def test_arguments_outside_their_range(
    tiny_model: Any, tokenizer: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        edit_text(tiny_model, tokenizer, CODE, **({"instruction": "Rename."} | arguments))


SETTINGS: dict[str, Any] = {
    "no_repeat_ngram_size": 2,
    "min_new_tokens": 500,
    "min_length": 500,
    "suppress_tokens": [90, 91, 92],
    "begin_suppress_tokens": list(range(3, 259)),
    "bad_words_ids": [[95, 96]],
    "sequence_bias": {(97,): -1e6},
    "repetition_penalty": 5.0,
    "exponential_decay_length_penalty": (3, 50.0),
    "forced_eos_token_id": 7,
    "stop_strings": ["return"],
    "max_time": 1e-9,
    "return_dict_in_generate": True,
    "output_scores": True,
    "do_sample": True,
    "temperature": 9.0,
    "top_k": 1,
    "min_p": 0.9,
    "use_cache": False,
}


@pytest.mark.parametrize("is_attached", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_no_setting_of_the_checkpoint_reaches_an_edit(
    scripted: Any, tokenizer: Any, name: str, is_attached: bool
) -> None:
    """Case 38: what a pipeline needs of generate it sets; the rest it neutralizes and names."""
    model = scripted(f"{NEW}````")
    setattr(model.generation_config, name, SETTINGS[name])
    if is_attached:
        zerodraft.attach(model)
    result = edit_text(model, tokenizer, CODE, "Rename.")
    assert result.text == NEW
    assert result.stats.num_decode_forwards < len(NEW) / 2
    ours = {"repetition_penalty", "do_sample", "temperature", "top_k", "use_cache"}
    assert [entry.split("=")[0] for entry in result.left_out] == ([] if name in ours else [name])


@pytest.mark.parametrize("name", SETTINGS)
def test_no_setting_of_the_checkpoint_reaches_a_text_or_a_summary(tokenizer: Any, name: str) -> None:
    texts = []
    for is_set in (False, True):
        model = tiny_llama()
        if is_set:
            setattr(model.generation_config, name, SETTINGS[name])
        texts.append(zerodraft.generate_text(model, tokenizer, "hi", max_new_tokens=8).text)
        texts.append(zerodraft.summarize_text(model, tokenizer, "A text.", max_new_tokens=8).text)
    assert texts[:2] == texts[2:]


def test_a_text_ends_where_the_context_does(tiny_model: Any, tokenizer: Any) -> None:
    prompt = "x = 1\n" * 675
    result = zerodraft.generate_text(tiny_model, tokenizer, prompt, max_new_tokens=200)
    assert result.finish_reason == "context"
    assert result.num_prompt_tokens + len(result.token_ids) == 4096
    assert zerodraft.generate_text(tiny_model, tokenizer, prompt, max_new_tokens=2).finish_reason == "length"
    with pytest.raises(ValueError, match="room in the context of 4096"):
        zerodraft.generate_text(tiny_model, tokenizer, prompt * 2)


def test_an_error_holds_what_there_is(scripted: Any, tokenizer: Any) -> None:
    with pytest.raises(EditError) as caught:
        edit_text(scripted(f"{NEW}````"), tokenizer, CODE, "Rename.", max_new_tokens=30)
    error = caught.value
    assert error.text == "def area(breadth, height):\n"
    assert error.completed == CODE.replace("width, height):", "breadth, height):")
    assert error.diff.startswith("--- a/file\n+++ b/file\n@@ -1,")
    assert "-print" not in error.diff, "what the answer did not come to is not taken to be deleted"
    assert error.answer.startswith("````\ndef area")


def test_options_without_effect_are_said() -> None:
    with pytest.warns(UserWarning, match="top_p and seed without a temperature"):
        Sampling(top_p=0.5, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Sampling(0.5, top_p=0.5, seed=3)


def test_code_with_fences_gets_a_longer_one(scripted: Any, tokenizer: Any) -> None:
    code = "# How to\n\n```python\nprint(1)\n```\n\nand ````text````\n"
    new = code.replace("print(1)", "print(2)")
    result = edit_text(scripted(f"{new}`````"), tokenizer, code, "Print 2.", language="markdown")
    assert result.text == new
    assert result.answer.startswith("`````markdown\n")


@pytest.mark.parametrize("tail", ["", "\n", "\n\n\n"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_and_the_end_of_the_file_are_kept(scripted: Any, tokenizer: Any, end: str, tail: str) -> None:
    old, new = (text.rstrip("\n").replace("\n", end) + tail.replace("\n", end) for text in (CODE, NEW))
    assert edit_text(scripted(f"{NEW}````"), tokenizer, old, "Rename.").text == new


def test_mixed_line_ends_stay_where_the_edit_does_not_reach(scripted: Any, tokenizer: Any) -> None:
    result = edit_text(scripted("a\nB\nc\nd\ne\n````"), tokenizer, "a\r\nb\nc\r\nd\n", "Change.")
    assert result.text == "a\r\nB\nc\r\nd\ne\n"


def test_a_block_opened_twice_is_understood(scripted: Any, tokenizer: Any) -> None:
    for answer in (f"````python\n{NEW}````", f"```python\n{NEW}```", f"```python\n{NEW}```\n````"):
        result = edit_text(scripted(answer), tokenizer, CODE, "Rename.", language="python")
        assert result.text == NEW


def test_greedy_text_is_plain_decodings_text(tiny_model: Any, tokenizer: Any) -> None:
    """A random model writes no block; its answer is still compared, token by token, before it is refused."""
    result = zerodraft.generate_text(tiny_model, tokenizer, CODE * 3, max_new_tokens=60, compare=True)
    assert result.comparison is not None
    assert result.comparison.differences["zerodraft"] is None
    plain = result.comparison["plain"]
    assert result.token_ids == plain.written.token_ids
    assert plain.num_forwards == len(plain.written.token_ids)


@pytest.mark.parametrize("seed", range(5))
def test_seeded_sampling_is_plain_decodings_text(tiny_model: Any, tokenizer: Any, seed: int) -> None:
    result = zerodraft.generate_text(
        tiny_model, tokenizer, CODE * 3, max_new_tokens=40, sampling=Sampling(0.7, 0.9, seed), compare=True
    )
    assert result.comparison is not None
    assert result.comparison.verdict("zerodraft") == "identical"


def test_a_seed_leaves_the_process_generator_alone(tiny_model: Any, tokenizer: Any) -> None:
    import torch

    torch.manual_seed(5)
    before = torch.get_rng_state()
    texts = {
        seed: zerodraft.generate_text(
            tiny_model, tokenizer, "hi", max_new_tokens=20, sampling=Sampling(1.0, seed=seed)
        ).text
        for seed in (1, 2)
    }
    again = zerodraft.generate_text(tiny_model, tokenizer, "hi", max_new_tokens=20, sampling=Sampling(1.0, seed=1)).text
    assert torch.equal(before, torch.get_rng_state())
    assert texts[1] == again != texts[2]
