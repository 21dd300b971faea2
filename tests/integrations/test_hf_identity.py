"""Ours equals plain generation, token for token and generator state for generator state, in fewer forwards."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import support  # noqa: E402

DRAFTERS = {
    "oracle": support.oracle,
    "adversary": support.adversary,
    "noise": lambda text: support.noise(len(text)),
    "silent": lambda text: support.silent(),
    "bushy": lambda text: support.bushy(text, windows=True),
}
FIFTY_SEEDS = range(50)


@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
def test_fifty_seeds(name, do_sample):
    """50 seeds × 60 tokens × every kind of drafter: same tokens, same generator state afterwards."""
    model = support.tiny(name)
    forwards = dict.fromkeys(DRAFTERS, 0)
    for seed in FIFTY_SEEDS:
        ids = support.prompt(seed)
        options = {"max_new_tokens": 60, "do_sample": do_sample}
        expected = support.plain(model, ids, seed, **options)
        state = torch.get_rng_state()
        for kind, make in DRAFTERS.items():
            if kind == "silent" and seed % 5:
                continue
            got, stats = support.ours(model, ids, make(expected[0]), seed, **options)
            assert torch.equal(got, expected), (kind, seed)
            assert torch.equal(torch.get_rng_state(), state), (kind, seed)
            forwards[kind] += stats.num_decode_forwards
    tokens = 59 * len(FIFTY_SEEDS)
    assert forwards["oracle"] == 6 * len(FIFTY_SEEDS)
    assert forwards["adversary"] < tokens
    assert forwards["bushy"] < tokens
    assert forwards["silent"] == tokens // 5


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        (name, attention)
        for name in support.MODEL_NAMES
        for attention in ("sdpa", "eager")
        if attention == "eager" or name not in support.EAGER_ONLY
    ],
)
def test_every_model_family(name, attention):
    """Sliding windows of 8 are crossed several times by drafts of 1, 7, 8, 9 and 20 tokens, with rejections."""
    model = support.tiny(name, attention)
    ids = support.prompt(3, length=11)
    for do_sample in (False, True):
        options = {"max_new_tokens": 40, "do_sample": do_sample, "top_k": 20}
        expected = support.plain(model, ids, 5, **options)
        for width in (1, 7, 8, 9, 20):
            for make in (support.oracle, support.adversary):
                got, stats = support.ours(model, ids, make(expected[0], width), 5, **options)
                assert torch.equal(got, expected), (width, make.__name__)
                if make is support.oracle or width > 1:
                    assert stats.num_decode_forwards < 39
        got, stats = support.ours(model, ids, support.bushy(expected[0], width, 4), 5, **options)
        assert torch.equal(got, expected)
        assert stats.num_decode_forwards < 39


def test_the_own_drafter_copies_from_prompt_and_prediction():
    model = support.tiny("llama")
    ids = support.prompt(1, length=30)
    expected = support.plain(model, ids, max_new_tokens=80)
    prediction = expected[0, 30:].tolist()
    for given in (prediction, torch.tensor(prediction), [prediction]):
        got, stats = support.ours(model, ids, max_new_tokens=80, prediction_ids=given)
        assert torch.equal(got, expected)
        assert stats.num_decode_forwards < 40
        assert stats.accepted_by_source["prediction"] > 0


@pytest.mark.parametrize("max_new_tokens", range(1, 31))
def test_every_length_and_draft_length(max_new_tokens):
    """Exactly that many tokens, and every count agrees (cases 12 and 20)."""
    model = support.tiny("llama")
    ids = support.prompt(2, length=9)
    text = support.plain(model, ids, max_new_tokens=40)[0]
    expected = text[: 9 + max_new_tokens][None]
    for width in range(1, 21):
        got, stats = support.ours(model, ids, support.oracle(text, width), max_new_tokens=max_new_tokens)
        assert torch.equal(got, expected)
        assert stats.num_emitted_tokens == max_new_tokens
        assert stats.num_prefill_forwards == stats.num_rows == 1
        # all drafts are right: a step emits width + 1 tokens, the last one is shortened to leave room for its bonus
        assert stats.num_decode_forwards == -(-(max_new_tokens - 1) // (width + 1))
        assert stats.num_accepted_tokens == stats.num_draft_tokens == max_new_tokens - 1 - stats.num_decode_forwards
        assert stats.num_drafts + stats.num_empty_drafts == stats.num_row_steps == stats.num_decode_forwards


def test_statistics_of_a_scripted_run_are_exact():
    """Drafted, accepted, bonus, steps and emitted of a run whose every draft is known (case 20)."""
    from zerodraft.lookup.draft import Draft

    model = support.tiny("llama")
    ids = support.prompt(2, length=9)
    text = support.plain(model, ids, max_new_tokens=12)[0].tolist()
    wrong = (text[12] + 1) % support.VOCAB
    script = {
        10: Draft.chain(text[10:12]),  # both accepted, bonus text[12]
        13: Draft.chain([text[13], (text[14] + 1) % support.VOCAB, 5]),  # one of three accepted, bonus text[14]
        15: Draft.empty(),  # plain step: text[15]
        16: Draft.tree([wrong if wrong != text[16] else wrong + 1, text[16], text[17]], [-1, -1, 1]),  # 2 of 3
        19: Draft.chain([text[19]]),  # accepted, bonus text[20]: the last token
    }
    drafter = support.Scripted(lambda at, most, deep: script[at])
    got, stats = support.ours(model, ids, drafter, max_new_tokens=12)
    assert got[0].tolist() == text
    assert (stats.num_emitted_tokens, stats.num_decode_forwards, stats.num_prefill_forwards) == (12, 5, 1)
    assert (stats.num_drafts, stats.num_empty_drafts) == (4, 1)
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (9, 6)
    assert stats.num_positions == 3 + 4 + 1 + 4 + 2
    assert dict(stats.drafted_by_depth) == {1: 5, 2: 3, 3: 1}
    assert dict(stats.accepted_by_depth) == {1: 4, 2: 2}
    assert (stats.num_cuts, stats.num_stopped_on_accepted) == (1, 0)
    assert stats.tokens_per_forward == pytest.approx(11 / 5)
    assert stats.mean_acceptance_length == pytest.approx(1 + 6 / 4)
    assert stats.draft_acceptance_rate == pytest.approx(6 / 9)
    assert [outcome.stop for _, outcome in drafter.log] == ["full", "full", "rejected", "full", "full", "length"]


def test_a_session_that_asks_gets_the_likeliest_tokens_everywhere():
    """``Outcome.topk``: after the root and after every node, rejected ones and the prefill's last position included."""
    model, ids = support.tiny("llama"), support.prompt(2)
    text = support.plain(model, ids, max_new_tokens=20)[0]
    drafter = support.adversary(text, 5)
    begin = drafter.begin
    drafter.begin = lambda *given: _with_topk(begin(*given))
    got, stats = support.ours(model, ids, drafter, max_new_tokens=20)
    assert got[0].tolist() == text.tolist()
    assert stats.num_decode_forwards < 19
    at = 12
    for draft, outcome in drafter.log:
        assert outcome.topk.shape == (1 + len(draft), 4)
        with torch.no_grad():
            alone = model(torch.tensor([[*text[:at].tolist(), *draft.token_ids.tolist()]])).logits[0, at - 1 :]
        assert outcome.topk.tolist() == alone.topk(4).indices.tolist()
        at += len(outcome.new_ids)


def _with_topk(session):
    session.num_topk = 4
    return session


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
def test_half_precision_differs_at_ties_only(name, dtype):
    """At the first difference plain's best two logits are closer than the dtype can tell apart (case 17)."""
    import copy

    model = copy.deepcopy(support.tiny(name)).to(dtype)
    forwards = differences = 0
    for seed in range(12):
        ids = support.prompt(seed)
        options = {"max_new_tokens": 40, "return_dict_in_generate": True, "output_logits": True}
        expected = support.plain(model, ids, **options)
        got, stats = support.ours(model, ids, support.oracle(expected.sequences[0], 7), max_new_tokens=40)
        forwards += stats.num_decode_forwards
        differs = (got[0] != expected.sequences[0]).nonzero()
        if len(differs):
            differences += 1
            logits = expected.logits[int(differs[0]) - 12][0]
            first, second = logits.topk(2).values.tolist()
            assert first - second <= 4 * torch.finfo(dtype).eps * float(logits.abs().max()), (seed, first, second)
    assert forwards < 0.8 * 12 * 39
    assert differences < 12
