"""What the loop costs beside the model: time per token with an empty drafter against plain ``generate``.

    python bench overhead [--model qwen] [--rounds 15]

Interleaved pairs; median ratio and interval. Writes bench/results/overhead.csv. Without ``--model`` a tiny random llama
only, whose forward is nearly all Python: the hardest case. With it also the real model, and its time outside forwards.
"""

from __future__ import annotations

import argparse
from typing import Any

import measure
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import zerodraft
from zerodraft.lookup.draft import Draft


class Silent:
    """A drafter that never drafts: what is left is the loop."""

    def begin(self, prompt_ids: Any, prediction_ids: Any = None, namespace: Any = None) -> Silent:
        return self

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Draft:
        return Draft.empty()

    def commit(self, draft: Draft, outcome: Any) -> None:
        pass

    def finish(self, remember: Any = False) -> None:
        pass


class Script(Silent):
    """A drafter that knows the text: what is left per token is the walk."""

    def __init__(self, text: list[int], width: int) -> None:
        self.text, self.width = text, width

    def begin(self, prompt_ids: Any, prediction_ids: Any = None, namespace: Any = None) -> Script:
        self.at = len(prompt_ids)
        return self

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Draft:
        return Draft.chain(self.text[self.at : self.at + min(self.width, max_tokens, max_depth or max_tokens)])

    def commit(self, draft: Draft, outcome: Any) -> None:
        self.at += len(outcome.new_ids)


def tiny() -> LlamaForCausalLM:
    """2 layers of 64: a forward of well under a millisecond."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def compare(
    name: str, model: Any, ids: torch.Tensor, num_tokens: int, rounds: int, **options: Any
) -> list[dict[str, Any]]:
    """Time plain against the silent drafter and a drafter that is always right; one row each."""
    options = {"max_new_tokens": num_tokens, "min_new_tokens": num_tokens, "do_sample": False, **options}

    def plain() -> Any:
        return type(model).generate(model, ids, **options)

    text = plain()[0].tolist()
    drafters = {"silent": Silent(), "always right, 15": Script(text, 15)}
    outside: dict[str, list[float]] = {key: [] for key in drafters}

    def run(key: str) -> None:
        zerodraft.attach(model, drafters[key])
        assert model.generate(ids, **options)[0].tolist() == text or model.dtype != torch.float32
        stats = model.generate.stats
        outside[key].append((stats.total_seconds - stats.forward_seconds - stats.prefill_seconds) / num_tokens)
        zerodraft.detach(model)

    seconds = measure.interleaved({"plain": plain, **{key: lambda key=key: run(key) for key in drafters}}, rounds)
    rows = []
    for key in drafters:
        low, mid, high = measure.ratio(seconds[key], seconds["plain"])
        cost = measure.spread(outside[key][1:])
        forward = measure.spread(seconds["plain"])[1] / num_tokens
        rows.append(
            {
                "model": name, "dtype": str(model.dtype), "drafter": key, "tokens": num_tokens, "n": rounds,
                "plain_us_per_token_p50": round(forward * 1e6, 1),
                "time_over_plain_p20": round(low, 3), "time_over_plain_p50": round(mid, 3),
                "time_over_plain_p80": round(high, 3),
                "outside_forward_us_per_token_p20": round(cost[0] * 1e6, 1),
                "outside_forward_us_per_token_p50": round(cost[1] * 1e6, 1),
                "outside_forward_us_per_token_p80": round(cost[2] * 1e6, 1),
                "outside_over_plain_token": round(cost[1] / forward, 4),
            }
        )  # fmt: skip
        print(rows[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="also measure this model (a path, a hub id or a fetched name)")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)  # a second thread only adds noise to a tiny model
    rows = compare("tiny llama", tiny(), torch.arange(3, 43)[None], 200, args.rounds)
    if args.model:
        torch.set_num_threads(2)
        loaded = measure.load(args.model, "bfloat16")
        ids = loaded.tokenizer("def fibonacci(n):\n", return_tensors="pt").input_ids
        rows += compare(args.model, loaded.model, ids, 40, args.rounds)
    print(measure.write_csv("overhead", rows))
