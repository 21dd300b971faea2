"""Every public parameter, with wrong types and values: one clear error each, before any forward (cases 29, 47).

The parameters are read from the code, so one that is new fails here until it has a row.
"""

from __future__ import annotations

import functools
import inspect
import math
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("ahocorasick")

import support
from stand_ins import byte_tokenizer, tiny_llama

import zerodraft
from zerodraft import CostCurve, Draft, Drafter, GenerationStats, Outcome, PhraseBook, TokenRecycler
from zerodraft.lookup.sources.source import Source

# Between the files of a room: they take what the room itself made.
INTERNAL = {
    *(f"DraftMemory.{name}" for name in ("check", "view")),
    *(f"Draft.{name}" for name in ("from_block", "only")),
    "DraftSession",
    *(f"Drafter.{name}" for name in ("sources_for", "with_sources")),
    "GenerationStats.record",
    *("NgramIndex", "NgramIndex.over", "NgramIndex.reserve"),
    "SuffixTree.propose_block",
    *(f"TokenRecycler.{name}" for name in ("from_lists", "grow", "read", "update")),
}

NAN, INF = math.nan, math.inf
TOKENS = [5, "ab", None, [1, None], [1.5], [-1], [2**31], [[1, 2], [3]], np.zeros((2, 2), np.int32), object()]
GIVEN_TOKENS = [wrong for wrong in TOKENS if wrong is not None]  # None stands for none there
COUNT = ["3", 2.5, True, None, -1, 10**9, NAN, [3]]
GIVEN_COUNT = [wrong for wrong in COUNT if wrong is not None]
BOUND = ["3", 2.5, True, -1, NAN, [3]]
NUMBER = ["x", True, -1.0, NAN, INF, [1.0]]
FLAG = ["x", 1, 0, None, [True]]
NAME = [5, True, b"a", ["a"]]
POINTS = [
    5,
    "ab",
    [],
    [(1, 1.0)],
    [(1, 1.0), (1, 2.0)],
    [(2, 1.0), (3, 2.0)],
    [(1, "1"), (2, 2.0)],
    [(1, NAN), (2, 1.0)],
]
CONTEXTS = [5, "ab", (1,), (0, 5), (7, 5), (1.5, 9), (5, 5)]
PATH = [5, None, 1.5]
ARRAY = [None, 5, "ab", [1], np.zeros(2), np.zeros((1, 1), np.int32)]
COUNTER = ["x", -1, 1.5, True]
SECONDS = ["x", -1.0, NAN, True]
MODEL = [None, "gpt2", 5, object]

TEXTS = [5, None, b"ab", ["a"], "a\udc80"]
LENGTH = ["3", 2.5, True, 0, -1, [3]]
PIPELINE = {
    "model": MODEL,
    "tokenizer": [None, "gpt2", 5, object],
    "sampling": [0.7, "x", {}],
    "drafting": [True, "x", {}],
}
MEMORY = {
    "max_tokens": ["3", 2.5, True, -1, 0, 1, None, NAN],
    "min_match_len": ["3", 2.5, True, -1, 0, None, 10**9],
    "min_prob": ["x", True, -0.1, 1.5, NAN, None],
    "tokenizer": [5, ""],
}
SUMMARIES = PIPELINE | {
    "instruction": [5, "", "a\udc80"],
    "preset": [5, "sonnet", ["bullets"]],
    "max_new_tokens": [*LENGTH, None, 10**6],
    "max_part_tokens": LENGTH,
    "batch_size": [*LENGTH, None],
    "progress": [5, "x"],
}

