"""Replay renames in real files: what each rule would draft if a model made them in all places. No model runs.

    python bench renames [--lines 20-60,60-120,120-250]

The files and renames of bench/edit_tasks.py (packages of the held-out split), 24 of each size; the prompt is a request
as ``edit_text`` makes it, the output the renamed file. Writes bench/results/renames.csv.
"""

from __future__ import annotations

import argparse
from typing import Any

import edit_tasks
import measure
import numpy as np
import peers
import replay
from transformers import AutoTokenizer

from zerodraft.integrations import weights
from zerodraft.integrations.pipelines.text_ids import chat_ids


def trace(tokenizer: Any, task: edit_tasks.EditTask) -> replay.TokenTrace:
    """A rename as prompt and output in token ids."""
    prompt = chat_ids(tokenizer, f"```python\n{task.code}```\n\n{task.instruction}", answer="```python\n")
    output = tokenizer(f"{task.expected}```")["input_ids"]
    return replay.TokenTrace(
        "renames", "held-out", task.path, np.array(prompt, np.int32), np.array(output, np.int32), None
    )


def rules(curve: str) -> list[replay.Rule]:
    """The lines of the table."""
    policy = replay.adaptive(curve)
    return [
        replay.Rule("HF prompt lookup, 10 drafted, n ≤ 2", lambda t: peers.PromptLookup(t.prompt, 10, 2)),
        *peers.suffix_decoding_rules(replay.Rule),
        replay.Rule("adaptive, without replacements", peers.forgetting(policy, peers.replacements)),
        replay.Rule("adaptive", replay.ours(policy)),
        replay.Rule("copy oracle, at most 255", lambda t: peers.Oracle(t.prompt, t.output, 255)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", default="20-60,60-120,120-250", help="sizes of files")
    parser.add_argument("--files", type=int, default=24, help="of each size")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(weights.fetch("qwen"))
    rows = []
    for lines in args.lines.split(","):
        low, high = map(int, lines.split("-"))
        tasks = edit_tasks.edit_tasks(args.files, min_lines=low, max_lines=high)
        traces = [trace(tokenizer, task) for task in tasks]
        for name in measure.CURVES:
            curve = measure.curve(name)
            for rule in rules(name):
                done = replay.run(rule, traces)
                rows.append(
                    {
                        "lines": lines, "files": len(traces), "tokens": done.num_decode_tokens, "curve": name,
                        "rule": rule.name, "tokens_per_forward": round(done.stats.tokens_per_forward, 2),
                        "speedup": round(done.speedup(curve), 2),
                        "calibration_error": round(done.calibration_error, 3),
                    }
                )  # fmt: skip
                print(rows[-1], flush=True)
    print(measure.write_csv("renames", rows))
