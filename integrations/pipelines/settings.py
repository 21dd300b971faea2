"""What a caller of the pipelines may set, checked at the door: Sampling, Drafting, lengths, and what they work with."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from zerodraft.lookup.checks import flag, instance_of, int_in, number_in, shown, with_methods
from zerodraft.lookup.drafter import check_call


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: 0 for greedy decoding, which is the default.
        top_p: nucleus in (0, 1]; only with a temperature.
        seed: for sampling, in [0, 2**63); the process's own generators stay as they were. Only with a temperature.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        number_in("temperature", self.temperature, 0.0)
        number_in("top_p", self.top_p, 0.0, 1.0, above=True)
        if self.seed is not None:
            int_in("seed", self.seed, 0, 2**63 - 1)
        idle = [name for name, default in (("top_p", 1.0), ("seed", None)) if getattr(self, name) != default]
        if self.temperature == 0 and idle:
            warnings.warn(f"{' and '.join(idle)} without a temperature: nothing is sampled", stacklevel=3)

    def options(self) -> dict[str, Any]:
        """Keywords for ``generate``."""
        if self.temperature == 0.0:
            return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        return {"do_sample": True, "temperature": float(self.temperature), "top_p": float(self.top_p), "top_k": 0}

    @contextlib.contextmanager
    def seeded(self) -> Iterator[None]:
        """Run the body from ``seed``, and leave the process's generators as they were. Nothing without a seed."""
        if self.seed is None:
            yield
            return
        import torch

        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            yield


@dataclass(frozen=True)
class Drafting:
    """How much is drafted, and from where. None of it changes the text.

    Attributes:
        drafter: see ``zerodraft.attach``; a model that is attached keeps its own.
        draft: False switches all drafting off.
        max_draft_tokens: most drafted tokens per forward; None: as many as pay.
        namespace: whose remembered texts may be drafted from.
        remember: keep the text in the drafter's memory.
        trace: keep every step in ``stats.trace``; a model that is attached keeps its own setting.
    """

    drafter: Any = None
    draft: bool = True
    max_draft_tokens: int | None = None
    namespace: str | None = None
    remember: bool | str = False
    trace: bool = False

    def __post_init__(self) -> None:
        check_call(self.draft, self.max_draft_tokens, self.namespace, self.remember)
        flag("trace", self.trace)
        with_methods("drafter", self.drafter, "begin(prompt_ids, prediction_ids, namespace)")

    def options(self) -> dict[str, Any]:
        """Keywords for an accelerated ``generate``: those that were set."""
        default = Drafting()
        names = ("draft", "max_draft_tokens", "namespace", "remember")
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(default, name)}


def check_length(max_new_tokens: Any, *, name: str = "max_new_tokens") -> None:
    """Raise a ValueError unless this is a number of tokens to write, at least 1."""
    int_in(name, max_new_tokens, 1, None)


def check_door(model: Any, tokenizer: Any, sampling: Any, drafting: Any) -> None:
    """Raise a ValueError for what a pipeline cannot work with, before any work."""
    if isinstance(model, (str, type)) or not (hasattr(model, "generation_config") and hasattr(model, "config")):
        raise ValueError(f"model must be a loaded model of transformers that can generate, got {shown(model)}")
    if tokenizer is None:
        raise ValueError("tokenizer must be the model's loaded tokenizer, got None")
    with_methods("tokenizer", tokenizer, "encode(text)", "decode(token_ids)", hint="give the model's, loaded")
    instance_of("sampling", sampling, Sampling)
    instance_of("drafting", drafting, Drafting)


def check_ways(streamer: Any, **flags: Any) -> None:
    """Raise a ValueError for what is no streamer, and for flags that are neither True nor False."""
    with_methods("streamer", streamer, "put(token_ids)", "end()")
    for name, value in flags.items():
        flag(name, value)