ROOT = support.Path(__file__).parent.parent
WRONG: dict[str, dict[str, list[Any]]] = {
    "CostCurve": {
        "points": [*POINTS, None],
        "long_points": [wrong for wrong in POINTS if wrong != []],
        "contexts": CONTEXTS,
        "row_cost": NUMBER,
    },
    "CostCurve.cost": {"positions": ["x", -1, NAN, True], "context": ["x", -1, NAN]},
    "CostCurve.table": {"positions": ["x", -1, 2.5, True], "context": ["x", -1, NAN]},
    "CostCurve.shared_by": {"num_rows": ["x", 0, 1.5, None]},
    "CostCurve.measure": {"model": MODEL, "refresh": FLAG, "max_seconds": ["x", 0.0, -1.0, NAN, None]},
    "measure_cost": {"model": MODEL, "refresh": FLAG, "max_seconds": ["x", 0.0, -1.0, NAN, None]},
    "CostCurve.load": {"file": [*PATH, "", "/nowhere"], "name": [5, None, "unknown"]},
    "CostCurve.from_dict": {"entry": [5, None, {}, {"points": 3}, {"points": [[1, 1.0], [2, 2.0]], "row_cost": "x"}]},
    "Draft": {
        name: [*ARRAY, *([np.zeros(3, np.int64)] if name != "probs" else [np.zeros(3)])]
        for name in ("token_ids", "parents", "probs", "match_len", "source", "origin", "verify")
    },
    "Draft.chain": {"token_ids": TOKENS, "source": [-1, 99, "x", 1.5, None]},
    "Draft.tree": {
        "token_ids": TOKENS,
        "parents": [5, [0, 0, 1], [-1, 5, 0], [-1.5, 0.0, 1.0], ["x"] * 3, [-1, 0]],
        "source": [-1, 99, "x", 1.5, None],
        "verify": [5, [1, 1, 1], [True], ["x"] * 3, [False, True, True]],
    },
    "DraftPolicy": {
        "cost": [None, "dear", 3.0, [(1, 1.0), (2, 2.0)]],
        "max_draft_tokens": [*COUNT, 0],
        "max_batch_tokens": GIVEN_COUNT,
        "max_branches": [*COUNT, 0],
        "prompt_lookup_min": [*COUNT, 0, 600],
        "prompt_lookup_max": [*COUNT, 0],
    },
    "DraftPolicy.tables": {"num_rows": COUNT, "context": BOUND},
    "DraftSession.propose": {"max_tokens": [*BOUND, None], "max_depth": BOUND, "num_rows": ["x", 0, 1.5, None]},
    "DraftSession.commit": {"draft": [None, 5, [1, 2]], "outcome": [None, 5, (1, 2)]},
    "DraftSession.finish": {"remember": ["x", 1, 0, None, "input", True, "both"]},
    "Drafter": {
        "policy": [3, "x", CostCurve([(1, 1.0), (2, 2.0)])],
        "memory": [3, "directory", True],
        "phrases": [3, [[1, 2, 3, 4]], "x"],
        "recycle": ["x", 1, 0, None, [True]],
        "suffix_tree": FLAG,
        "sources": [3, "x", None, [3], [None], zerodraft.Drafter, {1: 2}],
    },
    "Drafter.with_policy": {"policy": [None, 3, "x"]},
    "Drafter.begin": {"prompt_ids": TOKENS, "prediction_ids": GIVEN_TOKENS, "namespace": NAME},
    "Drafter.recycler": {"namespace": NAME},
    "Drafter.save": {"directory": [5, "somewhere"]},
    "Drafter.clear": {"namespace": NAME},
    "Drafter.propose_batch": {
        "sessions": [None, 5, "ab"],
        "max_tokens": [*BOUND[:-1], None, [1, 2, 3]],
        "max_depth": [*BOUND[:-1], [1, 2, 3], ["x"]],
    },
    "GenerationStats": {
        **{name: COUNTER for name in inspect.signature(GenerationStats).parameters if name.startswith("num_")},
        **{name: SECONDS for name in inspect.signature(GenerationStats).parameters if name.endswith("_seconds")},
        **{name: [None, 5, {}] for name in inspect.signature(GenerationStats).parameters if "ed_by_" in name},
        "finish_reasons": [None, "eos", ["end"], [None], 5],
        "stand_down_reason": [5, True],
        "trace": ["x", True, 5],
    },
    "GenerationStats.merge": {"other": [None, 5, {}]},
    "Lookahead": {
        "window_size": [*COUNT, 0],
        "ngram_size": [*COUNT, 1],
        "guess_set_size": [*COUNT, 0],
        "pool_from_prompt": FLAG,
        "max_pool_keys": [*COUNT, 0],
    },
    "Lookahead.begin": {"prompt_ids": TOKENS, "prediction_ids": GIVEN_TOKENS, "namespace": NAME},
    "NgramIndex.extend": {"ids": TOKENS},
    "NgramIndex.match": {"limit": ["3", 2.5, True, None, 0], "max_len": ["3", 2.5, True, None, 0]},
    "Outcome": {
        "path": [5, "ab", [1.5], None, [-1]],
        "new_ids": [5, "ab", [1.5], None, [-1], [2**31]],
        "num_accepted": [3, "x", None, 1.5],
        "stop": ["because", None, 5],
        "topk": [5, "x", [1, 2], np.zeros(3, np.int32)],
    },
    "PhraseBook": {"phrases": [5, None, "abcdef", [1, 2, 3, 4], [[1, 2]], [["x"] * 5]], "min_match": [*COUNT, 0]},
    "PhraseBook.from_texts": {
        "tokenizer": [None, 5],
        "texts": [5, None, "a text", [5], [None]],
        "min_match": [*COUNT, 0],
    },
    "PhraseBook.begin": {"context": TOKENS},
    "PhraseBook.propose": {"context": TOKENS, "max_tokens": [*BOUND, None]},
    "PhraseBook.save": {"path": PATH},
    "PhraseBook.load": {"path": [*PATH, __file__]},
    "SuffixTree": {"token_ids": TOKENS},
    "SuffixTree.extend": {"token_ids": TOKENS},
    "SuffixTree.append": {"token_id": ["3", 2.5, None, -1, 2**31, [3]]},
    "SuffixTree.count": {"token_ids": [*TOKENS, []]},
    "SuffixTree.propose": {
        "max_tokens": [*BOUND, None, 10**9],
        "max_depth": BOUND,
        "max_branches": [*COUNT, 0],
        "min_prob": ["x", -0.1, 1.1, NAN, True, None],
        "source": [-1, 99, "x", 1.5, None],
    },
    "TokenRecycler": {"max_keys": [*COUNT, 3]},
    "TokenRecycler.propose": {
        "context": [5, None, (1,), (1, 2, 3), ("a", "b"), (1.5, 2), (-2, 3)],
        "max_tokens": [*BOUND, None],
        "max_depth": BOUND,
    },
    "TokenRecycler.successors": {"before": ["x", 1.5, None, -2], "last": ["x", 1.5, None, -1]},
    "attach": {
        "model": MODEL,
        "drafter": [5, "x", Drafter, zerodraft.DraftPolicy()],
        "policy": [3, "auto", {}],
        "lookahead": [3, True, "x", Drafter()],
        "tie_guard": [1, True, None, "maybe", "on"],
        "compile": [1, True, None, "maybe"],
        "trace": FLAG,
    },
    "detach": {"model": MODEL},
    "speculate": {
        "drafter": [5, "x", Drafter, zerodraft.DraftPolicy()],
        "policy": [3, "auto", {}],
        "lookahead": [3, True, "x", Drafter()],
        "tie_guard": [1, True, None, "maybe", "on"],
        "compile": [1, True, None, "maybe"],
        "trace": FLAG,
        "streamer": [3, "x", object()],
        "tokenizer": [3, "x"],
        "stop_strings": [3, [3], [], "", ["a", ""], [None]],
        "on_finish": [3, "x", []],
    },
    "DraftMemory": MEMORY | {"directory": ["", 5]},
    "DraftMemory.load": MEMORY | {"directory": ["", 5, None], "verify": FLAG},
    "DraftMemory.bind_tokenizer": {"fingerprint": [5, "", None]},
    "DraftMemory.add": {"ids": GIVEN_TOKENS, "namespace": NAME, "skip_known": FLAG},
    "DraftMemory.contains": {"ids": GIVEN_TOKENS, "namespace": NAME},
    "DraftMemory.preload": {
        "texts": [5, [5], ["ab"], [[-1]]],
        "namespace": NAME,
        "skip_known": FLAG,
        "progress": [5, "x"],
    },
    "DraftMemory.evict": {"num_tokens": ["3", 2.5, True, -1, None]},
    "DraftMemory.clear": {"namespace": NAME},
    "DraftMemory.match": {"context": GIVEN_TOKENS, "namespace": NAME},
    "DraftMemory.propose": {"context": GIVEN_TOKENS, "max_tokens": ["3", 2.5, True, -1, None], "namespace": NAME},
    "DraftMemory.save": {"directory": ["", 5]},
    "Sampling": {"temperature": NUMBER, "top_p": ["x", True, 0, 1.5, NAN], "seed": ["1", 1.5, -1, 2**63, True]},
    "Drafting": {
        "drafter": [3, "x", zerodraft.DraftPolicy()],
        "draft": FLAG,
        "max_draft_tokens": BOUND,
        "namespace": NAME,
        "remember": ["x", 5, None],
        "trace": FLAG,
    },
    "edit_text": PIPELINE
    | {
        "code": [*TEXTS, "", " \n"],
        "instruction": [*TEXTS, "", " "],
        "language": [5, None, "a b", "`"],
        "max_new_tokens": LENGTH,
        "compare": FLAG,
        "allow_loss": FLAG,
        "streamer": [3, "x"],
    },
    "generate_text": PIPELINE
    | {
        "prompt": [*TEXTS, "", "long " * 2000],
        "max_new_tokens": [*LENGTH, None],
        "prediction": [wrong for wrong in TEXTS if wrong is not None],
        "raw": FLAG,
        "compare": FLAG,
        "streamer": [3, "x"],
    },
    "summarize_text": SUMMARIES | {"text": [*TEXTS, "", " "]},
    "summarize_texts": SUMMARIES | {"texts": ["a text", 5, None], "plain": FLAG},
    "open_memory": {"directory": ["", 5], "tokenizer": [5, "x"], "max_tokens": ["3", 2.5, True, -1, 0, None, NAN, [3]]},
    "warm_up": {"policy": [3, "x"]},
}


