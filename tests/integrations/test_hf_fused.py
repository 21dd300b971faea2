"""Walking all rows at once, as on CUDA, gives what the lazy walk gives: text, statistics and generator states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import Scripted, adversary, bushy, noise, oracle, ours, plain, prompt, silent, tiny
from transformers import LogitsProcessor, LogitsProcessorList

from zerodraft.integrations.hf import decode, fused
from zerodraft.lookup.draft import Draft


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Serve CPU tensors too; records for every step whether the rows were walked together."""
    seen: list[bool] = []
    original = fused.walk_together

    def recorded(*args: Any) -> Any:
        done = original(*args)
        seen.append(done is not None)
        return done

    monkeypatch.setattr(fused, "serves", lambda logits: True)
    monkeypatch.setattr(decode, "walk_together", recorded)
    return seen


SAMPLING = [
    {"top_k": 0},
    {"top_k": 20, "temperature": 1.3},
    {"top_p": 0.8, "top_k": 0},
    {"min_p": 0.1, "temperature": 0.7, "top_k": 0},
]


@pytest.mark.parametrize("options", [{}, *({"do_sample": True} | sampling for sampling in SAMPLING)], ids=str)
def test_the_same_text_and_generator_state_as_plain(calls: list[bool], options: dict[str, Any]) -> None:
    model, ids = tiny("llama"), prompt()
    options = {"max_new_tokens": 30, **options}
    for seed in range(4):
        expected = plain(model, ids, seed=seed, **options)
        state = torch.get_rng_state()
        text = expected[0]
        for drafter in (oracle(text), adversary(text), noise(2), bushy(text, windows=True), silent(), None):
            got, _ = ours(model, ids, drafter, seed=seed, **options)
            assert torch.equal(got, expected)
            assert torch.equal(torch.get_rng_state(), state)
    assert calls
    assert all(calls)


@pytest.mark.parametrize("sample", [False, True])
def test_outcomes_are_those_of_the_lazy_walk(calls: list[bool], monkeypatch: pytest.MonkeyPatch, sample: bool) -> None:
    model, ids = tiny("llama"), prompt()
    free = plain(model, ids, max_new_tokens=30, seed=1, do_sample=sample, top_k=0)
    eos = [int(free[0, 30])]  # ends within a draft for some drafters, on the bonus for others
    options = {"max_new_tokens": 30, "do_sample": sample, "top_k": 0, "eos_token_id": eos, "pad_token_id": 0}

    def log(make: Any, together: bool) -> list[Any]:
        monkeypatch.setattr(fused, "serves", lambda logits: together)
        drafter = make()
        got, stats = ours(model, ids, drafter, seed=1, **options)
        outcomes = [(o.path, o.new_ids, o.stop) for _, o in drafter.log]
        return [got.tolist(), outcomes, stats.num_accepted_tokens, stats.num_decode_forwards]

    def window_only() -> Any:
        return Scripted(lambda at, most, deep: Draft.tree([6], [-1], verify=[False]))

    for make in (
        lambda: oracle(free[0], 4),
        lambda: adversary(free[0]),
        lambda: bushy(free[0], windows=True),
        silent,
        window_only,
    ):
        assert log(make, True) == log(make, False)
    assert {True, False} == set(calls)


def test_a_batch_is_walked_together(calls: list[bool]) -> None:
    model = tiny("llama")
    ids = torch.cat([prompt(seed) for seed in range(3)])
    options = {"max_new_tokens": 25, "do_sample": True, "top_k": 0}
    got, _ = ours(model, ids, noise(1), seeds=[5, 6, 7], **options)
    assert all(calls)
    calls.clear()
    for row in range(3):
        alone, _ = ours(model, ids[row : row + 1], noise(1), seeds=[5 + row], **options)
        assert got[row].tolist() == alone[0].tolist()


def test_a_streamer_gets_every_token(calls: list[bool]) -> None:
    class Streamer:
        def __init__(self) -> None:
            self.got: list[int] = []
            self.ended = False

        def put(self, value: torch.Tensor) -> None:
            self.got += value.reshape(-1).tolist()

        def end(self) -> None:
            self.ended = True

    model, ids, streamer = tiny("llama"), prompt(), Streamer()
    expected = plain(model, ids, max_new_tokens=20)
    ours(model, ids, oracle(expected[0]), max_new_tokens=20, streamer=streamer)
    assert all(calls)
    assert streamer.got == expected[0].tolist()
    assert streamer.ended


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.3},
        {"return_dict_in_generate": True, "output_scores": True},
        {"max_time": 1000.0},
        {"logits_processor": "own"},
    ],
    ids=str,
)
def test_what_needs_history_is_walked_lazily(calls: list[bool], options: dict[str, Any]) -> None:
    class Own(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return scores

    if "logits_processor" in options:
        options = {"logits_processor": LogitsProcessorList([Own()])}
    ours(tiny("llama"), prompt(), noise(1), max_new_tokens=10, **options)
    assert calls
    assert not any(calls)


def test_a_device_whose_draws_cannot_be_foreseen_is_walked_lazily(
    calls: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fused.draws_like_multinomial(torch.device("cpu"))
    monkeypatch.setattr(fused, "draws_like_multinomial", lambda device: False)
    ours(tiny("llama"), prompt(), noise(1), max_new_tokens=10, do_sample=True)
    assert not any(calls)
    ours(tiny("llama"), prompt(), noise(1), max_new_tokens=10)
    assert calls[-1]


def test_deep_drafts_of_sampled_text_are_walked_lazily(calls: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "MAX_NOISE_ROWS", 5)
    model, ids = tiny("llama"), prompt()
    for sample in (False, True):
        expected = plain(model, ids, seed=2, max_new_tokens=20, do_sample=sample)
        got, _ = ours(model, ids, oracle(expected[0], 5), seed=2, max_new_tokens=20, do_sample=sample)
        assert torch.equal(got, expected)
        assert all(calls) == (not sample)


def test_cpu_rows_are_walked_lazily() -> None:
    assert not fused.serves(torch.zeros(1))
