"""One vLLM engine, one job: run by ``bench/serving/vllm_check.py`` in an environment that has vLLM.

    python bench vllm_engine JOB.json RESULT.json

The job names the model, the proposer and the engine's options, and holds batches of prompts as token ids. The result
holds the ids of every answer and what vLLM's own counters rose by in each batch.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

PROPOSERS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5},
    "zerodraft": {"method": "custom_class", "model": "zerodraft.integrations.vllm.Proposer"},
}
COUNTERS = {
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_draft_tokens": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "accepted_tokens",
    "vllm:num_preemptions": "preemptions",
    "vllm:generation_tokens": "generated_tokens",
}


def counters(llm: Any) -> dict[str, float]:
    """vLLM's own counters, under short names; those it does not have are 0."""
    found = dict.fromkeys(COUNTERS.values(), 0.0)
    for metric in llm.get_metrics():
        if metric.name in COUNTERS:
            found[COUNTERS[metric.name]] += metric.value
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=Path, metavar="JOB.json")
    parser.add_argument("result", type=Path, metavar="RESULT.json")
    options = parser.parse_args()
    job = json.loads(options.job.read_text(encoding="utf-8"))
    from vllm import LLM, SamplingParams

    speculative = PROPOSERS[job["proposer"]]
    if speculative is not None:
        speculative = {**speculative, "num_speculative_tokens": job["num_speculative_tokens"]}
    started = time.perf_counter()
    llm = LLM(
        model=job["model"],
        dtype="float32",
        seed=0,
        enforce_eager=True,
        disable_log_stats=False,
        enable_prefix_caching=False,
        speculative_config=speculative,
        **job["engine"],
    )
    batches = []
    ready = time.perf_counter()
    for batch in job["batches"]:
        before, at = counters(llm), time.perf_counter()
        answers = llm.generate(
            [{"prompt_token_ids": ids} for ids in batch["prompts"]],
            [
                SamplingParams(max_tokens=n, temperature=0.0, ignore_eos=batch["ignore_eos"])
                for n in batch["max_tokens"]
            ],
            use_tqdm=False,
        )
        seconds = time.perf_counter() - at
        rose = {name: value - before[name] for name, value in counters(llm).items()}
        outputs = [list(answer.outputs[0].token_ids) for answer in answers]
        batches.append({"outputs": outputs, "seconds": seconds, **rose})
        if "pause" in batch:
            time.sleep(batch["pause"])
    result = {"batches": batches, "start_seconds": ready - started}
    options.result.write_text(json.dumps(result), encoding="utf-8")
