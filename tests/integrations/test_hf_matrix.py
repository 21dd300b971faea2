"""The whole space at random and the matrix of models × attention × batch × draft shape × sampling, against plain.

``make test-matrix`` runs every cell; the default run takes a covering of pairs.
"""

from __future__ import annotations

import itertools
import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import support  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

AXES = (
    support.MODEL_NAMES,
    ("sdpa", "eager"),
    (1, 3),
    ("chain", "tree"),
    ("greedy", "sampled"),
)
WHOLE = os.environ.get("ZERODRAFT_TEST_MATRIX") == "all"


def _covering():
    """Cells that show every pair of values of two axes at least once, chosen greedily; all of them on request."""
    cells = [cell for cell in itertools.product(*AXES) if cell[1] == "eager" or cell[0] not in support.EAGER_ONLY]
    if WHOLE:
        return cells
    pairs = {_pair for cell in cells for _pair in _pairs(cell)}
    chosen = []
    while pairs:
        best = max(cells, key=lambda cell: len(pairs & _pairs(cell)))
        chosen.append(best)
        pairs -= _pairs(best)
    return chosen


def _pairs(cell):
    return set(itertools.combinations(enumerate(cell), 2))


@pytest.mark.parametrize(("name", "attention", "num_rows", "shape", "mode"), _covering())
def test_matrix(name, attention, num_rows, shape, mode):
    model = support.tiny(name, attention)
    prompts = [support.prompt(seed, length) for seed, length in ((1, 14), (2, 6), (3, 9))][:num_rows]
    seeds = [31, 32, 33][:num_rows] if mode == "sampled" else None
    options = {"max_new_tokens": 24, "do_sample": mode == "sampled"}
    alone = [support.plain(model, p, seed, **options)[0] for p, seed in zip(prompts, seeds or [0] * num_rows)]
    by_prompt = {tuple(p[0].tolist()): text for p, text in zip(prompts, alone)}
    width = max(p.shape[1] for p in prompts)
    ids = torch.cat([torch.cat([p.new_zeros(1, width - p.shape[1]), p], 1) for p in prompts])
    mask = torch.cat([(torch.arange(width) >= width - p.shape[1]).long()[None] for p in prompts])

    class Maker:
        def begin(self, prompt_ids, prediction_ids=None, namespace=None):
            text = by_prompt[tuple(int(token) for token in prompt_ids)]
            drafter = support.adversary(text, 6) if shape == "chain" else support.bushy(text, windows=True)
            return drafter.begin(prompt_ids)

    got, stats = support.ours(model, ids, Maker(), attention_mask=mask, seeds=seeds, **options)
    assert [row[-24:].tolist() for row in got] == [text[-24:].tolist() for text in alone]
    assert stats.num_row_steps < 23 * num_rows


@st.composite
def _options(draw):
    """A random combination of generation options that plain generation accepts."""
    options = {"max_new_tokens": draw(st.integers(1, 32)), "do_sample": draw(st.booleans())}
    some = {
        "repetition_penalty": st.floats(0.8, 1.5),
        "no_repeat_ngram_size": st.integers(1, 3),
        "bad_words_ids": st.lists(st.lists(st.integers(3, 96), min_size=1, max_size=2), min_size=1, max_size=3),
        "suppress_tokens": st.lists(st.integers(0, 96), min_size=1, max_size=4, unique=True),
        "begin_suppress_tokens": st.lists(st.integers(0, 96), min_size=1, max_size=4, unique=True),
        "min_new_tokens": st.integers(0, 20),
        "exponential_decay_length_penalty": st.tuples(st.integers(1, 10), st.floats(1.01, 1.5)),
        "forced_eos_token_id": st.integers(3, 96),
        "renormalize_logits": st.just(True),
        "eos_token_id": st.lists(st.integers(3, 96), min_size=1, max_size=6, unique=True),
    }
    sampling = {
        "temperature": st.floats(0.5, 1.8),
        "top_k": st.integers(1, 50),
        "top_p": st.floats(0.3, 1.0),
        "min_p": st.floats(0.0, 0.5),
        "typical_p": st.floats(0.3, 0.99),
    }
    if options["do_sample"]:
        some |= sampling
    for name in draw(st.lists(st.sampled_from(sorted(some)), max_size=5, unique=True)):
        options[name] = draw(some[name])
    if "exponential_decay_length_penalty" in options:
        options.setdefault("eos_token_id", [7])
    return options


_SAVED = {"tokens": 0, "forwards": 0}


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    options=_options(),
    name=st.sampled_from(["llama", "gpt2", "gemma3", "mistral"]),
    seed=st.integers(0, 1000),
    make=st.sampled_from([support.oracle, support.adversary, support.bushy]),
)
def _random_combination(options, name, seed, make):
    model, ids = support.tiny(name), support.prompt(seed)
    expected = support.plain(model, ids, seed, **options)
    state = torch.get_rng_state()
    got, stats = support.ours(model, ids, make(expected[0]), seed, **options)
    assert torch.equal(got, expected)
    assert torch.equal(torch.get_rng_state(), state)
    assert stats.num_emitted_tokens == expected.shape[1] - 12
    _SAVED["tokens"] += stats.num_emitted_tokens
    _SAVED["forwards"] += 1 + stats.num_decode_forwards


@pytest.mark.filterwarnings("ignore:Unfeasible length")
def test_random_combinations_of_options():
    """200 combinations drawn by hypothesis, and fewer forwards than tokens over all of them."""
    _random_combination()
    assert _SAVED["forwards"] < 0.7 * _SAVED["tokens"]