class _Tokenizer:
    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [ord(letter) for letter in text]

    def get_vocab(self) -> dict[str, int]:
        raise AssertionError("asked before stop_strings were checked")


def _target(name: str) -> Callable[..., Any]:
    """What a row calls: bound to a fresh object where it is a method."""
    owner, _, method = name.partition(".")
    if owner == "DraftSession":
        return getattr(Drafter().begin([1, 2, 3, 1, 2]), method)  # type: ignore[no-any-return]
    thing = getattr(zerodraft, owner)
    if not method:
        return thing  # type: ignore[no-any-return]
    is_static = isinstance(inspect.getattr_static(thing, method), (classmethod, staticmethod))
    return getattr(thing if is_static else thing(**_good(owner)), method)  # type: ignore[no-any-return]


@functools.cache
def _goods() -> dict[str, Callable[[], dict[str, Any]]]:
    """Arguments that are right, for those that are required."""
    three = np.zeros(3, np.int32)
    draft = {
        "token_ids": three,
        "parents": np.arange(3, dtype=np.int32) - 1,
        "probs": np.ones(3, np.float32),
        "match_len": three,
        "source": np.zeros(3, np.uint8),
        "origin": three,
        "verify": np.ones(3, np.bool_),
    }
    return {
        "CostCurve": lambda: {"points": [(1, 1.0), (2, 2.0)]},
        "CostCurve.cost": lambda: {"positions": 3},
        "CostCurve.table": lambda: {"positions": 3},
        "CostCurve.measure": lambda: {"model": support.tiny("llama")},
        "measure_cost": lambda: {"model": support.tiny("llama")},
        "CostCurve.load": lambda: {
            "file": str(ROOT / "bench/curves.json"),
            "name": "x",
        },
        "Draft": lambda: dict(draft),
        "Draft.chain": lambda: {"token_ids": [1, 2, 3]},
        "Draft.tree": lambda: {"token_ids": [1, 2, 3], "parents": [-1, 0, 1]},
        "DraftMemory.load": lambda: {"directory": _saved_memory()},
        "DraftMemory.bind_tokenizer": lambda: {"fingerprint": "a"},
        "DraftMemory.add": lambda: {"ids": [1, 2, 3]},
        "DraftMemory.contains": lambda: {"ids": [1, 2, 3]},
        "DraftMemory.preload": lambda: {"texts": [[1, 2, 3]]},
        "DraftMemory.evict": lambda: {"num_tokens": 1},
        "DraftMemory.clear": lambda: {"namespace": None},
        "DraftMemory.match": lambda: {"context": [1, 2, 3]},
        "DraftMemory.propose": lambda: {"context": [1, 2, 3], "max_tokens": 3},
        "DraftMemory.save": lambda: {"directory": tempfile.mkdtemp()},
        "DraftSession.propose": lambda: {"max_tokens": 3},
        "DraftSession.commit": lambda: {"draft": Draft.empty(), "outcome": Outcome(path=(), new_ids=(4,))},
        "Drafter.begin": lambda: {"prompt_ids": [1, 2, 3]},
        "Drafter.clear": lambda: {"namespace": None},
        "Drafter.propose_batch": lambda: {"sessions": [Drafter().begin([1, 2, 1])], "max_tokens": 3},
        "Lookahead.begin": lambda: {"prompt_ids": [1, 2, 3]},
        "NgramIndex.match": lambda: {"limit": 3},
        "Outcome": lambda: {"path": (0,), "new_ids": (5,)},
        "PhraseBook": lambda: {"phrases": [[1, 2, 3, 4]]},
        "PhraseBook.from_texts": lambda: {"tokenizer": _Tokenizer(), "texts": ["abcdef"]},
        "PhraseBook.propose": lambda: {"context": [1, 2, 3], "max_tokens": 3},
        "SuffixTree.propose": lambda: {"max_tokens": 3},
        "TokenRecycler.propose": lambda: {"context": (1, 2), "max_tokens": 3},
        "TokenRecycler.successors": lambda: {"before": 1, "last": 2},
        "attach": lambda: {"model": support.tiny("llama")},
        "edit_text": lambda: _pipeline() | {"code": "x = 1\n", "instruction": "Rename x."},
        "generate_text": lambda: _pipeline() | {"prompt": "a"},
        "summarize_text": lambda: _pipeline() | {"text": "a"},
        "summarize_texts": lambda: _pipeline() | {"texts": ["a"]},
        "open_memory": lambda: {"directory": tempfile.mkdtemp()},
    }


