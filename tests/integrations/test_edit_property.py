"""Two thousand files that a model gives back unchanged, or with one line changed: not one other byte may differ.

The files hold fences, spellings of control tokens, every kind of line end, byte order marks and odd Unicode; the
tokenizers put blanks before a text, drop them, and compose accents. Most answers go straight to where an answer becomes
a file; a share of them is decoded by a scripted model through ``edit_text``.
"""

from __future__ import annotations

import random
import types
from typing import Any

import pytest
from stand_ins import as_text, byte_tokenizer, llama2_style_tokenizer, metaspace_tokenizer, scripted_llama

from zerodraft.integrations.pipelines.call import Written
from zerodraft.integrations.pipelines.editing import Edit, edit_text
from zerodraft.integrations.pipelines.original import Original
from zerodraft.lookup.measure.stats import GenerationStats

NUM_FILES = 2000
NUM_DECODED = 20  # for each tokenizer
TOKENIZERS = [byte_tokenizer, llama2_style_tokenizer, metaspace_tokenizer]
LINES = [
    "", " ", "  x = 1", "\ty = 2 ", "# Title", "- item", "```", "```python", "````", "````md", "~~~", "    ```", "``b`",
    'START = "<|im_start|>"', "<|im_end|>", "<s>x</s>", "</s>", "<unk>", "<|endoftext|> [INST]", "[INST] a", "<<SYS>>",
    "naïve é e\u0301 ﬁ Å", "\u1100\u1161 가", "👩‍👩‍👧 你好", "\ufeff", "a\x0cb", "a\u2028b", "\x85\x0b", "\ufffd\ufffd",
    "def f(x):", "    return x", "    ...", "# rest of the code unchanged", "end", "\x7f\x1b[31m", "\u200b\u00a0x",
]  # fmt: skip
ENDS = ["\n", "\n", "\n", "\r\n", "\r\r\n", "\r"]


def a_file(rng: random.Random) -> str:
    """A text of a few lines, mostly of one kind of line end."""
    main = rng.choice(ENDS)
    lines = [rng.choice(LINES) for _ in range(rng.randrange(1, 14))]
    text = "".join(line + (main if rng.random() < 0.9 else rng.choice(ENDS)) for line in lines)
    text = text.rstrip("\r\n") + main * rng.choice([0, 1, 1, 1, 3])
    return text if text.strip() else f"x{text}"


def changed(text: str, rng: random.Random) -> tuple[list[str], str]:
    """The lines that the model answers with, of which one may be new, and the file that must come of them."""
    original = Original.of(text)
    lines = list(original.lines)
    if rng.random() < 0.7:
        lines[rng.randrange(len(lines))] = "changed <|im_end|> é"
    whole = "".join(line + end for line, end in zip(lines, [*original.ends, original.tail]))
    return lines, whole


def answer_of(lines: list[str], fence: str, rng: random.Random) -> str:
    return "".join(f"{line}\n" for line in lines) + fence + rng.choice(["", "\n"])


@pytest.mark.parametrize("make", TOKENIZERS, ids=lambda make: make.__name__)
def test_no_byte_is_lost(make: Any) -> None:
    tokenizer, rng = make(), random.Random(make.__name__)
    end = tokenizer.eos_token_id
    model = types.SimpleNamespace(
        config=types.SimpleNamespace(get_text_config=lambda: types.SimpleNamespace(max_position_embeddings=1 << 20)),
        generation_config=types.SimpleNamespace(eos_token_id=end),
    )
    for _ in range(-(-NUM_FILES // len(TOKENIZERS))):
        text = a_file(rng)
        if "[/INST]" in text:
            continue
        edit = Edit.of(model, tokenizer, text, "Change it.", language=rng.choice(["", "python", "markdown"]))
        lines, whole = changed(text, rng)
        seen = Original.of("".join(f"{line}\n" for line in lines), tokenizer).seen if rng.random() < 0.5 else lines
        seen = [*seen, *[""] * (len(lines) - len(seen))]
        ids = [*as_text(tokenizer, answer_of(seen, edit.fence, rng)), end]
        result = edit.result(Written(tuple(ids), False, GenerationStats()))
        assert result.text == whole, (text, edit.language)
        data = rng.choice(["", "\ufeff"]) + text
        assert Original.of(data).restore(Original.of(data).lines) == data


@pytest.mark.parametrize("make", TOKENIZERS, ids=lambda make: make.__name__)
def test_no_byte_is_lost_on_the_whole_way(make: Any) -> None:
    tokenizer, rng, num_saved = make(), random.Random(7), 0
    for _ in range(NUM_DECODED):
        text = a_file(rng)
        lines, whole = changed(text, rng)
        fence = Edit.of(scripted_llama(tokenizer, ""), tokenizer, text, "Change it.").fence
        result = edit_text(scripted_llama(tokenizer, answer_of(lines, fence, rng)), tokenizer, text, "Change it.")
        assert result.text == whole, text
        num_saved += result.stats.num_emitted_tokens - result.stats.num_decode_forwards
    assert num_saved > 5 * NUM_DECODED, "drafts must have saved forwards, or nothing was tried"
