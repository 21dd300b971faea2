"""A tiny model and tokenizer on disk, and one that answers from a script: what the command line is tested with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stand_ins import END, SPECIAL, byte_tokenizer

CONTEXT = 4096


def tiny_llama(cls: Any = None, *, seed: int = 0, tokenizer: Any = None) -> Any:
    """A random llama of two layers for ``byte_tokenizer``, or for another tokenizer."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=len(SPECIAL) + 256 if tokenizer is None else len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=END if tokenizer is None else tokenizer.eos_token_id,
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    return (cls or transformers.LlamaForCausalLM)(config).eval()


def as_text(tokenizer: Any, text: str) -> list[int]:
    """What a model writes that means this text: no control tokens, and no blank put before it."""
    ids = [tokenizer.encode(t, add_special_tokens=False, split_special_tokens=True) for t in ("\n", f"\n{text}")]
    return ids[1][len(ids[0]) :]


def scripted_llama(tokenizer: Any, answer: str) -> Any:
    """A llama that answers any prompt with ``answer``, as text, and the end, however wide its forwards are.

    What comes next depends on the position alone; the answer begins behind the first forward's tokens, or behind the
    opening fence, the second line after the last ``<|im_start|>``: prompt lookup drafts in the first forward already.
    """
    import torch
    import transformers

    script = [*as_text(tokenizer, answer), tokenizer.eos_token_id]

    class ScriptedLlama(transformers.LlamaForCausalLM):
        start: int | None = None

        def forward(self, input_ids: Any = None, position_ids: Any = None, logits_to_keep: Any = 0, **rest: Any) -> Any:
            out = super().forward(input_ids=input_ids, position_ids=position_ids, logits_to_keep=logits_to_keep, **rest)
            places = position_ids[0] if position_ids is not None else torch.arange(input_ids.shape[1])
            if int(places[0]) == 0:
                self.start = _answer_start(tokenizer, input_ids[0].tolist())
            assert self.start is not None
            kept = places[logits_to_keep] if torch.is_tensor(logits_to_keep) else places[-logits_to_keep or None :]
            for row, place in enumerate(kept.tolist()):
                at = place + 1 - self.start
                out.logits[0, row, script[at] if 0 <= at < len(script) else tokenizer.eos_token_id] += 1e4
            return out

    return tiny_llama(ScriptedLlama, tokenizer=tokenizer)


def _answer_start(tokenizer: Any, ids: list[int]) -> int:
    turn = tokenizer.convert_tokens_to_ids(SPECIAL[1])
    if turn is None or turn == tokenizer.unk_token_id or turn not in ids:
        return len(ids)
    (newline,) = tokenizer.encode("\n", add_special_tokens=False)
    last = len(ids) - 1 - ids[::-1].index(turn)
    return ids.index(newline, ids.index(newline, last) + 1) + 1


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return byte_tokenizer()


@pytest.fixture(scope="session")
def tiny_model() -> Any:
    return tiny_llama()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any, tiny_model: Any) -> Path:
    """The tiny model and its tokenizer, saved as a user would have them."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    tiny_model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def scripted(tokenizer: Any) -> Any:
    """``scripted(answer)`` is a model that gives that answer."""
    return lambda answer: scripted_llama(tokenizer, answer)