def _saved_memory() -> str:
    memory = zerodraft.DraftMemory(100, directory=tempfile.mkdtemp())
    memory.add([1, 2, 3])
    memory.save()
    return str(memory.directory)


def _pipeline() -> dict[str, Any]:
    return {"model": tiny_llama(), "tokenizer": byte_tokenizer()}


def _good(name: str) -> dict[str, Any]:
    return _goods().get(name, dict)()


def _public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """(name, callable) of every public function, class and public method."""
    for name in zerodraft.__all__:
        thing = getattr(zerodraft, name)
        if isinstance(thing, type) and issubclass(thing, Exception):
            continue
        yield name, thing
        if isinstance(thing, type):
            for method in dir(thing):  # those of a class above it, too
                value = inspect.getattr_static(thing, method)
                if not method.startswith("_") and callable(getattr(thing, method)) and not isinstance(value, property):
                    yield f"{name}.{method}", getattr(thing, method)


def test_every_public_parameter_has_a_row() -> None:
    found = {
        (name, parameter)
        for name, thing in _public()
        if name not in INTERNAL
        for parameter in inspect.signature(thing).parameters
        if parameter != "self"
    }
    rows = {(name, parameter) for name, columns in WRONG.items() for parameter in columns}
    assert found == rows


ROWS = [(name, parameter) for name, columns in WRONG.items() for parameter in columns]


