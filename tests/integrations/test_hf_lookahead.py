"""Lookahead and logit recycling write what plain decoding writes, in fewer forwards (cases 21, 23, 25)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import support  # noqa: E402

from zerodraft.lookup.drafter import Drafter  # noqa: E402
from zerodraft.lookup.lookahead.lookahead import Lookahead  # noqa: E402
from zerodraft.lookup.policy import DraftPolicy  # noqa: E402

NAMES = ("llama", "qwen3", "mistral", "gemma3", "gpt2")  # mistral and gemma3 with windows of 8
NEW = 400


def drafters():
    small = Lookahead(window_size=5, ngram_size=4, guess_set_size=6)
    return {
        "lookahead": (small, {}),
        "recycle": (Drafter(recycle=True, policy=DraftPolicy(max_draft_tokens=24)), {}),
        "merged": (Drafter(recycle=True, policy=DraftPolicy(max_draft_tokens=24)), {"lookahead": small}),
    }


@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", NAMES)
def test_four_hundred_tokens_as_plain(name, do_sample):
    model, ids = support.tiny(name), support.prompt(4, 20)
    options = {"max_new_tokens": NEW, "do_sample": do_sample, "top_k": 5}
    expected = support.plain(model, ids, 3, **options)
    state = torch.get_rng_state()
    for kind, (drafter, settings) in drafters().items():
        got, stats = support.ours(model, ids, drafter, 3, settings, **options)
        assert torch.equal(got, expected), kind
        assert torch.equal(torch.get_rng_state(), state), kind
        assert stats.num_emitted_tokens == NEW
        assert stats.num_decode_forwards < NEW - 1, kind
        sources = stats.accepted_by_source
        assert sources["window"] if kind == "lookahead" else sources["recycled"]


@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_batch_equal_their_own_runs(name, do_sample):
    model = support.tiny(name)
    rows = [support.prompt(seed, length)[0] for seed, length in ((1, 5), (2, 19), (3, 11))]
    ids = torch.stack([torch.cat([torch.zeros(19 - len(row), dtype=torch.long), row]) for row in rows])
    mask = (torch.arange(19)[None] >= torch.tensor([[19 - len(row)] for row in rows])).long()
    options = {"max_new_tokens": NEW, "do_sample": do_sample, "top_k": 5}
    alone = [support.plain(model, row[None], seed, **options)[0, len(row) :] for seed, row in enumerate(rows)]
    for kind, (drafter, settings) in drafters().items():
        seeds = {"seeds": [0, 1, 2]} if do_sample else {}
        got, stats = support.ours(model, ids, drafter, None, settings, attention_mask=mask, **options, **seeds)
        for row, expected in zip(got[:, 19:], alone):
            assert torch.equal(row, expected), kind
        assert stats.num_decode_forwards < NEW - 1


def test_the_same_object_again_and_again():
    """P, P, Q, P: nothing of one request reaches another (case 21)."""
    model, p, q = support.tiny("llama"), support.prompt(5, 16), support.prompt(6, 9)
    for kind, (drafter, settings) in drafters().items():
        seen = []
        for ids in (p, p, q, p):
            got, stats = support.ours(model, ids, drafter, settings=settings, max_new_tokens=80)
            assert torch.equal(got, support.plain(model, ids, max_new_tokens=80)), kind
            seen.append((stats.num_decode_forwards, stats.num_positions, dict(stats.accepted_by_source)))
        assert seen[0] == seen[1] == seen[3], kind
        assert seen[2] != seen[0]


@pytest.mark.parametrize(("window", "ngram", "guesses"), [(60, 8, 60), (1, 2, 1), (256, 32, 256), (15, 5, 1)])
def test_extreme_settings_against_a_short_prompt(window, ngram, guesses):
    model, ids = support.tiny("llama"), support.prompt(7, 3)
    lookahead = Lookahead(window_size=window, ngram_size=ngram, guess_set_size=guesses)
    expected = support.plain(model, ids, max_new_tokens=60)
    for drafter, settings in ((lookahead, {}), (None, {"lookahead": lookahead})):
        got, stats = support.ours(model, ids, drafter, settings=settings, max_new_tokens=60)
        assert torch.equal(got, expected)
        assert stats.num_window_nodes > 0 or settings or window == 1  # one column of one level is the root itself


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_up_to_the_last_position_of_the_context(name):
    """Five tokens before the context's end a window reaches beyond it: its nodes are left out (case 21)."""
    model = support.tiny(name)
    ids = support.prompt(8, model.config.max_position_embeddings - 5)
    expected = support.plain(model, ids, max_new_tokens=5)
    for kind, (drafter, settings) in drafters().items():
        got, _ = support.ours(model, ids, drafter, settings=settings, max_new_tokens=5)
        assert torch.equal(got, expected), kind


def test_end_of_text_and_processors_with_windows_present():
    """EOS in mid-block, a repetition penalty and a streamer's order, while window nodes stand in the forward."""
    model, ids = support.tiny("qwen3"), support.prompt(9, 15)
    free = support.plain(model, ids, max_new_tokens=60)[0].tolist()
    for options in (
        {"eos_token_id": free[40], "pad_token_id": 0},
        {"repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 3},
        {"min_new_tokens": 20, "eos_token_id": free[18], "pad_token_id": 0},
    ):
        expected = support.plain(model, ids, max_new_tokens=60, **options)
        for kind, (drafter, settings) in drafters().items():
            got, stats = support.ours(model, ids, drafter, settings=settings, max_new_tokens=60, **options)
            assert torch.equal(got, expected), (kind, options)
            if "eos_token_id" in options:
                assert stats.num_emitted_tokens == expected.shape[1] - 15


def test_sampling_is_exact_with_window_nodes_present():
    """A scripted draft with and without window nodes beside it gives the same tokens and the same noise."""
    model, ids = support.tiny("llama"), support.prompt(2)
    options = {"max_new_tokens": 50, "do_sample": True, "temperature": 1.4}
    for seed in range(20):
        expected = support.plain(model, ids, seed, **options)
        got, stats = support.ours(model, ids, Lookahead(4, 3, 4), seed, **options)
        assert torch.equal(got, expected)
        assert stats.num_window_nodes > 0


def test_a_merged_draft_says_where_its_tokens_came_from():
    model, ids = support.tiny("llama"), support.prompt(10, 30)
    text = support.plain(model, ids, max_new_tokens=120)
    drafter, settings = drafters()["merged"]
    got, stats = support.ours(model, ids, drafter, settings=settings, max_new_tokens=120)
    assert torch.equal(got, text)
    assert sum(stats.accepted_by_source.values()) == stats.num_accepted_tokens
    assert stats.num_decode_forwards < 119
