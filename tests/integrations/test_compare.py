"""The comparison counts what really ran: forwards and positions by a hook, differences by the model's own logits."""

from __future__ import annotations

from typing import Any

import pytest

import zerodraft
from zerodraft.integrations.pipelines import compare
from zerodraft.integrations.pipelines.call import Call
from zerodraft.integrations.pipelines.compare import (
    PLAIN,
    PROMPT_LOOKUP,
    ZERODRAFT,
    Comparison,
    Difference,
    first_difference,
)
from zerodraft.integrations.pipelines.editing import Edit
from zerodraft.integrations.pipelines.settings import Sampling

CODE = "def area(width, height):\n    return width * height\n\n\nprint(area(3, 4))\n"
NEW = CODE.replace("width", "breadth")


@pytest.fixture
def comparison(scripted: Any, tokenizer: Any) -> Comparison:
    call = Edit.of(scripted(f"{NEW}````"), tokenizer, CODE, "Rename.").call
    return compare.compare_ways(call)


def test_plain_decoding_does_one_forward_per_token(comparison: Comparison) -> None:
    plain = comparison[PLAIN]
    assert plain.num_forwards == plain.num_tokens == len(NEW) + 5
    assert plain.num_draft_tokens == 0
    assert plain.acceptance is None
    assert plain.tokens_per_forward == 1.0
    assert comparison.speedup(PLAIN) == 1.0


def test_prompt_lookup_really_is_prompt_lookup(comparison: Comparison) -> None:
    way = comparison[PROMPT_LOOKUP]
    assert way.num_forwards < way.num_tokens
    assert way.num_draft_tokens > 0
    assert way.lookup_us_per_token is None


def test_zerodrafts_counts_are_its_statistics(comparison: Comparison) -> None:
    way = comparison.zerodraft
    stats = way.written.stats
    assert way.num_forwards == stats.num_prefill_forwards + stats.num_decode_forwards < way.num_tokens
    assert way.num_draft_tokens == stats.num_draft_tokens > 0
    assert way.tokens_per_forward == stats.tokens_per_forward
    assert way.acceptance == pytest.approx(stats.draft_acceptance_rate)
    assert way.lookup_us_per_token is not None
    assert way.lookup_us_per_token > 0


def test_all_three_write_the_same(comparison: Comparison) -> None:
    assert comparison.differences == {PLAIN: None, PROMPT_LOOKUP: None, ZERODRAFT: None}
    assert [comparison.verdict(way.name) for way in comparison.ways] == ["reference", "identical", "identical"]


def test_the_other_ways_go_past_what_is_attached(scripted: Any, tokenizer: Any) -> None:
    class Counting(zerodraft.Drafter):
        num_sessions = 0

        def begin(self, *args: Any, **options: Any) -> Any:
            Counting.num_sessions += 1
            return super().begin(*args, **options)

    model = zerodraft.attach(scripted(f"{NEW}```"), Counting())
    call = Edit.of(model, tokenizer, CODE, "Rename.").call
    result = compare.compare_ways(call)
    assert Counting.num_sessions == 2, "the short run and the measured one"
    assert result[PLAIN].num_forwards == result[PLAIN].num_tokens
    assert result[PROMPT_LOOKUP].num_draft_tokens != result[ZERODRAFT].num_draft_tokens
    assert hasattr(model.generate, "stats")


def test_the_gap_is_the_models_own(tiny_model: Any) -> None:
    import torch

    prompt = [5, 9, 70, 33, 9]
    call = Call(tiny_model, prompt, 12)
    out = tiny_model.generate(
        torch.tensor([prompt]), max_new_tokens=12, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    plain = tuple(out.sequences[0, 5:].tolist())
    for at in (0, 7):
        other = (*plain[:at], (plain[at] + 1) % 200, *plain[at + 1 :])
        difference = first_difference(call, plain, other)
        assert difference is not None
        assert difference.at == at
        best = out.logits[at][0].topk(2).values
        assert difference.gap == pytest.approx(float(best[0] - best[1]), abs=1e-5)
    assert first_difference(call, plain, plain) is None
    assert first_difference(call, plain, (*plain, 4)) == Difference(len(plain), None)
    assert first_difference(call, plain, plain[:-1]) == Difference(len(plain) - 1, None)


def test_verdicts_name_the_difference(comparison: Comparison) -> None:
    def verdict(difference: Difference | None) -> str:
        return Comparison(comparison.ways, comparison.differences | {ZERODRAFT: difference}).verdict(ZERODRAFT)

    assert verdict(Difference(7, 0.00123)) == "differs at token 7 (top-2 gap 1.2e-03)"
    assert verdict(Difference(len(NEW) + 5, None)).startswith("identical, ")


def test_sampling_without_a_seed_is_compared_under_one(scripted: Any, tokenizer: Any) -> None:
    call = Edit.of(scripted(f"{NEW}````"), tokenizer, CODE, "Rename.", sampling=Sampling(0.8)).call
    assert call.sampling.seed is None
    assert compare.compare_ways(call).verdict(ZERODRAFT) == "identical"
