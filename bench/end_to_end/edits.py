"""Whole-file edits end to end: zerodraft against transformers' prompt lookup (10 drafted), one real model.

    python bench edits [--model qwen] [--dtype float32] [--files 5] [--lines 20-60,60-120] [--rounds 3] [--plain]

Renames in files of public packages (bench/edit_tasks.py), of so many lines. Interleaved: every way decodes a file once
per round, and a ratio is taken within a round; reading the prompt alone is timed, too, to say what the ratio is without
it. Writes bench/results/edits_DTYPE.csv, a row per file and one for all files of a size.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import edit_tasks
import measure
import torch

from zerodraft.integrations.hf.cost_measure import measured_curve
from zerodraft.integrations.pipelines.call import Call
from zerodraft.integrations.pipelines.compare import PLAIN, PROMPT_LOOKUP, ZERODRAFT, Way
from zerodraft.integrations.pipelines.compare import measure as run
from zerodraft.lookup.runtime.warm_up import warm_up


def prefill_seconds(call: Call) -> float:
    """Reading the prompt and writing one token, by the model's own ``generate``."""
    ids = torch.tensor([call.prompt_ids])
    started = time.perf_counter()
    type(call.model).generate(call.model, ids, max_new_tokens=1, do_sample=False)
    return time.perf_counter() - started


def row(
    name: str, lines: str, runs: dict[str, list[Way]], prefills: list[float], args: argparse.Namespace
) -> dict[str, Any]:
    """One file's figures; ratios are prompt lookup's seconds over zerodraft's within a round."""
    seconds = {way: [one.seconds for one in ones] for way, ones in runs.items()}
    low, mid, high = measure.ratio(seconds[PROMPT_LOOKUP], seconds[ZERODRAFT])
    after = {way: [whole - first for whole, first in zip(times, prefills)] for way, times in seconds.items()}
    ours, theirs = runs[ZERODRAFT][0], runs[PROMPT_LOOKUP][0]
    return {
        "file": name, "lines": lines, "model": args.model, "dtype": args.dtype, "n": args.rounds,
        "tokens": ours.num_tokens,
        "same_text": ours.written.token_ids == theirs.written.token_ids,
        "zerodraft_tokens_per_forward": round(ours.tokens_per_forward, 2),
        "prompt_lookup_tokens_per_forward": round(theirs.tokens_per_forward, 2),
        "zerodraft_seconds_p50": round(statistics.median(seconds[ZERODRAFT]), 2),
        "prompt_lookup_seconds_p50": round(statistics.median(seconds[PROMPT_LOOKUP]), 2),
        "plain_seconds": round(statistics.median(seconds[PLAIN]), 2) if PLAIN in seconds else "",
        "over_prompt_lookup_p20": round(low, 3), "over_prompt_lookup_p50": round(mid, 3),
        "over_prompt_lookup_p80": round(high, 3), "prefill_seconds_p50": round(statistics.median(prefills), 2),
        "over_prompt_lookup_without_prefill_p50": round(measure.ratio(after[PROMPT_LOOKUP], after[ZERODRAFT])[1], 3),
    }  # fmt: skip


def row_of_all(rows: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    """The spread over files of their medians."""
    low, mid, high = measure.spread([entry["over_prompt_lookup_p50"] for entry in rows])
    decoding = measure.spread([entry["over_prompt_lookup_without_prefill_p50"] for entry in rows])
    return dict.fromkeys(rows[0], "") | {
        "file": f"all {len(rows)}", "lines": rows[0]["lines"], "model": args.model, "dtype": args.dtype,
        "n": args.rounds, "tokens": sum(entry["tokens"] for entry in rows),
        "same_text": all(entry["same_text"] for entry in rows),
        "over_prompt_lookup_p20": round(low, 3), "over_prompt_lookup_p50": round(mid, 3),
        "over_prompt_lookup_p80": round(high, 3),
        "over_prompt_lookup_without_prefill_p50": round(decoding[1], 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--files", type=int, default=5, help="of each size")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", default="20-60,60-120,120-250", help="sizes of files")
    parser.add_argument("--plain", action="store_true", help="decode plainly, too")
    args = parser.parse_args()
    loaded = measure.load(args.model, args.dtype)
    warm_up()
    measured_curve(loaded.model)  # once per machine; not part of any run
    ways = [PLAIN, PROMPT_LOOKUP, ZERODRAFT] if args.plain else [PROMPT_LOOKUP, ZERODRAFT]
    written: list[dict[str, Any]] = []
    for lines in args.lines.split(","):
        low, high = map(int, lines.split("-"))
        rows = []
        for task in edit_tasks.edit_tasks(args.files, min_lines=low, max_lines=high):
            call = edit_tasks.request(loaded.model, loaded.tokenizer, task)
            runs: dict[str, list[Way]] = {way: [] for way in ways}
            prefills = []
            for _ in range(args.rounds):
                prefills.append(prefill_seconds(call))
                for way in ways:
                    runs[way].append(run(call, way))
            rows.append(row(task.path, lines, runs, prefills, args))
            print(rows[-1], flush=True)
        written += [*rows, row_of_all(rows, args)]
        print(written[-1], measure.write_csv(f"edits_{args.dtype}", written), flush=True)
    if "," in args.lines:
        whole = row_of_all([entry for entry in written if not entry["file"].startswith("all")], args)
        written.append(whole | {"lines": "all sizes"})
        print(written[-1], measure.write_csv(f"edits_{args.dtype}", written))
