"""Replay recorded prompts and outputs: what drafting would have brought on one's own text, with no model at hand."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerodraft.integrations.vocabulary import Encode, encoder_of, load_tokenizer
from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import as_token_ids
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.measure.replay import Replay, replay
from zerodraft.lookup.measure.stats import GenerationStats
from zerodraft.lookup.measure.trace import Trace
from zerodraft.lookup.policy import DraftPolicy


class BadLine(ValueError):
    """A line of a trace file that cannot be replayed; the message begins with its number."""


@dataclass
class ReplayReport:
    """What ``replay_traces`` found.

    Attributes:
        replay: the counts of all traces together.
        curve: the cost curve the speed-up is for.
        num_traces: traces replayed.
        bad_lines: messages of the lines left out, with their numbers.
        num_stood_down: traces in which most steps drafted nothing.
        stand_down_reason: why, in the last of them.
        lookup_seconds: spent in drafting, the replayed target's own work included.
        outputs: the tokens of each replayed output, where the steps were to be kept.
    """

    replay: Replay
    curve: CostCurve
    num_traces: int = 0
    bad_lines: list[str] = field(default_factory=list)
    num_stood_down: int = 0
    stand_down_reason: str | None = None
    lookup_seconds: float = 0.0
    outputs: list[list[int]] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        """Tokens per cost of the forwards against plain decoding, prefill excluded."""
        return self.replay.speedup(self.curve)

    def as_text(self) -> str:
        """The report for people: a few lines, acceptance by depth in steps of a factor of two."""
        found = self.as_dict()
        depths = {depth: rate for depth, rate in found["acceptance_by_depth"].items() if depth & (depth - 1) == 0}
        lines = [
            ("traces", f"{self.num_traces}" + (f" ({len(self.bad_lines)} left out)" if self.bad_lines else "")),
            ("tokens", f"{found['num_decode_tokens']}"),
            ("speed-up", f"{self.speedup:.2f}x (prefill excluded, under the cost curve)"),
            ("tokens per forward", f"{found['tokens_per_forward']:.2f}"),
            ("drafted per forward", f"{found['drafted_per_forward']:.2f}"),
            ("accepted", f"{found['acceptance_rate']:.0%} of the drafted tokens"),
            ("  at depth", ", ".join(f"{depth}: {rate:.0%}" for depth, rate in depths.items()) or "-"),
            ("  by source", ", ".join(f"{k}: {v:.0%}" for k, v in found["acceptance_by_source"].items()) or "-"),
            ("lookup", f"{found['lookup_us_per_token']:.1f} µs per token"),
        ]
        if self.num_stood_down:
            lines.append(("stood down", f"in {self.num_stood_down} traces; {self.stand_down_reason}"))
        return "".join(f"{name:20} {value}\n" for name, value in lines)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain JSON-ready values."""
        stats = self.replay.stats
        drafted, accepted = stats.drafted_by_depth, stats.accepted_by_depth
        return {
            "num_traces": self.num_traces,
            "bad_lines": self.bad_lines,
            "speedup": self.speedup,
            "num_decode_tokens": self.replay.num_decode_tokens,
            "tokens_per_forward": stats.tokens_per_forward,
            "drafted_per_forward": stats.num_draft_tokens / max(1, stats.num_decode_forwards),
            "acceptance_rate": stats.draft_acceptance_rate,
            "acceptance_by_depth": {depth: accepted[depth] / drafted[depth] for depth in sorted(drafted)},
            "acceptance_by_source": {
                source: stats.accepted_by_source[source] / count for source, count in stats.drafted_by_source.items()
            },
            "forwards_by_positions": dict(sorted(self.replay.forwards.items())),
            "calibration_error": self.replay.calibration_error,
            "num_stood_down": self.num_stood_down,
            "stand_down_reason": self.stand_down_reason,
            "lookup_us_per_token": 1e6 * self.lookup_seconds / max(1, self.replay.num_decode_tokens),
            "curve": self.curve.as_dict(),
            "stats": stats.as_dict(),
        }


