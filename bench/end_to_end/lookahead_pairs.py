"""Never slower than plain: copies, recycling and Lookahead in the adaptive setting against plain, in pairs.

    python bench lookahead_pairs --model smollm2 --dtype bfloat16 --count 15

Every pair decodes one prompt both ways, one after the other. The policy reckons with the cost curve measured on this
machine, as ``attach`` does by itself. Writes bench/results/lookahead_pairs_MODEL_DTYPE.csv: ratios plain / ours, above
1 is faster, by the wall clock and by CPU time, which other programs on the machine disturb less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import measure
import torch
from lookahead import encode, prompts_of

import zerodraft
from zerodraft.integrations.hf.cost_measure import measured_curve
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.lookahead.lookahead import Lookahead
from zerodraft.lookup.policy import DraftPolicy


def timed(run: Callable[[], Any]) -> tuple[float, float, Any]:
    """(wall seconds, CPU seconds, result)."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = run()
    return time.perf_counter() - wall, time.process_time() - cpu, result


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--count", type=int, default=15, help="prompts of each kind, one pair for each")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--kinds", default="chat,code")
    parser.add_argument("--settings", default="copies,recycle,recycle+lookahead")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    loaded = measure.load(args.model, args.dtype)
    model = loaded.model
    policy = DraftPolicy(max_draft_tokens=64, cost=measured_curve(model))
    settings: dict[str, dict[str, Any]] = {
        "copies": {"drafter": Drafter(policy=policy)},
        "recycle": {"drafter": Drafter(policy=policy, recycle=True)},
        "recycle+lookahead": {"drafter": Drafter(policy=policy, recycle=True), "lookahead": Lookahead(4, 4, 8)},
    }
    options = {"max_new_tokens": args.new_tokens, "do_sample": False, "repetition_penalty": 1.0}
    rows = []
    for kind in args.kinds.split(","):
        prompts = [torch.tensor([encode(loaded.tokenizer, entry)]) for entry in prompts_of(kind)[: args.count]]
        for name in args.settings.split(","):
            setting = settings[name]
            walls, cpus, same, tokens, forwards, reasons = [], [], 0, 0, 0, set()
            model.generate(prompts[0], **options)
            for ids in prompts:
                plain_wall, plain_cpu, expected = timed(lambda ids=ids: model.generate(ids, **options))
                zerodraft.attach(model, **setting)
                wall, cpu, got = timed(lambda ids=ids: model.generate(ids, **options))
                stats = model.generate.stats
                zerodraft.detach(model)
                walls.append(plain_wall / wall)
                cpus.append(plain_cpu / cpu)
                same += torch.equal(got, expected)
                tokens += stats.num_emitted_tokens - 1
                forwards += stats.num_decode_forwards
                reasons |= {stats.stand_down_reason} - {None}
            row = {"model": args.model, "dtype": args.dtype, "kind": kind, "setting": name, "pairs": len(walls)}
            row |= dict(zip(("wall_p20", "wall_p50", "wall_p80"), (round(x, 3) for x in measure.spread(walls))))
            row |= dict(zip(("cpu_p20", "cpu_p50", "cpu_p80"), (round(x, 3) for x in measure.spread(cpus))))
            row |= {"tokens_per_forward": round(tokens / max(1, forwards), 3), "identical": same}
            rows.append(row)
            print(row, sorted(reasons)[:2], flush=True)
            measure.write_csv(f"lookahead_pairs_{args.model}_{args.dtype}", rows)
