"""Summaries of three long texts, plainly and with zerodraft, in the same batches: the same words, and how much faster.

    python bench summaries [--model qwen] [--rounds 3] [--part-tokens 1024] [--max-new-tokens 128] [FILE ...]

Without files: three pages of docs/. Interleaved rounds; the ratio is per round. Writes bench/results/summaries.csv.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import measure

from zerodraft.integrations.pipelines.summarizing import Summary, summarize_texts

DOCS = measure.ROOT / "docs"


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--model", default="qwen")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part-tokens", type=int, default=1024)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=4)
    options = parser.parse_args()
    files = options.files or [DOCS / name for name in ("architecture.md", "exactness.md", "memory.md")]
    texts = [path.read_text("utf-8") for path in files]
    loaded = measure.load(options.model, "float32")
    found: dict[bool, list] = {}

    def run(plain: bool) -> None:
        found[plain] = summarize_texts(
            loaded.model,
            loaded.tokenizer,
            texts,
            max_new_tokens=options.max_new_tokens,
            max_part_tokens=options.part_tokens,
            batch_size=options.batch_size,
            plain=plain,
        )

    seconds = measure.interleaved({"plain": lambda: run(True), "zerodraft": lambda: run(False)}, options.rounds)
    failed = [str(each) for each in found[False] if not isinstance(each, Summary)]
    if failed:
        sys.exit(f"no summary: {failed}")
    low, middle, high = measure.ratio(seconds["plain"], seconds["zerodraft"])
    stats = found[False][0].stats
    row = {
        "model": options.model,
        "dtype": "float32",
        "texts": len(texts),
        "source_tokens": sum(each.num_tokens for each in found[False]),
        "parts": sum(each.num_parts for each in found[False]),
        "batch_size": options.batch_size,
        "rounds": options.rounds,
        "plain_seconds": round(measure.spread(seconds["plain"])[1], 2),
        "zerodraft_seconds": round(measure.spread(seconds["zerodraft"])[1], 2),
        "speedup_p20": round(low, 3),
        "speedup_p50": round(middle, 3),
        "speedup_p80": round(high, 3),
        "decode_forwards": stats.num_decode_forwards,
        "emitted_tokens": stats.num_emitted_tokens,
        "tokens_per_row_step": round((stats.num_emitted_tokens - stats.num_rows) / max(1, stats.num_row_steps), 3),
        "identical_texts": sum(a.text == b.text for a, b in zip(found[False], found[True])),
    }
    print(row, file=sys.stderr)
    print(measure.write_csv("summaries", [row]))
