"""zerodraft: language models write faster, without changing a word of what they write.

A model-free draft engine for speculative decoding. Importing this package loads neither numba, torch nor transformers:
public names are resolved on first use (PEP 562), each from the one module that defines it.

>>> import zerodraft
>>> zerodraft.Draft.chain([7, 8, 9]).parents.tolist()
[-1, 0, 1]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerodraft.integrations.hf.attach import attach, detach
    from zerodraft.integrations.hf.cost_measure import measure_cost
    from zerodraft.integrations.hf.speculation import speculate
    from zerodraft.integrations.hf.support import Unsupported
    from zerodraft.integrations.memories import open_memory
    from zerodraft.integrations.pipelines.editing import EditError, edit_text
    from zerodraft.integrations.pipelines.generating import generate_text
    from zerodraft.integrations.pipelines.settings import Drafting, Sampling
    from zerodraft.integrations.pipelines.summarizing import summarize_text, summarize_texts
    from zerodraft.lookup.copy.ngram_index import NgramIndex
    from zerodraft.lookup.cost import CostCurve
    from zerodraft.lookup.draft import Draft, Outcome
    from zerodraft.lookup.drafter import Drafter, DraftSession
    from zerodraft.lookup.lookahead.lookahead import Lookahead
    from zerodraft.lookup.measure.stats import GenerationStats
    from zerodraft.lookup.memory.draft_memory import DraftMemory
    from zerodraft.lookup.memory.segment_file import MemoryFileError
    from zerodraft.lookup.policy import DraftPolicy
    from zerodraft.lookup.recycle.token_recycler import TokenRecycler
    from zerodraft.lookup.runtime.warm_up import warm_up
    from zerodraft.lookup.sources.phrases import PhraseBook
    from zerodraft.lookup.suffix.suffix_tree import SuffixTree

__version__ = "0.1.0"

_HOME_OF = {
    "CostCurve": "zerodraft.lookup.cost",
    "Draft": "zerodraft.lookup.draft",
    "Outcome": "zerodraft.lookup.draft",
    "Drafter": "zerodraft.lookup.drafter",
    "DraftSession": "zerodraft.lookup.drafter",
    "DraftPolicy": "zerodraft.lookup.policy",
    "Lookahead": "zerodraft.lookup.lookahead.lookahead",
    "NgramIndex": "zerodraft.lookup.copy.ngram_index",
    "DraftMemory": "zerodraft.lookup.memory.draft_memory",
    "MemoryFileError": "zerodraft.lookup.memory.segment_file",
    "open_memory": "zerodraft.integrations.memories",
    "PhraseBook": "zerodraft.lookup.sources.phrases",
    "SuffixTree": "zerodraft.lookup.suffix.suffix_tree",
    "warm_up": "zerodraft.lookup.runtime.warm_up",
    "TokenRecycler": "zerodraft.lookup.recycle.token_recycler",
    "GenerationStats": "zerodraft.lookup.measure.stats",
    "edit_text": "zerodraft.integrations.pipelines.editing",
    "EditError": "zerodraft.integrations.pipelines.editing",
    "Drafting": "zerodraft.integrations.pipelines.settings",
    "Sampling": "zerodraft.integrations.pipelines.settings",
    "generate_text": "zerodraft.integrations.pipelines.generating",
    "attach": "zerodraft.integrations.hf.attach",
    "detach": "zerodraft.integrations.hf.attach",
    "speculate": "zerodraft.integrations.hf.speculation",
    "measure_cost": "zerodraft.integrations.hf.cost_measure",
    "Unsupported": "zerodraft.integrations.hf.support",
    "summarize_text": "zerodraft.integrations.pipelines.summarizing",
    "summarize_texts": "zerodraft.integrations.pipelines.summarizing",
}

__all__ = [
    "CostCurve",
    "Draft",
    "DraftMemory",
    "DraftPolicy",
    "DraftSession",
    "Drafter",
    "Drafting",
    "EditError",
    "GenerationStats",
    "Lookahead",
    "MemoryFileError",
    "NgramIndex",
    "Outcome",
    "PhraseBook",
    "Sampling",
    "SuffixTree",
    "TokenRecycler",
    "Unsupported",
    "attach",
    "detach",
    "edit_text",
    "generate_text",
    "measure_cost",
    "open_memory",
    "speculate",
    "summarize_text",
    "summarize_texts",
    "warm_up",
]


def __getattr__(name: str) -> Any:
    try:
        home = _HOME_OF[name]
    except KeyError:
        raise AttributeError(f"module 'zerodraft' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(home), name)
    if name == "CostCurve":
        value.measure = staticmethod(_measure)
    globals()[name] = value
    return value


def _measure(model: Any, *, refresh: bool = False, max_seconds: float = 8.0) -> CostCurve:
    """``measure_cost`` by its earlier name, ``CostCurve.measure``: the class's own room cannot time a model."""
    curve: CostCurve = __getattr__("measure_cost")(model, refresh=refresh, max_seconds=max_seconds)
    return curve


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
