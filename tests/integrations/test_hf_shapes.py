"""Forwards filled up to fixed shapes: the same text, few shapes, and nothing compiled after the warm-up."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from support import adversary, bushy, noise, oracle, ours, plain, prompt, silent, tiny

import zerodraft
from zerodraft.integrations.hf.shapes import fixed_shapes
from zerodraft.kernels.tree_attention import bucket

BUCKETS = {"compile": "buckets"}


class Widths:
    """Records the shapes of a model's decode forwards."""

    def __init__(self, model: Any) -> None:
        self.shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._hook = model.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, model: Any, args: Any, kwargs: Any) -> None:
        mask = kwargs["attention_mask"]
        mask = next(iter(mask.values())) if isinstance(mask, dict) else mask
        if mask is not None:
            self.shapes.append((tuple(kwargs["input_ids"].shape), tuple(mask.shape)))

    def close(self) -> None:
        self._hook.remove()


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt2"])
@pytest.mark.parametrize("sample", [False, True])
def test_buckets_write_the_same_text(name: str, sample: bool) -> None:
    model, ids = tiny(name), prompt()
    options = {"max_new_tokens": 40, "do_sample": sample}
    expected = plain(model, ids, seed=4, **options)
    for drafter in (oracle(expected[0]), adversary(expected[0]), noise(2), bushy(expected[0]), silent(), None):
        seen = Widths(model)
        got, stats = ours(model, ids, drafter, seed=4, settings=BUCKETS, **options)
        seen.close()
        assert torch.equal(got, expected)
        assert len(seen.shapes) == stats.num_decode_forwards
        for (_, width), mask in seen.shapes:
            assert width == bucket(width)
            assert mask == (1, 1, width, 256)


def test_buckets_in_a_batch_whose_rows_end_at_different_steps() -> None:
    model = tiny("llama")
    ids = torch.cat([prompt(seed) for seed in range(3)])
    alone = [plain(model, ids[row : row + 1], max_new_tokens=30)[0] for row in range(3)]
    eos = int(alone[1][20])
    options = {"max_new_tokens": 30, "eos_token_id": eos, "pad_token_id": 0}
    expected = [plain(model, ids[row : row + 1], **options)[0] for row in range(3)]
    got, _ = ours(model, ids, noise(3), settings=BUCKETS, **options)
    for row, text in enumerate(expected):
        assert got[row, : len(text)].tolist() == text.tolist()


def test_the_cache_grows_in_powers_of_two() -> None:
    model, ids = tiny("llama"), prompt(length=200)
    expected = plain(model, ids, max_new_tokens=90)
    seen = Widths(model)
    got, _ = ours(model, ids, oracle(expected[0]), settings=BUCKETS, max_new_tokens=90)
    seen.close()
    assert torch.equal(got, expected)
    assert [columns for (_, mask) in seen.shapes for columns in mask[3:]] == sorted(
        columns for (_, mask) in seen.shapes for columns in mask[3:]
    )
    assert {mask[3] for _, mask in seen.shapes} == {256, 512}


def test_the_option_has_an_effect_and_is_checked() -> None:
    model, ids = tiny("llama"), prompt()
    _, as_it_comes = ours(model, ids, noise(5, width=5), max_new_tokens=20)
    _, filled_up = ours(model, ids, noise(5, width=5), settings=BUCKETS, max_new_tokens=20)
    assert filled_up.num_positions > as_it_comes.num_positions
    assert filled_up.num_decode_forwards == as_it_comes.num_decode_forwards
    with pytest.raises(ValueError, match=r"compile must be one of .*, got 'on'"):
        zerodraft.attach(model, compile="on")
    with pytest.raises(ValueError, match="compile must be one of"):
        zerodraft.speculate(compile="on")


def test_auto_changes_nothing_on_a_cpu() -> None:
    model, ids = tiny("llama"), prompt()
    assert fixed_shapes(model, "auto") == (False, model)
    _, off = ours(model, ids, noise(5), max_new_tokens=20)
    _, auto = ours(model, ids, noise(5), settings={"compile": "auto"}, max_new_tokens=20)
    assert auto.num_positions == off.num_positions


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_nothing_is_compiled_after_the_warm_up(name: str) -> None:
    """One graph per width on the first call, none on the next ones, whatever is drafted, however long the text."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    model, ids = copy.deepcopy(tiny(name)), prompt()
    expected = plain(model, ids, max_new_tokens=60)
    counter = CompileCounter()
    eager, compiled = model.forward, torch.compile(model.forward, backend=counter, dynamic=False)
    widths: set[int] = set()

    @functools.wraps(eager)
    def forward(**inputs: Any) -> Any:
        if inputs["attention_mask"] is None:  # the prefill has a shape of its own every time
            return eager(**inputs)
        widths.add(inputs["input_ids"].shape[1])
        return compiled(**inputs)

    model.forward = forward
    drafters = [lambda: oracle(expected[0], width=7), lambda: adversary(expected[0]), silent, lambda: noise(1)]
    for make in drafters:
        got, _ = ours(model, ids, make(), settings=BUCKETS, max_new_tokens=60)
        assert torch.equal(got, expected)
    assert {1, 8} <= widths
    after_warm_up, known = counter.frame_count, set(widths)
    assert after_warm_up >= len(widths)
    for length in (8, 15, 23):
        more = prompt(length, length)
        expected = plain(tiny(name), more, max_new_tokens=40)
        for make in drafters:
            got, _ = ours(model, more, make(), settings=BUCKETS, max_new_tokens=40)
            assert torch.equal(got, expected)
    assert widths == known
    assert counter.frame_count == after_warm_up
    torch._dynamo.reset()