def replay_traces(
    file: str | Path,
    *,
    tokenizer: str | Path | None = None,
    policy: DraftPolicy | None = None,
    skip_bad: bool = False,
    trace: bool = False,
) -> ReplayReport:
    """Replay a JSONL file of {"prompt", "output", "prediction"?} and report what drafting would have brought.

    Each of the three is a text, or a list of token ids; other keys are ignored, and so are blank lines. Traces know
    nothing of each other.

    Args:
        file: the JSONL file, UTF-8.
        tokenizer: for texts: a folder, a tokenizer.json, or a hub id.
        policy: how to draft; its ``cost`` is also the curve of the speed-up.
        skip_bad: leave lines out that cannot be replayed, instead of refusing the file.
        trace: keep every step in ``replay.stats.trace``, one row per trace, and the outputs.

    Raises:
        BadLine: (a ValueError) the first line that cannot be replayed, by its number.
        ValueError: a file without traces, or a tokenizer that cannot be loaded. OSError: a file that cannot be read.
    """
    policy = DraftPolicy() if policy is None else policy
    drafter = Drafter(policy=policy)
    report = ReplayReport(Replay(GenerationStats(trace=Trace() if trace else None)), policy.curve)
    encode = _lazy_tokenizer(tokenizer)
    for number, line in _lines(Path(file)):
        try:
            texts = _parse(line, encode)
        except ValueError as error:
            message = f"line {number}: {error}"
            if not skip_bad:
                raise BadLine(message) from None
            report.bad_lines.append(message)
            continue
        started = time.perf_counter()
        session = drafter.begin(texts["prompt"], texts.get("prediction"))
        report.replay.merge(replay(session, texts["output"], trace=trace))
        report.lookup_seconds += time.perf_counter() - started
        report.num_traces += 1
        report.outputs += [texts["output"]] if trace else []
        if session.stand_down_reason is not None:
            report.num_stood_down += 1
            report.stand_down_reason = session.stand_down_reason
    if not report.num_traces:
        raise ValueError(f"{file} must hold at least one trace, got none that can be replayed")
    return report


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, line


def _parse(line: bytes, encode: Encode) -> dict[str, list[int]]:
    """Token ids of prompt, output and, where it is there, prediction.

    Raises:
        ValueError: naming what is wrong with the line.
    """
    try:
        entry = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(entry, dict):
        raise ValueError(f"must be a JSON object, got {type(entry).__name__}")
    missing = [key for key in ("prompt", "output") if key not in entry]
    if missing:
        raise ValueError(f"must have prompt and output, got no {' and no '.join(missing)}")
    keys = ["prompt", "output"] + (["prediction"] if entry.get("prediction") is not None else [])
    trace = {key: _ids(entry[key], key, encode) for key in keys}
    if not trace["output"]:
        raise ValueError("output must not be empty")
    return trace


def _ids(value: Any, key: str, encode: Encode) -> list[int]:
    if isinstance(value, str):
        return encode(value)
    if not isinstance(value, list):
        raise ValueError(f"{key} must be a text or a list of token ids, got {type(value).__name__}")
    for position, token in enumerate(value):
        if type(token) is not int:
            raise ValueError(f"{key} must be integers, got {type(token).__name__} at position {position}")
    ids: list[int] = as_token_ids(value, key).tolist()
    return ids


def _lazy_tokenizer(source: str | Path | None) -> Encode:
    """An encoder that loads its tokenizer with the first text."""
    loaded: list[Encode] = []

    def encode(text: str) -> list[int]:
        if source is None:
            raise ValueError("texts need a tokenizer; give one, or token ids")
        if not loaded:
            loaded.append(encoder_of(load_tokenizer(source)))
        return loaded[0](text)

    if source is not None and Path(source).exists():
        loaded.append(encoder_of(load_tokenizer(source)))  # a bad file is one error, not one per line
    return encode
