"""Tiny random models, scripted drafters, and plain generation to compare with. Imports torch only when used."""

from __future__ import annotations

import functools
import importlib.util
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

VOCAB = 97
SIZES = {
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
GPT2 = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def _configs() -> dict[str, Any]:
    import transformers as t

    wide = SIZES | {"num_key_value_heads": 4}
    alternating = ["sliding_attention", "full_attention"]
    return {
        "llama": lambda: t.LlamaConfig(**SIZES),
        "qwen2": lambda: t.Qwen2Config(**SIZES),
        "qwen3": lambda: t.Qwen3Config(**SIZES, head_dim=8),
        "mistral": lambda: t.MistralConfig(**SIZES, sliding_window=8),
        "mixtral": lambda: t.MixtralConfig(**SIZES, sliding_window=8, num_local_experts=4),
        "gemma2": lambda: t.Gemma2Config(**SIZES, head_dim=8, sliding_window=8, layer_types=alternating),
        "gemma3": lambda: t.Gemma3TextConfig(**SIZES, head_dim=8, sliding_window=8, layer_types=alternating),
        "gpt2": lambda: t.GPT2Config(**GPT2),
        "gpt_neox": lambda: t.GPTNeoXConfig(**wide),
        "gptj": lambda: t.GPTJConfig(**GPT2, rotary_dim=4),
        "phi": lambda: t.PhiConfig(**wide),
        "phi3": lambda: t.Phi3Config(**wide, sliding_window=8),
        "opt": lambda: t.OPTConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            ffn_dim=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=512,
            word_embed_proj_dim=32,
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=0,
        ),
        "falcon": lambda: t.FalconConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            alibi=False,
            max_position_embeddings=512,
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=0,
        ),
        "gpt_oss": lambda: t.GptOssConfig(
            **SIZES,
            head_dim=8,
            sliding_window=8,
            layer_types=alternating,
            num_local_experts=4,
            num_experts_per_tok=2,
        ),
    }


MODEL_NAMES = (
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "mixtral",
    "gemma2",
    "gemma3",
    "gpt2",
    "gpt_neox",
    "gptj",
    "phi",
    "phi3",
    "opt",
    "falcon",
    "gpt_oss",
)
EAGER_ONLY = ("gemma2", "gpt_oss")


@functools.cache
def tiny(name: str, attention: str = "sdpa") -> Any:
    """A tiny random model, the same every run; shared, so tests detach what they attach (``ours`` does)."""
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(7)
    config = _configs()[name]()
    config._attn_implementation = "eager" if name in EAGER_ONLY else attention
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # spread the logits, so that text is neither constant nor full of ties
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    return model


@functools.cache
def tiny_seq2seq(name: str) -> Any:
    """A tiny random T5 or BART."""
    import torch
    import transformers as t

    ids = {"vocab_size": VOCAB, "pad_token_id": 0, "eos_token_id": None, "decoder_start_token_id": 2}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    config = {
        "t5": lambda: t.T5Config(**ids, d_model=32, d_ff=64, d_kv=8, num_layers=2, num_heads=4),
        "bart": lambda: t.BartConfig(
            **ids, **heads, d_model=32, encoder_layers=2, decoder_layers=2, max_position_embeddings=64, bos_token_id=1
        ),
    }[name]()
    config.forced_eos_token_id = None
    torch.manual_seed(0)
    model = t.AutoModelForSeq2SeqLM.from_config(config).eval()
    model.generation_config.forced_eos_token_id = None
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)
    return model


OWN_STATE = {  # models that keep a state of their own, by its kind
    "gated delta net": ("qwen3_next", "Qwen3NextForCausalLM"),
    "Mamba-2 hybrid": ("granitemoehybrid", "GraniteMoeHybridForCausalLM"),
    "short convolution": ("lfm2", "Lfm2ForCausalLM"),
}


def tiny_of(family: str, cls: str, *, seed: int = 7, factor: float = 4.0, **odd: Any) -> Any:
    """A tiny random model of any family, as the sweep over the families builds it; shared.

    ``odd``: "own" fields of the configuration and fields of its "parts" that its names do not tell.
    """
    return _tiny_of(family, cls, seed, factor, json.dumps(odd))


@functools.cache
def _tiny_of(family: str, cls: str, seed: int, factor: float, odd: str) -> Any:
    import torch

    torch.set_num_threads(1)
    tiny = bench_module("families_models")
    config = tiny.tiny_config(family, odd=json.loads(odd) or None)
    return tiny.spread(tiny.tiny_model(tiny.Family(family, cls), seed=seed, config=config), factor)


def bench_module(name: str) -> Any:
    """A script of bench/ as a module; what it imports by plain name is found while it is loaded."""
    bench = Path(__file__).resolve().parent.parent / "bench"
    path = next(bench.rglob(f"{name}.py"))
    folders = [str(folder) for folder in (bench, *bench.iterdir()) if folder.is_dir()]
    sys.path[:0] = folders
    try:
        spec = importlib.util.spec_from_file_location(f"bench_{name}", path)
        assert spec is not None and spec.loader is not None  # noqa: PT018
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        del sys.path[: len(folders)]
    return module