@pytest.mark.parametrize(("name", "parameter"), ROWS, ids=[".".join(row) for row in ROWS])
def test_what_is_wrong_is_refused_in_words(name: str, parameter: str) -> None:
    model = support.tiny("llama")

    def fail(*_: Any) -> None:
        raise AssertionError("a forward ran before the refusal")

    handle = model.register_forward_pre_hook(fail)
    try:
        for wrong in WRONG[name][parameter]:
            arguments = _good(name) | {parameter: wrong}
            if name == "speculate" and parameter in ("tokenizer", "stop_strings"):
                arguments = {"tokenizer": _Tokenizer(), "stop_strings": ["a"], parameter: wrong}
            with pytest.raises((ValueError, TypeError)) as caught:
                _target(name)(**arguments)
            message = str(caught.value)
            assert "\n" not in message
            assert len(message) < 600
            assert not any(part in message for part in ("unsupported operand", "not supported between", "has no len"))
            assert not any(part in message for part in ("not iterable", "cannot unpack", "ambiguous", "numba"))
    finally:
        handle.remove()
    assert "generate" not in vars(model)


def test_right_values_pass() -> None:
    """The rows' other arguments are right, so it is the wrong one that is refused."""
    for name in WRONG:
        if name in (
            "CostCurve.measure",
            "measure_cost",
            "CostCurve.load",
            "Drafter.save",
            "attach",
            "detach",
            "edit_text",
        ):
            continue  # files, long looks, and a model that is no editor
        if not _good(name):
            continue
        _target(name)(**_good(name))


# ---------------------------------------------------------------- two values, two effects

CURVES = [CostCurve([(1, 1.0), (1000, 1.01)]), CostCurve([(1, 1.0), (2, 9.0)])]
TEXT = ([7, 8, 9, 5, 6, 7, 8, 2, 5, 6, 7, 1, 5, 6, 3, 9] * 3 + [5, 6, 7, 8])[:50]


@functools.cache
def _book() -> PhraseBook:
    return PhraseBook([[5, 6, 40, 41, 42, 43, 44]], min_match=2)


def _memory() -> Any:
    memory = zerodraft.DraftMemory(1000)
    memory.add([5, 6, 7, 8, 50, 51, 52, 53, 54])
    return memory


