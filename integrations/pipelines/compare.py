"""The same request decoded three ways, side by side: plainly, with transformers' prompt lookup, and with zerodraft."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from zerodraft.integrations.pipelines.call import Call, Written
from zerodraft.lookup.measure.stats import GenerationStats

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN: Final = "plain"
PROMPT_LOOKUP: Final = "HF prompt lookup"
ZERODRAFT: Final = "zerodraft"
NUM_LOOKUP_TOKENS: Final = 10


@dataclass(frozen=True)
class Way:
    """One way of decoding the request. Forwards and positions are counted by a hook on the model, alike for all.

    Attributes:
        name: ``PLAIN``, ``PROMPT_LOOKUP`` or ``ZERODRAFT``.
        written: the tokens; its ``stats`` are zerodraft's only.
        seconds: the whole call, prefill included.
        num_forwards: forwards of the target, prefill included.
        num_draft_tokens: positions beyond the one that plain decoding computes in each forward.
        lookup_seconds: time spent on drafting, None where it cannot be seen.
    """

    name: str
    written: Written
    seconds: float
    num_forwards: int
    num_draft_tokens: int
    lookup_seconds: float | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens written."""
        return len(self.written.token_ids)

    @property
    def tokens_per_second(self) -> float:
        """Tokens written per second of the whole call."""
        return self.num_tokens / self.seconds

    @property
    def tokens_per_forward(self) -> float:
        """Tokens after the first, per forward after the first."""
        return (self.num_tokens - 1) / max(1, self.num_forwards - 1)

    @property
    def acceptance(self) -> float | None:
        """Accepted per drafted token, None where nothing was drafted."""
        if not self.num_draft_tokens:
            return None
        return max(0, self.num_tokens - self.num_forwards) / self.num_draft_tokens

    @property
    def lookup_us_per_token(self) -> float | None:
        """Microseconds of drafting per token written, None where it cannot be seen."""
        return None if self.lookup_seconds is None else 1e6 * self.lookup_seconds / max(1, self.num_tokens)


@dataclass(frozen=True)
class Difference:
    """Where two texts part: the first differing token, and how close the model's two best choices were there.

    ``gap`` is the difference of the two largest logits, recomputed by one plain forward. It is None where one text
    only goes on after the other's end.
    """

    at: int
    gap: float | None


@dataclass(frozen=True)
class Comparison:
    """The ways, in the order they ran, and how each one's text differs from plain decoding's (None: not at all)."""

    ways: tuple[Way, ...]
    differences: dict[str, Difference | None]

    @property
    def zerodraft(self) -> Way:
        """Our way."""
        return self[ZERODRAFT]

    def __getitem__(self, name: str) -> Way:
        return next(way for way in self.ways if way.name == name)

    def speedup(self, name: str) -> float:
        """Plain decoding's seconds per token over this way's."""
        return self[name].tokens_per_second / self[PLAIN].tokens_per_second

    def verdict(self, name: str) -> str:
        """One phrase on the text: identical, or where it parts from plain decoding's and by how little."""
        difference = self.differences[name]
        if name == PLAIN:
            return "reference"
        if difference is None:
            return "identical"
        if difference.gap is None:
            extra = self[name].num_tokens - self[PLAIN].num_tokens
            return f"identical, then {extra} more tokens" if extra > 0 else f"identical, but {-extra} tokens short"
        return f"differs at token {difference.at} (top-2 gap {difference.gap:.1e})"

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values."""
        return {
            way.name: {
                "tokens": way.num_tokens,
                "seconds": way.seconds,
                "tokens_per_second": way.tokens_per_second,
                "speedup": self.speedup(way.name),
                "forwards": way.num_forwards,
                "tokens_per_forward": way.tokens_per_forward,
                "draft_tokens": way.num_draft_tokens,
                "acceptance": way.acceptance,
                "lookup_us_per_token": way.lookup_us_per_token,
                "text": self.verdict(way.name),
            }
            for way in self.ways
        }


def run_or_compare(call: Call, streamer: Any, compare: bool) -> tuple[Written, Comparison | None]:
    """Decode the request with zerodraft, beside the other ways if asked for."""
    if not compare:
        return call.run(streamer=streamer), None
    comparison = compare_ways(call, streamer=streamer)
    return comparison.zerodraft.written, comparison


def compare_ways(call: Call, *, streamer: Any = None, say: Callable[[str], None] | None = None) -> Comparison:
    """Decode one request three ways. An attached model's plain and prompt lookup runs go past what is attached.

    A short run of each way comes first, so that none pays for compiling or for cold memory. With sampling, plain
    decoding and zerodraft draw from the same seed; prompt lookup then writes another text by its nature.

    Args:
        call: the request; with sampling it needs a seed to be comparable, 0 is taken where it has none.
        streamer: gets zerodraft's text.
        say: told which way runs next.
    """
    if call.sampling.temperature > 0 and call.sampling.seed is None:
        call = replace(call, sampling=replace(call.sampling, seed=0))
    tell = say or (lambda line: None)
    short = replace(call, max_new_tokens=2)
    ways = []
    for name, run in _RUNS.items():
        tell(name)
        run(short, None)
        ways.append(measure(call, name, streamer=streamer if name == ZERODRAFT else None))
    plain = ways[0].written.token_ids
    return Comparison(tuple(ways), {way.name: first_difference(call, plain, way.written.token_ids) for way in ways})


def measure(call: Call, name: str, *, streamer: Any = None) -> Way:
    """Decode the request in one way, and count and time it."""
    with _counted(call) as widths:
        start = time.perf_counter()
        written = _RUNS[name](call, streamer)
        seconds = time.perf_counter() - start
    lookup_seconds = {PLAIN: 0.0, ZERODRAFT: written.stats.draft_seconds}.get(name)
    num_plain = len(call.prompt_ids) + len(widths) - 1  # positions of as many forwards of plain decoding
    return Way(name, written, seconds, len(widths), sum(widths) - num_plain, lookup_seconds)


def first_difference(call: Call, plain: tuple[int, ...], other: tuple[int, ...]) -> Difference | None:
    """Compare two texts; the gap at the first difference costs one forward over the text before it."""
    at = next((i for i, (a, b) in enumerate(zip(plain, other)) if a != b), min(len(plain), len(other)))
    if at == max(len(plain), len(other)):
        return None
    if at == min(len(plain), len(other)):
        return Difference(at, None)
    import torch

    ids = torch.tensor([[*call.prompt_ids, *plain[:at]]], device=call.model.device)
    with torch.no_grad():
        best = call.model(input_ids=ids).logits[0, -1].float().topk(2).values
    return Difference(at, float(best[0] - best[1]))


def _plain(call: Call, streamer: Any) -> Written:
    return call.written(call.generate(), GenerationStats())


def _prompt_lookup(call: Call, streamer: Any) -> Written:
    return call.written(call.generate(prompt_lookup_num_tokens=NUM_LOOKUP_TOKENS), GenerationStats())


def _zerodraft(call: Call, streamer: Any) -> Written:
    return call.run(streamer=streamer)


_RUNS: Final = {PLAIN: _plain, PROMPT_LOOKUP: _prompt_lookup, ZERODRAFT: _zerodraft}


@contextmanager
def _counted(call: Call) -> Iterator[list[int]]:
    """Yield a list that gets the number of positions of each forward of the model."""
    widths: list[int] = []

    def count(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids: Any = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        widths.append(int(ids.shape[1]))

    handle = call.model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield widths
    finally:
        handle.remove()
