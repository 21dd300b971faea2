"""A tiny llama and requests to it, for the check in vLLM: what it should write is known or decided by attention.

Half of its vocabulary writes what random attention says, the other half follows one fixed cycle, so that a prompt with
a misprinted piece of the cycle is corrected while it is copied.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

VOCABULARY, FIRST_OF_CYCLE = 2000, 1000  # ids 3 to 999 write freely, 1000 to 1999 follow the cycle


def make_model(folder: Path) -> None:
    """A llama of two layers with its tokenizer: words t3 to t1999."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config).float().eval()
    of_cycle = torch.arange(VOCABULARY) >= FIRST_OF_CYCLE
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:  # sharp attention: few positions matter, and which ones depends on the text
                parameter.mul_(10.0 if "q_proj" in name or "k_proj" in name else 3.0)
        embedding = torch.randn(VOCABULARY, 128)
        embedding[~of_cycle] *= 0.3  # faint, so that what came before decides what follows
        embedding[:, 0] = torch.where(of_cycle, 5.0, -5.0)  # the two halves keep to themselves
        head = torch.randn(VOCABULARY, 128)
        before = torch.tensor([predecessor(token) for token in range(FIRST_OF_CYCLE, VOCABULARY)])
        head[of_cycle] = embedding[before]
        head[:, 0] = torch.where(of_cycle, 9.0, -9.0)
        model.model.embed_tokens.weight.copy_(embedding)
        model.lm_head.weight.copy_(head)
    model.save_pretrained(folder)
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"t{i}": i for i in range(3, VOCABULARY)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)


def cycle(start: int, length: int) -> list[int]:
    """A piece of the cycle: 1000, 1007, 1014 ... modulo its 1000 tokens."""
    return [FIRST_OF_CYCLE + (7 * (start + i)) % 1000 for i in range(length)]


def predecessor(token: int) -> int:
    return FIRST_OF_CYCLE + (token - FIRST_OF_CYCLE - 7) % 1000


def free(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(3, FIRST_OF_CYCLE) for _ in range(length)]


def batch(prompts: list[list[int]], max_tokens: list[int], ignore_eos: bool = True, **more: Any) -> dict[str, Any]:
    return {"prompts": prompts, "max_tokens": max_tokens, "ignore_eos": ignore_eos, **more}


def concurrent() -> dict[str, Any]:
    """16 requests at once, prompts of 5 to 110 tokens, answers of 20 to 95, decided by attention."""
    rng = random.Random(0)
    return batch([free(rng, 5 + 7 * i) for i in range(16)], [20 + 5 * i for i in range(16)])


def copying() -> dict[str, Any]:
    """24 misprinted texts of 300 tokens, one in 20 wrong; the answer is the text without the misprints."""
    rng = random.Random(1)
    prompts = []
    for number in range(24):
        text = cycle(37 * number, 300)
        for place in rng.sample(range(1, 300), 15):
            text[place] = rng.randrange(FIRST_OF_CYCLE, VOCABULARY)
        prompts.append([*text, 3, cycle(37 * number, 1)[0]])
    return batch(prompts, [290] * 24)


def soak() -> dict[str, Any]:
    """200 requests of all kinds: 3 to 150 tokens of prompt, 1 to 60 of answer, those that end by themselves too."""
    rng = random.Random(2)
    prompts = [
        free(rng, rng.randrange(3, 150)) if rng.random() < 0.5 else cycle(rng.randrange(1000), rng.randrange(3, 150))
        for _ in range(200)
    ]
    return batch(prompts, [rng.randrange(1, 60) for _ in prompts], ignore_eos=False)
