"""Whole-file edits end to end: zerodraft against transformers' prompt lookup (10 drafted), one real model.

    python bench/edits.py [--model qwen] [--dtype float32] [--files 5] [--rounds 3] [--plain]

Renames in files of public packages (bench/edit_tasks.py). Interleaved: every way decodes a file once per round, and a
ratio is taken within a round. Writes bench/results/edits_DTYPE.csv, a row per file and one for all of them.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import edit_tasks
import measure

from zerodraft.integrations.compare import PLAIN, PROMPT_LOOKUP, ZERODRAFT, Way
from zerodraft.integrations.compare import measure as run
from zerodraft.integrations.cost_measure import measured_curve
from zerodraft.lookup.warm_up import warm_up


def row(name: str, runs: dict[str, list[Way]], args: argparse.Namespace) -> dict[str, Any]:
    """One file's figures; ratios are prompt lookup's seconds over zerodraft's within a round."""
    seconds = {way: [one.seconds for one in ones] for way, ones in runs.items()}
    low, mid, high = measure.ratio(seconds[PROMPT_LOOKUP], seconds[ZERODRAFT])
    ours, theirs = runs[ZERODRAFT][0], runs[PROMPT_LOOKUP][0]
    return {
        "file": name, "model": args.model, "dtype": args.dtype, "n": args.rounds, "tokens": ours.num_tokens,
        "same_text": ours.written.token_ids == theirs.written.token_ids,
        "zerodraft_tokens_per_forward": round(ours.tokens_per_forward, 2),
        "prompt_lookup_tokens_per_forward": round(theirs.tokens_per_forward, 2),
        "zerodraft_seconds_p50": round(statistics.median(seconds[ZERODRAFT]), 2),
        "prompt_lookup_seconds_p50": round(statistics.median(seconds[PROMPT_LOOKUP]), 2),
        "plain_seconds": round(statistics.median(seconds[PLAIN]), 2) if PLAIN in seconds else "",
        "over_prompt_lookup_p20": round(low, 3), "over_prompt_lookup_p50": round(mid, 3),
        "over_prompt_lookup_p80": round(high, 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--files", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-lines", type=int, default=60)
    parser.add_argument("--plain", action="store_true", help="decode plainly, too")
    args = parser.parse_args()
    loaded = measure.load(args.model, args.dtype)
    warm_up()
    measured_curve(loaded.model)  # once per machine; not part of any run
    rows = []
    for task in edit_tasks.edit_tasks(args.files, max_lines=args.max_lines):
        call = edit_tasks.request(loaded.model, loaded.tokenizer, task)
        ways = [PLAIN, PROMPT_LOOKUP, ZERODRAFT] if args.plain else [PROMPT_LOOKUP, ZERODRAFT]
        runs: dict[str, list[Way]] = {way: [] for way in ways}
        for _ in range(args.rounds):
            for way in ways:
                runs[way].append(run(call, way))
        rows.append(row(task.path, runs, args))
        print(rows[-1], flush=True)
    ratios = [entry["over_prompt_lookup_p50"] for entry in rows]
    low, mid, high = measure.spread(ratios)
    whole = dict.fromkeys(rows[0], "") | {
        "file": f"all {len(rows)}", "model": args.model, "dtype": args.dtype, "n": args.rounds,
        "tokens": sum(entry["tokens"] for entry in rows), "same_text": all(entry["same_text"] for entry in rows),
        "over_prompt_lookup_p20": round(low, 3), "over_prompt_lookup_p50": round(mid, 3),
        "over_prompt_lookup_p80": round(high, 3),
    }  # fmt: skip
    print(whole)
    print(measure.write_csv(f"edits_{args.dtype}", [*rows, whole]))


if __name__ == "__main__":
    main()