class Refrain(Source):
    """41, 42 behind every 8."""

    def __init__(self, prompt: Any) -> None: ...

    def propose(self, candidates: Any) -> None:
        if candidates.text[-1] == 8:
            candidates.add([41, 42], probs=[0.9, 0.8])


def _drafted(drafter: Any, num_rows: int = 1) -> list[Any]:
    """What a few steps of an invented text draft, and what they ask for."""
    sessions = [drafter.begin(TEXT) for _ in range(num_rows)]
    texts = [list(TEXT) for _ in sessions]
    seen = []
    for _ in range(40):
        if num_rows == 1:
            drafts = [session.propose(64) for session in sessions]
        else:
            drafts = drafter.propose_batch(sessions, 64)
        seen.append([(draft.token_ids.tolist(), draft.parents.tolist()) for draft in drafts])
        for row, (session, draft) in enumerate(zip(sessions, drafts)):
            num_topk = getattr(session, "num_topk", 0)
            path, new = _walked(draft, texts[row])
            topk = np.arange((1 + len(draft)) * num_topk, dtype=np.int32).reshape(1 + len(draft), num_topk) % 11
            session.commit(draft, Outcome(path=path, new_ids=new, topk=topk if num_topk else None))
            texts[row] += new
    return seen


def _walked(draft: Draft, text: list[int]) -> tuple[Any, Any]:
    """Accepted nodes and emitted tokens, where each token follows from its place alone."""
    path: list[int] = []
    new = [_token_at(len(text))]
    for node, (token, parent) in enumerate(zip(draft.token_ids.tolist(), draft.parents.tolist())):
        if draft.verify[node] and token == new[-1] and parent == (path[-1] if path else -1):
            path.append(node)
            new.append(_token_at(len(text) + len(new)))
    return path, new


def _token_at(place: int) -> int:
    """5, 6, 7, and then mostly 8."""
    return (5, 6, 7, 8 if place * 7919 % 10 < 7 else 8 + place % 3)[place % 4]


EFFECTS: dict[str, tuple[Any, Any]] = {
    "DraftPolicy.cost": tuple(CURVES),
    "DraftPolicy.max_draft_tokens": (2, 60),
    "DraftPolicy.max_batch_tokens": (0, 60),
    "DraftPolicy.max_branches": (1, 8),
    "DraftPolicy.prompt_lookup_min": (1, 9),
    "DraftPolicy.prompt_lookup_max": (1, 64),
    "Drafter.policy": (zerodraft.DraftPolicy(max_draft_tokens=2), None),
    "Drafter.memory": (None, _memory),
    "Drafter.phrases": (None, _book),
    "Drafter.recycle": (False, True),
    "Drafter.suffix_tree": (False, True),
    "Drafter.sources": ((), (Refrain,)),
    "Lookahead.window_size": (3, 9),
    "Lookahead.ngram_size": (3, 6),
    "Lookahead.guess_set_size": (1, 5),
    "Lookahead.pool_from_prompt": (False, True),
    "Lookahead.max_pool_keys": (1, 50),
}


@pytest.mark.parametrize("option", EFFECTS)
def test_two_values_of_an_option_show_two_effects(option: str) -> None:
    """Case 29: another configuration and another draft."""
    owner, name = option.split(".")
    kind = getattr(zerodraft, owner)
    values = [value() if callable(value) else value for value in EFFECTS[option]]
    made = [kind(**{name: value}) for value in values]
    for one, value in zip(made, values):
        assert getattr(one, name) == value or (option == "Drafter.policy" and value is None)
    if kind is zerodraft.DraftPolicy:
        free = {} if name == "cost" else {"cost": CURVES[0]}
        made = [Drafter(policy=kind(**{name: value}, **free)) for value in values]
    first, second = (_drafted(one) for one in made)
    assert first != second


def test_what_is_internal_exists() -> None:
    assert {name for name, _ in _public()} >= INTERNAL


def test_every_option_of_a_drafter_has_two_effects() -> None:
    options = {
        f"{owner}.{name}"
        for owner in ("DraftPolicy", "Drafter", "Lookahead")
        for name in inspect.signature(getattr(zerodraft, owner)).parameters
    }
    assert options == set(EFFECTS)


def test_a_small_recycler_forgets_what_a_large_one_keeps() -> None:
    tables = [TokenRecycler(size) for size in (4, 4096)]
    for table in tables:
        table.read(np.arange(500, dtype=np.int32))
    assert len(tables[0]) < len(tables[1])
