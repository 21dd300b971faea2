"""A drafter with a full q: bigram counts, drawn from and verified by the general rule, on a real model's text.

    python bench bigram [--model smollm2] [--gammas 1 3] [--tokens 48] [--texts README.md docs/exactness.md ...]

The paper's section 3.6 drafts from a bigram model for nothing (c = 0) and finds alpha about 0.2 in translation. Here
the counts come from the prompt and the output, the target samples at temperature 1, and three figures are set side by
side: the overlap sum(min(p, q)), which is alpha; how often the two argmaxes agree, which is not; and tokens per
forward against E[N] of that alpha. Writes bench/results/bigram.csv. Forwards are counted, nothing is timed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import measure
import torch

from zerodraft.kernels.verify import acceptance_rate, verify_sampled
from zerodraft.lookup.measure.theory import expected_tokens

UNIGRAM_WEIGHT = 0.5  # tokens' worth of belief in the unigram counts beside those of the last token


class BigramDrafter:
    """Counts of what followed what. ``distribution`` is full: every token that occurred has some probability."""

    def __init__(self, vocab_size: int) -> None:
        self._unigrams = torch.zeros(vocab_size, dtype=torch.float64)
        self._after: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self._last: int | None = None

    def extend(self, ids: Iterable[int]) -> None:
        """Count more text, right after the text counted so far."""
        for token in ids:
            self._unigrams[token] += 1
            if self._last is not None:
                self._after[self._last][token] += 1
            self._last = token

    def distribution(self, last: int) -> torch.Tensor:
        """q after ``last``: float64 (V,), sums to 1."""
        q = self._unigrams * (UNIGRAM_WEIGHT / self._unigrams.sum())
        for token, count in self._after[last].items():
            q[token] += count
        return q / q.sum()

    def draft(self, last: int, gamma: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw a chain: token ids int64 (gamma,) and the distributions they were drawn from, float64 (gamma, V)."""
        ids, rows = [], []
        for _ in range(gamma):
            rows.append(self.distribution(last))
            last = int(torch.multinomial(rows[-1], 1, generator=generator))
            ids.append(last)
        return torch.tensor(ids), torch.stack(rows)


def run(model: Any, prompt: list[int], gamma: int, num_tokens: int, seed: int) -> dict[str, float]:
    """Write at least ``num_tokens`` tokens after the prompt, verified by the general rule; return sums to be averaged.

    The whole text goes through the model at every step: no cache, since only forwards are counted.
    """
    generator = torch.Generator().manual_seed(seed)
    drafter = BigramDrafter(model.config.vocab_size)
    drafter.extend(prompt)
    text = list(prompt)
    sums = dict.fromkeys(("forwards", "tokens", "places", "overlap", "hits"), 0.0)
    while sums["tokens"] < num_tokens:
        ids, q = drafter.draft(text[-1], gamma, generator)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*text, *ids.tolist()]])).logits[0, len(text) - 1 :]
        p = torch.softmax(logits.double(), -1)
        accepted, bonus = verify_sampled(ids, q, p, generator=generator)
        # The overlap after the last emitted token, whatever was accepted: every step counts once.
        sums["overlap"] += float(acceptance_rate(p[0], q[0]))
        sums["hits"] += bool(p[0].argmax() == q[0].argmax())
        new = [*ids[:accepted].tolist(), bonus]
        drafter.extend(new)
        text += new
        sums["places"] += 1
        sums["forwards"] += 1
        sums["tokens"] += len(new)
    return sums


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--gammas", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    texts = ["README.md", "docs/exactness.md", "docs/architecture.md", "bench/data/till.py"]
    parser.add_argument("--texts", nargs="+", default=texts)
    options = parser.parse_args()
    loaded = measure.load(options.model, "float32")
    rows = []
    for gamma in options.gammas:
        total: Counter[str] = Counter()
        for seed, name in enumerate(options.texts):
            prompt = loaded.tokenizer.encode((measure.ROOT / name).read_text("utf-8"))[: options.prompt_tokens]
            total.update(run(loaded.model, prompt, gamma, options.tokens, seed))
        alpha = total["overlap"] / total["places"]
        rows.append(
            {
                "model": options.model,
                "gamma": gamma,
                "texts": len(options.texts),
                "forwards": int(total["forwards"]),
                "alpha_overlap": round(alpha, 3),
                "argmax_hit_rate": round(total["hits"] / total["places"], 3),
                "tokens_per_forward": round(total["tokens"] / total["forwards"], 3),
                "expected_tokens": round(expected_tokens(alpha, gamma), 3),
            }
        )
        print(rows[-1], file=sys.stderr)
    print(measure.write_csv("bigram", rows))