def prompt(seed: int = 0, length: int = 12) -> Any:
    """Token ids (1, length) with a repeated part, so that lookups find something."""
    import torch

    rng = random.Random(seed)
    half = [rng.randrange(3, VOCAB) for _ in range(length - length // 3)]
    return torch.tensor([(half + half)[:length]])


def plain(model: Any, ids: Any, seed: int | None = None, **options: Any) -> Any:
    """What the model itself writes: ``generate`` without zerodraft, after seeding."""
    import torch

    if seed is not None:
        torch.manual_seed(seed)
    return type(model).generate(model, ids, **options)


def ours(
    model: Any, ids: Any, drafter: Any = None, seed: int | None = None, settings: Any = None, **options: Any
) -> Any:
    """(output, stats) of the attached model, after seeding; the model is left detached."""
    import torch

    import zerodraft

    zerodraft.attach(model, drafter, **(settings or {}))
    try:
        if seed is not None:
            torch.manual_seed(seed)
        output = model.generate(ids, **options)
        return output, model.generate.stats
    finally:
        zerodraft.detach(model)


class Scripted:
    """A drafter whose rows draft from a script: ``make(position, max_tokens, max_depth)`` returns a Draft."""

    def __init__(self, make: Any) -> None:
        self.make = make
        self.log: list[tuple[Any, Any]] = []

    def begin(self, prompt_ids: Any, prediction_ids: Any = None, namespace: Any = None) -> Any:
        return _ScriptedSession(self, len(prompt_ids))


class _ScriptedSession:
    def __init__(self, drafter: Scripted, position: int) -> None:
        self.drafter, self.position = drafter, position

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Any:
        return self.drafter.make(self.position, max_tokens, max_depth)

    def commit(self, draft: Any, outcome: Any) -> None:
        self.position += len(outcome.new_ids)
        self.drafter.log.append((draft, outcome))

    def finish(self, remember: Any = False) -> None:
        pass


def oracle(text: Any, width: int = 9) -> Scripted:
    """Drafts the text that plain decoding wrote (prompt included): everything is accepted."""
    from zerodraft.lookup.draft import Draft

    text = [int(token) for token in text]
    return Scripted(lambda at, most, deep: Draft.chain(text[at : at + min(width, most, deep)]))


def adversary(text: Any, width: int = 5) -> Scripted:
    """Drafts a right start and then always the wrong token: every draft is rejected somewhere."""
    from zerodraft.lookup.draft import Draft

    text = [int(token) for token in text]

    def make(at: int, most: int, deep: int) -> Any:
        right = text[at : at + at % width]
        wrong = [(token + 1) % VOCAB for token in text[at + at % width : at + width]]
        return Draft.chain((right + wrong)[: min(most, deep)])

    return Scripted(make)


def noise(seed: int = 0, width: int = 6) -> Scripted:
    """Drafts random tokens."""
    from zerodraft.lookup.draft import Draft

    rng = random.Random(seed)
    return Scripted(lambda at, most, deep: Draft.chain([rng.randrange(VOCAB) for _ in range(min(width, most, deep))]))


def silent() -> Scripted:
    """Drafts nothing."""
    from zerodraft.lookup.draft import Draft

    return Scripted(lambda at, most, deep: Draft.empty())


def bushy(text: Any, seed: int = 0, width: int = 5, windows: bool = False) -> Scripted:
    """Drafts trees: the right continuation hidden among random branches, sometimes cut off."""
    from zerodraft.lookup.draft import Draft

    text = [int(token) for token in text]
    rng = random.Random(seed)

    def make(at: int, most: int, deep: int) -> Any:
        ids, parents, verify = [], [], []
        trunk = -1
        for depth in range(min(width, deep, len(text) - at)):
            right = text[at + depth] if rng.random() < 0.9 else (text[at + depth] + 1) % VOCAB
            siblings = {right, *(rng.randrange(VOCAB) for _ in range(rng.randrange(3)))}
            order = rng.sample(sorted(siblings), len(siblings))
            parent = trunk
            for token in order:
                if token == right:
                    trunk = len(ids)
                ids.append(token)
                parents.append(parent)
                verify.append(True)
            if windows and rng.random() < 0.5:
                ids.append(right)
                parents.append(parent)
                verify.append(False)
        count = min(len(ids), most)
        return Draft.tree(ids[:count], np.asarray(parents[:count], np.int32), verify=verify[:count])

    return Scripted(make)


def walk_case(seed: int, rows: int, width: int, vocab: int) -> Any:
    """(scores, token_ids, parents, verify) of trees in which many nodes are what the target picks."""
    import torch

    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, width, vocab, generator=g)
    parents = torch.empty(rows, width - 1, dtype=torch.int32)
    for node in range(width - 1):
        parents[:, node] = torch.randint(-1, max(node, 0), (rows,), generator=g)
    token_ids = torch.randint(vocab, (rows, width - 1), generator=g, dtype=torch.int32)
    picks = scores.argmax(-1)
    follow = torch.rand(rows, width - 1, generator=g) < 0.7
    token_ids = torch.where(follow, picks.gather(1, parents.long() + 1).int(), token_ids)
    verify = torch.rand(rows, width - 1, generator=g) < 0.9
    return scores, token_ids, parents, _verifiable(parents, token_ids, verify)


def _verifiable(parents: Any, token_ids: Any, verify: Any) -> Any:
    """Only one of equal siblings, and only nodes whose ancestors are verified, may be verified."""
    may = verify.clone()
    for row in range(parents.shape[0]):
        seen = set()
        for node, (up, token) in enumerate(zip(parents[row].tolist(), token_ids[row].tolist())):
            may[row, node] &= (up, token) not in seen and (up < 0 or bool(may[row, up]))
            if may[row, node]:
                seen.add((up, token))
    return may
