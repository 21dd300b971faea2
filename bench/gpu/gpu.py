"""Everything about zerodraft on one GPU: correctness, the cost curve, the verifier's share, forced replay.

    bench/gpu.sh                 on a card: under 8 minutes, nothing is downloaded
    bench/gpu.sh --smoke         the same script in small, on whatever device there is

Writes CSV files, and plots where matplotlib is installed, under bench/results/gpu/. Parts for which no time is left are
named in ``skipped``. Weights are random: times do not depend on them.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gpu_check
import gpu_replay
import measure
import torch

PEAK_FLOPS = 990e12  # dense bf16 of an H100 SXM, for the roofline column
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BATCHES = (1, 4, 16, 64)


def shapes(smoke: bool) -> dict[str, Callable[[], Any]]:
    """Configurations by the names of the models whose sizes they have."""
    import transformers as t

    if smoke:
        small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
        small |= {"num_key_value_heads": 2, "vocab_size": 2000, "max_position_embeddings": 16_384}
        return {"smoke": lambda: t.LlamaConfig(**small)}
    return {
        "Llama-3-8B": lambda: t.LlamaConfig(
            vocab_size=128_256,
            hidden_size=4096,
            intermediate_size=14_336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            max_position_embeddings=16_384,
        ),
        "Qwen2.5-0.5B": lambda: t.Qwen2Config(
            vocab_size=151_936,
            hidden_size=896,
            intermediate_size=4864,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            max_position_embeddings=32_768,
        ),
        "Qwen2.5-7B": lambda: t.Qwen2Config(
            vocab_size=152_064,
            hidden_size=3584,
            intermediate_size=18_944,
            num_hidden_layers=28,
            num_attention_heads=28,
            num_key_value_heads=4,
            max_position_embeddings=32_768,
        ),
    }


class Bench:
    """One run: the device, the deadline, where results go."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.smoke = options.smoke
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.deadline = time.monotonic() + 60 * options.minutes
        self.out: Path = options.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.traces: Path | None = options.traces
        self.skipped: list[str] = []
        self.gpu = torch.cuda.get_device_name() if self.device == "cuda" else "no GPU"

    def sync(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def has_time(self, part: str, seconds: float) -> bool:
        """True if that much time is left; otherwise the part is noted as skipped."""
        left = self.deadline - time.monotonic()
        if left < seconds and not self.smoke:
            self.skipped.append(part)
            self.say(f"skipped for want of time: {part}")
            return False
        return True

    def say(self, line: str) -> None:
        print(f"{line}  [{self.deadline - time.monotonic():.0f} s left]", file=sys.stderr, flush=True)

    def write(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """Write one CSV file, device and versions in every row; does nothing without rows."""
        if rows:
            measure.write_csv(self.out / f"{name}.csv", [{**row, "gpu": self.gpu} for row in rows])

    def timed(self, work: Callable[[], Any], rounds: int) -> dict[str, float]:
        """p20, p50, p80 in milliseconds over ``rounds`` runs after two unmeasured ones, waiting for the device."""
        found = []
        for number in range(rounds + 2):
            self.sync()
            started = time.perf_counter()
            work()
            self.sync()
            if number >= 2:
                found.append(1e3 * (time.perf_counter() - started))
        p20, p50, p80 = measure.spread(found)
        return {"n": rounds, "p20_ms": p20, "p50_ms": p50, "p80_ms": p80}

    def model(self, config: Any) -> Any:
        """A model of random weights, made on the device itself: bf16 there, fp32 in a smoke run on a CPU."""
        import transformers

        dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        torch.manual_seed(0)
        with torch.device(self.device):
            return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


@torch.no_grad()
def cost_curve(bench: Bench, name: str, model: Any, context: int) -> list[dict[str, Any]]:
    """Time of a checking forward (masks made, logits out) against positions, per batch; the roofline beside it."""
    from zerodraft.integrations.hf.target import Target
    from zerodraft.lookup.draft import Draft

    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    rows: list[dict[str, Any]] = []
    for batch in (1, 2) if bench.smoke else BATCHES:
        target = Target(model, batch)
        prompt = torch.arange(context, device=model.device) % model.config.vocab_size
        target.prefill([prompt] * batch, chunk_size=1024)
        narrow = None
        for width in WIDTHS[:4] if bench.smoke else WIDTHS:
            if batch * width > 4096 and not bench.has_time(f"{name}: batch {batch}, {width} positions", 60):
                continue
            drafts = [Draft.chain(list(range(width - 1)))] * batch
            timing = bench.timed(lambda: target.check([0] * batch, drafts), 3 if batch * width > 2048 else 10)  # noqa: B023
            narrow = narrow or timing["p50_ms"]
            rows.append(
                {
                    "model": name,
                    "context": context,
                    "batch": batch,
                    "positions_per_row": width,
                    **timing,
                    "relative": timing["p50_ms"] / narrow,
                    "parameters": num_parameters,
                    "roofline_positions": PEAK_FLOPS * rows[0]["p50_ms"] / 1e3 / (2 * num_parameters)
                    if rows
                    else PEAK_FLOPS * narrow / 1e3 / (2 * num_parameters),
                }
            )
    return rows


@torch.no_grad()
def verifier(
    bench: Bench, vocab: int, layers: int, heads: int, head_dim: int, forward_ms: float
) -> list[dict[str, Any]]:
    """Pick-and-walk and commit per step, with Triton (on CUDA) and without, as a share of one forward."""
    from zerodraft.kernels import kv_cache, verify
    from zerodraft.lookup.draft import Draft

    dtype = torch.bfloat16 if bench.device == "cuda" else torch.float32
    rows = []
    ways = {"torch": lambda tensor: False}
    if bench.device == "cuda":
        ways["triton"] = verify.use_triton
    served = verify.use_triton
    for batch in (1, 2) if bench.smoke else (1, 4, 16):
        for width in (1, 4) if bench.smoke else (1, 16, 64, 128):
            logits = torch.randn(batch, width, vocab, device=bench.device, dtype=dtype)
            drafts = [Draft.chain(logits[0, : width - 1].argmax(-1).tolist())] * batch  # row 0 accepts everything
            kept = [[0, *range(2, width)]] * batch  # one node left out: everything behind it moves
            for way, rule in ways.items():
                verify.use_triton = kv_cache.use_triton = rule
                cache = kv_cache.RaggedCache(batch)
                states = torch.zeros(batch, heads, width, head_dim, device=bench.device, dtype=dtype)
                for layer in range(layers):
                    cache.update(states, states, layer)
                works = {
                    "pick and walk": lambda: gpu_replay.verify_as_the_loop_does(logits, drafts),  # noqa: B023
                    "append, all layers": lambda: [cache.update(states, states, i) for i in range(layers)],  # noqa: B023
                    "commit, all layers": lambda: (cache.keep_all(kept), cache.set_lengths([0] * batch)),  # noqa: B023
                }
                for part, work in works.items():
                    timing = bench.timed(work, 3 if bench.smoke else 30)
                    rows.append(
                        {
                            "part": part,
                            "way": way,
                            "batch": batch,
                            "positions_per_row": width,
                            **timing,
                            "share_of_forward": timing["p50_ms"] / forward_ms,
                        }
                    )
    verify.use_triton = kv_cache.use_triton = served
    return rows


def forced_replay(bench: Bench, name: str, model: Any, curve: Any) -> list[dict[str, Any]]:
    """Tokens per second on known outputs: plain, transformers' prompt lookup, zerodraft, by batch size."""
    limit = 24 if bench.smoke else 400
    makers = {
        "plain": gpu_replay.NoDrafts,
        "HF prompt lookup, 10 tokens": gpu_replay.PromptLookup,
        "zerodraft": gpu_replay.zerodraft_with(curve),
    }
    rows = []
    for batch in (1, 2) if bench.smoke else (1, 4, 16):
        kind, traces = gpu_replay.read_traces(bench.traces, model.config.vocab_size, batch, limit)
        if len(traces) < batch:
            bench.say(f"only {len(traces)} traces of more than {limit} tokens: batch {batch} left out")
            continue
        for way, make in makers.items():
            if not bench.has_time(f"{name}: replay, batch {batch}, {way}", 45):
                continue
            least = min(limit, 8)
            gpu_replay.replay(model, traces, make, least, bench.sync)  # unmeasured
            result = gpu_replay.replay(model, traces, make, limit, bench.sync)
            rows.append({"model": name, "traces": kind, "forced": True, "batch": batch, "way": way, **result})
            bench.say(f"{name}, batch {batch}, {way}: {result['tokens_per_second']:.0f} tokens/s, forced replay")
    return rows


def lookup_seconds(rows: Sequence[dict[str, Any]]) -> str:
    """Lookup time per step of our rows, for the last line of the report."""
    ours = [1e6 * row["lookup_seconds"] / row["forwards"] for row in rows if row["way"] == "zerodraft"]
    return f"lookup {max(ours):.0f} µs per step at most" if ours else "no replay of ours"


def plots(bench: Bench, curves: Sequence[dict[str, Any]], replays: Sequence[dict[str, Any]]) -> None:
    """Cost curves and replay speeds as PNG, where matplotlib is installed."""
    pyplot = measure.pyplot()
    if pyplot is None:
        return
    for name in dict.fromkeys(row["model"] for row in curves):
        figure, axes = pyplot.subplots(figsize=(6, 4))
        for batch in dict.fromkeys(row["batch"] for row in curves):
            here = [row for row in curves if row["model"] == name and row["batch"] == batch]
            axes.plot([r["positions_per_row"] for r in here], [r["p50_ms"] for r in here], "o-", label=f"batch {batch}")
        axes.set(xscale="log", yscale="log", xlabel="positions per row", ylabel="ms per forward (p50)")
        axes.set_title(f"{name}, {bench.gpu}")
        axes.legend()
        figure.savefig(bench.out / f"cost_curve_{name}.png", dpi=120, bbox_inches="tight")
        pyplot.close(figure)
    if replays:
        figure, axes = pyplot.subplots(figsize=(7, 4))
        labels = [f"{row['way']}\nbatch {row['batch']}" for row in replays]
        axes.barh(labels, [row["tokens_per_second"] for row in replays])
        axes.set_xlabel("tokens per second, forced replay")
        axes.set_title(f"{replays[0]['model']}, {bench.gpu}")
        figure.savefig(bench.out / "replay.png", dpi=120, bbox_inches="tight")
        pyplot.close(figure)


def check(bench: Bench) -> int:
    """Part (a); the number of comparisons that failed."""
    seeds, length = (2, 12) if bench.smoke else (20, 60)
    twins = gpu_check.twins_agree(bench.device, 6 if bench.smoke else 100)
    bench.write("twins", twins)
    same = gpu_check.same_as_plain(bench.device, seeds, length)
    bench.write("correctness", same)
    wrong = sum(row["n"] - min(row["identical"], row["same_generator_state"]) for row in same)
    wrong += sum(row["n"] - row["equal"] for row in twins)
    total = sum(row["n"] for row in [*same, *twins])
    bench.say(f"correctness: {total - wrong} of {total} comparisons equal")
    return wrong


def check_compiled(bench: Bench) -> int:
    """Part (a) once more with compiled forwards, last because compiling takes long; comparisons that failed."""
    if not bench.has_time("correctness of compiled forwards", 90):
        return 0
    compile = "auto" if bench.device == "cuda" else "buckets"
    try:
        same = gpu_check.same_as_plain(bench.device, 3, 30, compile, ("llama",))
    except Exception as error:
        bench.skipped.append(f"compiled forwards: {type(error).__name__}: {error}"[:300])
        return 1
    bench.write("correctness_compiled", same)
    return sum(row["n"] - min(row["identical"], row["same_generator_state"]) for row in same)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on any device")
    parser.add_argument("--minutes", type=float, default=7.5, help="time for everything; default 7.5")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "gpu", help="folder for the results")
    parser.add_argument("--traces", type=Path, help='JSON lines with "prompt", "output" and optionally "prediction"')
    options = parser.parse_args()
    bench = Bench(options)
    if bench.device == "cpu" and not bench.smoke:
        print("no CUDA device here; bench/gpu.sh --smoke tries the script out on the CPU", file=sys.stderr)
        return 2
    wrong = check(bench)
    curves: list[dict[str, Any]] = []
    replays: list[dict[str, Any]] = []
    for number, (name, make_config) in enumerate(shapes(bench.smoke).items()):
        if not bench.has_time(name, 60):
            continue
        config = make_config()
        model = bench.model(config)
        bench.say(f"{name}: {sum(p.numel() for p in model.parameters()) / 1e9:.2f} billion random weights")
        curves += cost_curve(bench, name, model, 16 if bench.smoke else 512)
        bench.write("cost_curve", curves)
        if number == 0:
            narrow = [row for row in curves if row["batch"] == 1]
            dim = config.hidden_size // config.num_attention_heads
            shares = verifier(
                bench, config.vocab_size, config.num_hidden_layers, config.num_key_value_heads, dim, narrow[0]["p50_ms"]
            )
            bench.write("verifier", shares)
            from zerodraft.lookup.cost import CostCurve

            curve = CostCurve([(row["positions_per_row"], row["p50_ms"]) for row in narrow])
            replays += forced_replay(bench, name, model, curve)
            bench.write("replay", replays)
        del model
        gc.collect()
        if bench.device == "cuda":
            torch.cuda.empty_cache()
    wrong += check_compiled(bench)
    bench.write("skipped", [{"part": part} for part in bench.skipped])
    plots(bench, curves, replays)
    bench.say(f"results in {bench.out}; {lookup_seconds(replays)}; {wrong} comparisons failed")
    return int(wrong > 0)
