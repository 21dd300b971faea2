"""Correctness on the device at hand: the same text and generator state as plain generation, and twins that agree."""

from __future__ import annotations

import random
from typing import Any

import torch

VOCAB = 97
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def tiny_models(device: str) -> dict[str, Any]:
    """Random fp32 models of three kinds, their logits spread so that text is neither constant nor full of ties."""
    import transformers as t

    configs = {
        "llama": t.LlamaConfig(**_SIZES),
        "mistral, window 8": t.MistralConfig(**_SIZES, sliding_window=8),
        "gpt2": t.GPT2Config(
            vocab_size=VOCAB,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=512,
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=0,
        ),
    }
    models = {}
    for name, config in configs.items():
        torch.manual_seed(7)
        model = t.AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(4.0)
        models[name] = model.to(device)
    return models


def same_as_plain(
    device: str, num_seeds: int, num_tokens: int, compile: str = "off", names: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """One row per model (all, or those named) and way of picking: of how many seeds text and state are plain's."""
    import zerodraft

    ways = {
        "greedy": {"do_sample": False},
        "sampled": {"do_sample": True, "top_k": 0},
        "sampled, top-k, top-p": {"do_sample": True, "top_k": 20, "top_p": 0.9},
        "greedy, repetition penalty": {"do_sample": False, "repetition_penalty": 1.2},
    }
    free = zerodraft.CostCurve([(1, 1.0), (2, 1.0001)])  # nodes cost next to nothing, so that much is drafted
    policy = zerodraft.DraftPolicy(free, max_draft_tokens=31 if compile == "off" else 7)
    rows = []
    for name, model in tiny_models(device).items():
        if names and name not in names:
            continue
        for way, options in ways.items():
            seeds = range(num_seeds)
            texts = states = forwards = 0
            for seed in seeds:
                ids = _prompt(seed).to(device)
                torch.manual_seed(seed)
                plain = model.generate(ids, max_new_tokens=num_tokens, **options)
                state = _state(device)
                zerodraft.attach(model, policy=policy, compile=compile)
                torch.manual_seed(seed)
                ours = model.generate(ids, max_new_tokens=num_tokens, **options)
                forwards += model.generate.stats.num_decode_forwards
                zerodraft.detach(model)
                texts += int(torch.equal(plain, ours))
                states += int(torch.equal(state, _state(device)))
            rows.append(
                {
                    "model": name,
                    "way": way,
                    "compile": compile,
                    "n": len(seeds),
                    "identical": texts,
                    "same_generator_state": states,
                    "forwards": forwards,
                    "tokens": num_tokens * len(seeds),
                }
            )
    return rows


def _prompt(seed: int) -> torch.Tensor:
    rng = random.Random(seed)
    half = [rng.randrange(3, VOCAB) for _ in range(8)]
    return torch.tensor([half + half[:4]])


def _state(device: str) -> torch.Tensor:
    return torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()


def twins_agree(device: str, num_cases: int) -> list[dict[str, Any]]:
    """How many random cases give the same on the device (Triton there) as the torch functions give on the CPU."""
    from zerodraft.kernels.kv_cache import RaggedCache
    from zerodraft.kernels.verify import pick_and_walk

    counts = {"argmax": 0, "sampled": 0, "cache": 0}
    for case in range(num_cases):
        g = torch.Generator().manual_seed(case)
        rows, width, vocab = 1 + case % 4, 1 + case % 33, (50, 1000, 32_003)[case % 3]
        scores, *tree = _walk_case(g, rows, width, vocab)
        there = [given.to(device) for given in (scores, *tree)]
        counts["argmax"] += pick_and_walk(scores, *tree) == pick_and_walk(*there)
        noise = torch.empty(rows, width, vocab).exponential_(generator=g)
        counts["sampled"] += pick_and_walk(scores, *tree, noise) == pick_and_walk(*there, noise.to(device))
        states = torch.randn(rows, 2, width, 64, generator=g)
        places = [sorted(random.Random(case + row).sample(range(width), 1 + width // 2)) for row in range(rows)]
        caches = []
        for where in ("cpu", device):
            cache = RaggedCache(rows)
            for _ in range(2):
                cache.update(states.to(where), -states.to(where), 0)
                cache.keep_all(places)
            caches.append(cache.layers[0].keys[:, :, : min(cache.lengths)].cpu())
        counts["cache"] += torch.equal(*caches)
    return [{"twin": name, "n": num_cases, "equal": count} for name, count in counts.items()]


def _walk_case(g: torch.Generator, rows: int, width: int, vocab: int) -> tuple[torch.Tensor, ...]:
    """Scores and chains of which the target picks a part."""
    scores = torch.randn(rows, width, vocab, generator=g)
    parents = (torch.arange(width - 1, dtype=torch.int32) - 1).repeat(rows, 1)
    right = scores.argmax(-1)[:, : width - 1].int()
    token_ids = torch.where(torch.rand(rows, width - 1, generator=g) < 0.8, right, 0)
    return scores, token_ids, parents, torch.ones(rows, width - 1, dtype=torch.bool)
