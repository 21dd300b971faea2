"""A batch of real edits: tokens per second of plain batched ``generate`` and of zerodraft, rows checked one by one.

    python bench batch_edits [--model qwen] [--batch 8] [--rounds 5] [--dtype float32]

Writes bench/results/batch_edits.csv. Every row of the batch is compared with its own batch-1 run: a plain one, or, with
``--own-runs zerodraft``, the same in a fraction of the time.
"""

from __future__ import annotations

import argparse
from typing import Any

import edit_tasks
import measure
import torch

import zerodraft


def pad_left(prompts: list[list[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask (B, longest)."""
    width = max(len(ids) for ids in prompts)
    ids = torch.tensor([[pad_id] * (width - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    return ids, mask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-lines", type=int, default=40, help="longest file that is edited")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--own-runs", choices=("plain", "zerodraft"), default="plain", help="what rows are compared with"
    )
    args = parser.parse_args()
    loaded = measure.load(args.model, args.dtype)
    model, tokenizer = loaded.model, loaded.tokenizer
    tasks = edit_tasks.edit_tasks(args.batch, max_lines=args.max_lines)
    calls = [edit_tasks.request(model, tokenizer, task) for task in tasks]
    prompts, predictions = [call.prompt_ids for call in calls], [call.prediction_ids for call in calls]
    options = edit_tasks.greedy_options(model, tokenizer, max(len(ids) for ids in predictions) + 32)
    ids, mask = pad_left(prompts, tokenizer.pad_token_id)
    outputs: dict[str, torch.Tensor] = {}
    stats: dict[str, Any] = {}

    def plain() -> None:
        outputs["plain"] = type(model).generate(model, ids, attention_mask=mask, **options)

    def ours() -> None:
        zerodraft.attach(model)
        outputs["ours"] = model.generate(ids, attention_mask=mask, prediction_ids=predictions, **options)
        stats["ours"] = model.generate.stats
        zerodraft.detach(model)

    seconds = measure.interleaved({"plain": plain, "zerodraft": ours}, args.rounds)
    alone_equal, plain_equal = 0, 0
    start = ids.shape[1]
    for row, prompt in enumerate(prompts):
        if args.own_runs == "plain":
            alone = type(model).generate(model, torch.tensor([prompt]), **options)[0, len(prompt) :].tolist()
        else:
            zerodraft.attach(model)
            alone = model.generate(torch.tensor([prompt]), prediction_ids=predictions[row], **options)
            alone = alone[0, len(prompt) :].tolist()
            zerodraft.detach(model)
        alone_equal += outputs["ours"][row, start : start + len(alone)].tolist() == alone
        plain_equal += outputs["plain"][row, start : start + len(alone)].tolist() == alone
    low, mid, high = measure.ratio(seconds["plain"], seconds["zerodraft"])
    emitted = stats["ours"].num_emitted_tokens
    prefill = stats["ours"].prefill_seconds
    row = {
        "model": args.model, "dtype": args.dtype, "batch": args.batch, "max_lines": args.max_lines, "n": args.rounds,
        "tokens": emitted, "decode_forwards": stats["ours"].num_decode_forwards,
        "plain_tokens_per_s_p50": round(emitted / measure.spread(seconds["plain"])[1], 1),
        "zerodraft_tokens_per_s_p50": round(emitted / measure.spread(seconds["zerodraft"])[1], 1),
        "zerodraft_prefill_seconds": round(prefill, 1),
        "speedup_p20": round(low, 2), "speedup_p50": round(mid, 2), "speedup_p80": round(high, 2),
        "own_runs": args.own_runs, "rows_identical_to_their_own_run": alone_equal,
        "plain_batch_rows_identical": plain_equal,
    }  # fmt: skip
    print(row)
    print(measure.write_csv("batch_edits", [row]))
