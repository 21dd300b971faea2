"""Micro-benchmarks for ``make bench``: build, append, propose and step, ours and the peers that are installed.

Quick looks while working; the published figures come from lookup_latency.py, which needs no pytest.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from contenders import OURS, peers
from streams import STREAMS

CONTEXTS = (1024, 8192, 32_768, 131_072)
EVERYWHERE = list(itertools.product(OURS, STREAMS, CONTEXTS))
# Peers and the slower of their calls: one stream, two lengths.
BESIDE = list(itertools.product(peers(), ("code",), (8192, 131_072)))
CONTENDERS = OURS | peers()

pytestmark = pytest.mark.benchmark(timer=time.thread_time, max_time=0.1, min_rounds=3, warmup=False)
lines = pytest.mark.parametrize(("name", "stream", "context"), EVERYWHERE + BESIDE)


def built(name: str, stream: str, context: int) -> tuple[Any, Callable[[], int]]:
    """A contender that holds ``context`` tokens, warm, and a source of the tokens that follow."""
    tokens = STREAMS[stream](context + 2000)
    contender = CONTENDERS[name](tokens[:context])
    contender.propose()
    return contender, itertools.cycle(tokens[context:].tolist()).__next__


@pytest.mark.parametrize(("name", "stream", "context"), EVERYWHERE)
def test_build(benchmark: Any, name: str, stream: str, context: int) -> None:
    prompt = STREAMS[stream](context)
    contender = benchmark(CONTENDERS[name], prompt)
    held = contender.nbytes()
    benchmark.extra_info["bytes_per_token"] = None if held is None else round(held / context, 1)


@lines
def test_append(benchmark: Any, name: str, stream: str, context: int) -> None:
    contender, next_token = built(name, stream, context)
    benchmark.pedantic(contender.append, setup=lambda: ((next_token(),), {}), rounds=1000)


@lines
def test_propose(benchmark: Any, name: str, stream: str, context: int) -> None:
    contender, _ = built(name, stream, context)
    benchmark(contender.propose)


@lines
def test_step(benchmark: Any, name: str, stream: str, context: int) -> None:
    contender, next_token = built(name, stream, context)

    def step(token: int) -> Any:
        contender.append(token)
        return contender.propose()

    benchmark.pedantic(step, setup=lambda: ((next_token(),), {}), rounds=300)
