"""Half precision: how many real edits differ from plain decoding, and how many near-ties the tie guard reports.

    python bench tie_guard [--model qwen] [--tasks 30] [--dtype bfloat16]

Greedy. A text that differs is looked at: the gap between plain's best two logits at the first difference says whether a
tie turned (gap below four eps of the dtype times the logits' scale) or something is wrong. Writes
bench/results/tie_guard.csv.
"""

from __future__ import annotations

import argparse
import time

import edit_tasks
import measure
import torch

import zerodraft


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen")
    parser.add_argument("--tasks", type=int, default=30)
    parser.add_argument("--min-lines", type=int, default=20, help="shortest file that is edited")
    parser.add_argument("--max-lines", type=int, default=60, help="longest file that is edited")
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    loaded = measure.load(args.model, args.dtype)
    model, tokenizer = loaded.model, loaded.tokenizer
    total = {"different": 0, "not_a_tie": 0, "seconds": 0.0, "forwards": 0, "near_ties": 0}
    tokens, plain_seconds, widest = 0, 0.0, 0.0
    zerodraft.attach(model, tie_guard="report")
    tasks = edit_tasks.edit_tasks(args.tasks, min_lines=args.min_lines, max_lines=args.max_lines)
    for number, task in enumerate(tasks):
        call = edit_tasks.request(model, tokenizer, task)
        prompt, prediction = call.prompt_ids, call.prediction_ids or []
        options = edit_tasks.greedy_options(model, tokenizer, len(prediction) + 32)
        ids = torch.tensor([prompt])
        started = time.perf_counter()
        plain = type(model).generate(model, ids, return_dict_in_generate=True, output_logits=True, **options)
        plain_seconds += time.perf_counter() - started
        expected = plain.sequences[0].tolist()
        tokens += len(expected) - len(prompt)
        started = time.perf_counter()
        got = model.generate(ids, prediction_ids=prediction, **options)[0].tolist()
        total["seconds"] += time.perf_counter() - started
        total["forwards"] += model.generate.stats.num_decode_forwards
        total["near_ties"] += model.generate.stats.num_near_ties
        if got != expected:
            total["different"] += 1
            at = next(i for i, pair in enumerate(zip([*got, -1], [*expected, -2])) if pair[0] != pair[1]) - len(prompt)
            logits = plain.logits[min(at, len(plain.logits) - 1)][0]
            first, second = logits.topk(2).values.tolist()
            widest = max(widest, first - second)
            total["not_a_tie"] += first - second > torch.finfo(model.dtype).eps * 4 * float(logits.abs().max())
        print(number, task.path, total, flush=True)
    row = {
        "model": args.model, "dtype": args.dtype, "n": len(tasks), "tokens": tokens,
        "texts_different": total["different"], "differences_that_are_no_tie": total["not_a_tie"],
        "widest_gap_at_a_difference": round(widest, 4), "near_ties": total["near_ties"],
        "tokens_per_forward": round(tokens / max(total["forwards"], 1), 2),
        "speedup_over_plain": round(plain_seconds / total["seconds"], 2),
    }  # fmt: skip
    print(row)
    print(measure.write_csv("tie_guard", [row]))
