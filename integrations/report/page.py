"""A report one can look at: one self-contained page about a run, or about replayed texts. Reads only plain JSON."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from zerodraft.integrations.report import svg
from zerodraft.integrations.report.colouring import LOOKS, Span, spans
from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import SOURCE_NAMES
from zerodraft.lookup.measure.trace import NUM_BINS, PLAIN

MAX_TEXTS: Final = 20
_MAX_BARS: Final = 160
_MAX_DEPTHS: Final = 64
_BUDGETS: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_COLUMNS: Final = ("num_drafted", "num_emitted", "seconds", "is_prefill")
_COUNTERS: Final = ("num_emitted_tokens", "num_rows", "num_decode_forwards", "num_draft_tokens", "num_accepted_tokens")
_PHASES: Final = ("prefill", "forward", "draft", "verify")


@dataclass(frozen=True)
class Plot:
    """A picture and the numbers in it."""

    title: str
    about: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    svg: str = ""
    keys: Sequence[str] = ()  # names of the shares, in the order of their colours


@dataclass
class Run:
    """What a report is made of, checked: the columns of a trace, counters, and texts by source."""

    title: str
    subtitle: str
    stats: dict[str, Any]
    trace: dict[str, Any]
    texts: list[tuple[str, list[Span]]] = field(default_factory=list)
    num_texts: int = 1
    extra_tiles: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        _check(self.stats, self.trace)

    @property
    def steps(self) -> list[tuple[int, int]]:
        """(drafted, emitted) of every decode step."""
        columns = zip(self.trace["num_drafted"], self.trace["num_emitted"], self.trace["is_prefill"])
        return [(drafted, emitted) for drafted, emitted, is_prefill in columns if not is_prefill]

    @property
    def curve(self) -> CostCurve | None:
        """What the forwards were taken to cost."""
        given = self.trace.get("curve")
        return None if given is None else CostCurve.from_dict(given)


def read_run(file: str | Path) -> Run | None:
    """Read what ``zerodraft edit --json`` or ``generate --json`` wrote; None if the file is not one JSON object.

    Raises:
        ValueError: an object that is no run, or one without a trace. OSError: a file that cannot be read.
    """
    path = Path(file)
    try:
        document = json.loads(path.read_text("utf-8-sig"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        return None
    if not isinstance(document, dict) or ("stats" not in document and "output" in document):
        return None  # a trace file of a single line
    missing = [name for name in ("stats", "trace", "spans") if document.get(name) is None]
    if missing:
        raise ValueError(f"{path} must hold stats, trace and spans, as --json writes them; got no {', '.join(missing)}")
    about = [str(document[name]) for name in ("file", "model") if document.get(name)]
    run = Run(path.name, " · ".join(about), document["stats"], document["trace"], [("", _spans(document["spans"]))])
    compared = document.get("compare")
    if isinstance(compared, dict):
        for name, way in compared.items():
            if isinstance(way, dict) and isinstance(way.get("speedup"), (int, float)) and name != PLAIN:
                run.extra_tiles.append((f"{name} over plain: {way.get('text')}", f"{way['speedup']:.2f}x"))
    return run


def replay_run(
    file: str | Path, *, tokenizer: str | Path | None = None, policy: Any = None, skip_bad: bool = False
) -> Run:
    """Replay recorded texts, as ``zerodraft replay`` does, and keep the steps. Arguments and errors as there."""
    from zerodraft.integrations.pipelines.replaying import replay_traces

    found = replay_traces(file, tokenizer=tokenizer, policy=policy, skip_bad=skip_bad, trace=True)
    stats = found.replay.stats
    assert stats.trace is not None
    stats.trace.curve = found.curve
    decoder = None if tokenizer is None else _decoder(tokenizer)
    texts = []
    for number, output in enumerate(found.outputs[:MAX_TEXTS]):
        sources = stats.trace.sources(number)
        pairs = zip(sources, (f"{token} " for token in output))
        texts.append((f"text {number + 1}", list(pairs) if decoder is None else spans(decoder, output, sources)))
    about = f"{found.num_traces} recorded texts, replayed without a model; times are those of drafting alone"
    run = Run(Path(file).name, about, stats.as_dict(), stats.trace.as_dict(), texts, found.num_traces)
    run.extra_tiles.append(("speed-up under the cost curve", f"{found.speedup:.2f}x"))
    return run


def render(run: Run) -> str:
    """Return the page. Every text in it is escaped; it has no scripts and asks nobody for anything.

    Raises:
        RuntimeError: jinja2 is not installed.
    """
    try:
        import jinja2
    except ModuleNotFoundError:
        raise RuntimeError("a report needs jinja2: pip install 'zerodraft[report]'") from None
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(files(__package__).joinpath("report.html.j2").read_text("utf-8"))
    used = {source for _, found in run.texts for source, _ in found}
    return template.render(
        title=run.title,
        subtitle=run.subtitle,
        tiles=_tiles(run),
        looks=LOOKS,
        sources=[name for name in LOOKS if name in used],
        texts=run.texts,
        num_hidden_texts=run.num_texts - len(run.texts),
        plots=plots(run),
    )


def plots(run: Run) -> list[Plot]:
    """The seven pictures, in the order of the page."""
    makers = (_over_time, _by_depth, _by_budget, _calibration, _cost, _phases, _by_source)
    return [make(run) for make in makers]


def _over_time(run: Run) -> Plot:
    emitted = [step[1] for step in run.steps]
    size = max(1, math.ceil(len(emitted) / _MAX_BARS))
    groups = [emitted[at : at + size] for at in range(0, len(emitted), size)]
    labels = [str(1 + at * size) for at in range(len(groups))]
    means = [sum(group) / len(group) for group in groups]
    notes = [f"from step {label}: {mean:.2f} tokens" for label, mean in zip(labels, means)]
    each = "" if size == 1 else f" Each bar is the mean of {size} steps."
    return Plot(
        "Accepted length over time",
        f"Tokens that one forward brought, the model's own included, step by step.{each}",
        ("from step", "tokens per forward"),
        [(label, f"{mean:.2f}") for label, mean in zip(labels, means)],
        svg.bars(labels, means, x="decode step", y="tokens per forward", notes=notes),
    )


def _by_depth(run: Run) -> Plot:
    drafted, accepted = _counter(run.stats, "drafted_by_depth"), _counter(run.stats, "accepted_by_depth")
    depths = sorted(drafted, key=int)
    shown = depths[:_MAX_DEPTHS]
    rates = [accepted.get(depth, 0) / drafted[depth] for depth in shown]
    beyond = f" Depths beyond {_MAX_DEPTHS} are in the numbers only." if len(depths) > len(shown) else ""
    return Plot(
        "Acceptance by depth",
        f"Share of the nodes drafted at a depth that were accepted; siblings count each.{beyond}",
        ("depth", "drafted", "accepted", "share"),
        [
            (depth, str(drafted[depth]), str(accepted.get(depth, 0)), f"{accepted.get(depth, 0) / drafted[depth]:.1%}")
            for depth in depths
        ],
        svg.bars(shown, rates, x="depth in the draft", y="accepted", top=1.0),
    )


def _by_budget(run: Run) -> Plot:
    rows = []
    for low, high in itertools.pairwise((*_BUDGETS, math.inf)):
        emitted = [step[1] for step in run.steps if low <= step[0] < high]
        if emitted:
            name = f"{low}" if high - low == 1 else f"{low}+" if high == math.inf else f"{low}–{int(high) - 1}"
            rows.append((name, len(emitted), sum(emitted) / len(emitted)))
    return Plot(
        "Tokens per forward against budget",
        "What forwards brought by how many drafted positions they carried; 0 is plain decoding.",
        ("drafted positions", "forwards", "tokens per forward"),
        [(name, str(count), f"{mean:.2f}") for name, count, mean in rows],
        svg.bars([row[0] for row in rows], [row[2] for row in rows], x="drafted positions", y="tokens per forward"),
    )


def _calibration(run: Run) -> Plot:
    sums = [(count, said, came) for count, said, came in run.trace["prob_sums"] if count > 0]
    points = [(said / count, came / count) for count, said, came in sums]
    total = sum(count for count, _, _ in sums)
    error = sum(abs(said - came) for _, said, came in sums) / total if total else 0.0
    return Plot(
        "Calibration",
        f"What the drafter promised against what came, in {NUM_BINS} bins; on the diagonal it knew. "
        f"Expected calibration error {error:.3f}.",
        ("promised", "came", "nodes"),
        [(f"{x:.1%}", f"{y:.1%}", f"{sums[at][0]:.0f}") for at, (x, y) in enumerate(points)],
        svg.lines(
            [("nodes", points), ("as promised", [(0.0, 0.0), (1.0, 1.0)])],
            x="promised probability",
            y="accepted",
            ends=(1.0, 1.0),
        ),
    )


def _cost(run: Run) -> Plot:
    curve = run.curve
    title, about = "Cost curve", "Cost of a forward by the positions it computes, in forwards over one position."
    heads = ("positions", "cost", "tokens it must bring")
    if curve is None:
        return Plot(title, f"{about} The drafter named none.", heads, ())
    at = [n for n, _ in curve.points]
    points = [(float(n), curve.cost(n)) for n in at]
    series = [("cost", points)]
    if curve.long_points:
        series.append((f"at {curve.contexts[1]} tokens", [(float(n), curve.cost(n, curve.contexts[1])) for n in at]))
    rows = [(str(n), f"{cost:.2f}", f"{cost:.2f}") for n, (_, cost) in zip(at, points)]
    return Plot(
        title,
        f"{about} A draft pays where it brings more tokens than it costs.",
        heads,
        rows,
        svg.lines(series, x="positions", y="cost"),
    )


def _phases(run: Run) -> Plot:
    seconds = {name: float(run.stats.get(f"{name}_seconds", 0.0)) for name in _PHASES}
    rest = float(run.stats.get("total_seconds", 0.0)) - sum(seconds.values())
    shares = [*seconds.items(), ("other", max(0.0, rest))]
    total = sum(value for _, value in shares)
    rows = [(name, f"{value:.4f}", f"{value / total:.1%}") for name, value in shares] if total else []
    about = "Reading the prompt, forwards of the model, drafting, picking and checking tokens, and everything else."
    keys = [name for name, _ in shares]
    return Plot("Time by phase", about, ("phase", "seconds", "share"), rows, svg.stack(shares, unit="s"), keys)


def _by_source(run: Run) -> Plot:
    drafted, accepted = _counter(run.stats, "drafted_by_source"), _counter(run.stats, "accepted_by_source")
    rows = [(name, count, accepted.get(name, 0)) for name, count in drafted.items()]
    return Plot(
        "Acceptance by source",
        "Which source the drafted tokens came from, and how many of them were right.",
        ("source", "drafted", "accepted", "share"),
        [(name, str(count), str(right), f"{right / count:.1%}") for name, count, right in rows],
        svg.bars([row[0] for row in rows], [row[2] / row[1] for row in rows], x="source", y="accepted", top=1.0),
    )


def _tiles(run: Run) -> list[tuple[str, str]]:
    stats = run.stats
    forwards, drafted = stats["num_decode_forwards"], stats["num_draft_tokens"]
    decoded = stats["num_emitted_tokens"] - stats["num_rows"]
    tiles = [
        ("tokens written", str(stats["num_emitted_tokens"])),
        ("tokens per forward", f"{decoded / forwards:.2f}" if forwards else "-"),
        ("of the drafted tokens accepted", f"{stats['num_accepted_tokens'] / drafted:.0%}" if drafted else "-"),
    ]
    if stats.get("total_seconds"):
        tiles.append(("seconds", f"{stats['total_seconds']:.2f}"))
        tiles.append(("tokens per second", f"{stats['num_emitted_tokens'] / stats['total_seconds']:.1f}"))
    if stats.get("stand_down_reason"):
        tiles.append((str(stats["stand_down_reason"]), "stood down"))
    return tiles + run.extra_tiles


def _counter(stats: dict[str, Any], name: str) -> dict[str, int]:
    found = stats.get(name, {})
    if not isinstance(found, dict) or not all(type(value) is int and value >= 0 for value in found.values()):
        raise ValueError(f"stats.{name} must be counts, got {str(found)[:80]}")
    return {str(key): value for key, value in found.items() if value}


def _check(stats: Any, trace: Any) -> None:
    """Refuse what is not the shape that --json writes, by name."""
    if not isinstance(stats, dict) or not all(type(stats.get(name)) is int for name in _COUNTERS):
        raise ValueError(f"stats must be an object with the counts {', '.join(_COUNTERS)}")
    if not isinstance(trace, dict):
        raise ValueError(f"trace must be an object, got {type(trace).__name__}")
    columns = [trace.get(name) for name in _COLUMNS]
    if not all(isinstance(column, list) and all(_is_number(value) for value in column) for column in columns):
        raise ValueError(f"trace must hold lists of numbers called {', '.join(_COLUMNS)}")
    if len({len(column) for column in columns if column is not None}) > 1:
        raise ValueError(f"the columns of trace must have one length, got {[len(column or ()) for column in columns]}")
    sums = trace.get("prob_sums")
    rows = sums if isinstance(sums, list) else []
    if not rows or not all(isinstance(row, list) and len(row) == 3 and all(map(_is_number, row)) for row in rows):
        raise ValueError("trace.prob_sums must be rows of three numbers")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value >= 0


def _spans(given: Any) -> list[Span]:
    """Spans from a file: unknown sources are shown as "custom"."""
    if not isinstance(given, list) or not all(
        isinstance(span, list) and len(span) == 2 and all(isinstance(value, str) for value in span) for span in given
    ):
        raise ValueError("spans must be pairs of source and text")
    known = {PLAIN, *SOURCE_NAMES}
    return [(source if source in known else "custom", text) for source, text in given]


def _decoder(source: str | Path) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    path = Path(source)
    file = path / "tokenizer.json" if path.is_dir() else path
    return (
        PreTrainedTokenizerFast(tokenizer_file=str(file)) if file.is_file() else AutoTokenizer.from_pretrained(source)
    )
