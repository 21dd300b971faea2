"""Models that keep a state of their own: chains in their own cache, put back where a draft is rejected (case 24)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import support  # noqa: E402

import zerodraft  # noqa: E402
from zerodraft.integrations.hf import states  # noqa: E402
from zerodraft.integrations.hf.selftest import chain_error  # noqa: E402
from zerodraft.lookup.draft import Draft  # noqa: E402

NEW = 40
SAMPLED = {"do_sample": True, "temperature": 0.9, "top_k": 20}
KINDS = tuple(support.OWN_STATE)


def _model(kind):
    return support.tiny_of(*support.OWN_STATE[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_text_whatever_is_drafted(kind):
    """Right drafts save forwards; wrong ones are read again beside the next token, which costs no forward."""
    model, ids = _model(kind), support.prompt(1, 24)
    expected = support.plain(model, ids, max_new_tokens=NEW)
    text = expected[0]
    forwards, replayed = {}, {}
    drafters = {
        "right": support.oracle(text),
        "wrong": support.adversary(text),
        "noise": support.noise(),
        "trees": support.bushy(text, windows=True),
        "default": None,
    }
    for name, drafter in drafters.items():
        got, stats = support.ours(model, ids, drafter, max_new_tokens=NEW)
        assert torch.equal(got, expected), name
        forwards[name], replayed[name] = stats.num_decode_forwards, stats.num_replayed_positions
        assert stats.num_emitted_tokens == stats.num_accepted_tokens + stats.num_row_steps + 1 - (
            stats.num_stopped_on_accepted
        )
    assert forwards["right"] < NEW / 6
    assert forwards["trees"] < NEW / 3
    assert forwards["wrong"] < NEW / 2
    assert replayed["wrong"] > NEW  # a state was put back, often
    assert forwards["noise"] < NEW  # never more than plain decoding
    assert replayed["right"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_text_and_the_state_of_the_generator(kind):
    model, ids = _model(kind), support.prompt(2, 20)
    expected = support.plain(model, ids, seed=5, max_new_tokens=NEW, **SAMPLED)
    state = torch.get_rng_state()
    for drafter in (support.oracle(expected[0]), support.adversary(expected[0]), support.noise(), None):
        got, _ = support.ours(model, ids, drafter, seed=5, max_new_tokens=NEW, **SAMPLED)
        assert torch.equal(got, expected)
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_is_not_put_back_is_seen_by_test_and_trial(kind, monkeypatch):
    model, ids = _model(kind), support.prompt(1, 24)
    expected = support.plain(model, ids, max_new_tokens=NEW)
    assert chain_error(model) < 3e-5
    monkeypatch.setattr(states.Snapshot, "restore", lambda self, cache: None)
    got, _ = support.ours(model, ids, support.adversary(expected[0]), max_new_tokens=NEW)
    assert not torch.equal(got, expected)
    assert chain_error(model) > 1e-3


def test_many_pending_tokens_are_read_by_a_forward_that_drafts_nothing():
    """Twenty right tokens and a wrong one, again and again: more than the bound waits to be read again."""
    model, ids = _model("gated delta net"), support.prompt(3, 24)
    expected = support.plain(model, ids, max_new_tokens=120)
    text = expected[0].tolist()

    def make(at, most, deep):
        drafted = [*text[at : at + 20], (text[min(at + 20, len(text) - 1)] + 1) % support.VOCAB]
        return Draft.chain(drafted[: min(most, deep)])

    drafter = support.Scripted(make)
    got, stats = support.ours(model, ids, drafter, max_new_tokens=120)
    assert torch.equal(got, expected)
    sizes = [len(draft) for draft, _ in drafter.log[1:]]  # the first is the prefill's
    assert sizes[:6] == [21, 0] * 3
    assert stats.num_decode_forwards <= 12


def test_a_cache_that_can_be_cropped_is_cropped():
    """Bloom makes its positions itself, but keeps keys and values only: nothing is read again."""
    model, ids = support.tiny_of("bloom", "BloomForCausalLM"), support.prompt(1, 24)
    expected = support.plain(model, ids, max_new_tokens=NEW)
    for drafter in (support.oracle(expected[0]), support.adversary(expected[0])):
        got, stats = support.ours(model, ids, drafter, max_new_tokens=NEW)
        assert torch.equal(got, expected)
        assert stats.num_replayed_positions == 0
        assert stats.num_decode_forwards < NEW / 2


@pytest.mark.parametrize("kind", KINDS)
def test_options_of_generate(kind):
    """Processors, end tokens in mid-draft, scores, streamers, padding and chunks: plain's, on this way too."""
    model, ids = _model(kind), support.prompt(4, 18)
    long = support.plain(model, ids, max_new_tokens=NEW)[0].tolist()
    padded = torch.cat([torch.zeros(1, 5, dtype=torch.long), ids], dim=1)
    calls = [
        {"eos_token_id": long[ids.shape[1] + 13]},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
        {"return_dict_in_generate": True, "output_scores": True, "output_logits": True},
        {"attention_mask": (padded > 0).long()},
        {"prefill_chunk_size": 5},
    ]
    for options in calls:
        prompt = padded if "attention_mask" in options else ids
        expected = support.plain(model, prompt, max_new_tokens=NEW, **options)
        text = expected if torch.is_tensor(expected) else expected.sequences
        shown = text[0, 5:] if "attention_mask" in options else text[0]  # the drafter does not see padding
        for drafter in (support.oracle(shown), support.adversary(shown)):
            got, stats = support.ours(model, prompt, drafter, max_new_tokens=NEW, **options)
            same = got if torch.is_tensor(got) else got.sequences
            assert torch.equal(same, text), options
            assert stats.num_decode_forwards < stats.num_emitted_tokens
        if not torch.is_tensor(expected):
            assert len(got.scores) == NEW
            for ours, plain in zip(got.logits, expected.logits):
                assert torch.allclose(ours, plain, atol=2e-5 * float(plain.abs().max()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_turn_in_the_cache_handed_back(kind):
    """The state is where plain decoding leaves it, also after a rejected last draft."""
    model, ids, more = _model(kind), support.prompt(1, 24), support.prompt(9, 9)

    def turns(run):
        first = run(ids, return_dict_in_generate=True)
        return run(torch.cat([first.sequences, more], dim=1), cache=first.cache)

    expected = turns(lambda prompt, **rest: support.plain(model, prompt, max_new_tokens=NEW, **rest))
    for make in (support.oracle, support.adversary):
        drafter = make(expected[0])
        got = turns(lambda prompt, d=drafter, **rest: support.ours(model, prompt, d, max_new_tokens=NEW, **rest)[0])
        assert torch.equal(got, expected)
    cache = transformers.DynamicCache(config=model.config)
    one = support.ours(model, ids, support.adversary(expected[0]), max_new_tokens=NEW, cache=cache)[0]
    two = support.ours(model, torch.cat([one, more], dim=1), None, max_new_tokens=NEW, cache=cache)[0]
    assert torch.equal(two, expected)


def test_embeddings():
    model, ids = _model("gated delta net"), support.prompt(1, 24)
    embeddings = model.get_input_embeddings()(ids)
    expected = model.generate(inputs_embeds=embeddings, max_new_tokens=NEW)
    drafter = support.Scripted(lambda at, most, deep: Draft.chain(expected[0, at : at + min(7, most, deep)].tolist()))
    zerodraft.attach(model, drafter)
    try:
        got = model.generate(inputs_embeds=embeddings, max_new_tokens=NEW)
        assert model.generate.stats.num_decode_forwards < NEW / 4
    finally:
        zerodraft.detach(model)
    assert torch.equal(got, expected)


def test_encoder_decoders():
    model = support.tiny_of("pegasus", "PegasusForConditionalGeneration")
    ids = support.prompt(1, 24)
    expected = support.plain(model, ids, max_new_tokens=NEW)
    right = support.Scripted(lambda at, most, deep: Draft.chain(expected[0, at - 24 : at - 24 + min(9, deep)].tolist()))
    got, stats = support.ours(model, ids, right, max_new_tokens=NEW)
    assert torch.equal(got, expected)
    assert stats.num_decode_forwards < NEW / 4


def test_what_this_way_refuses_is_named_before_a_token():
    model, ids = _model("gated delta net"), support.prompt(1, 12)
    calls = [
        ({"input_ids": ids.repeat(2, 1)}, {}, "a batch of 2"),
        ({"input_ids": ids, "num_return_sequences": 2, "do_sample": True}, {}, "a batch of 2"),
        ({"input_ids": ids, "cache_implementation": "static"}, {}, "static"),
    ]
    zerodraft.attach(model)  # the trial, which runs forwards, is done

    def fail(*_):
        raise AssertionError("a forward ran before the refusal")

    for call, settings, named in calls:
        zerodraft.attach(model, **settings)
        handle = model.register_forward_pre_hook(fail)
        try:
            with pytest.raises(ValueError, match=f"Qwen3NextForCausalLM.*{named}"):
                model.generate(**call, max_new_tokens=5)
        finally:
            handle.remove()
            zerodraft.detach(model)


@pytest.mark.parametrize(
    ("family", "cls"),
    [
        ("mamba", "MambaForCausalLM"),  # a wide forward does not go on from the cached state
        ("jamba", "JambaForCausalLM"),
        ("recurrent_gemma", "RecurrentGemmaForCausalLM"),  # its state lies outside the cache
        ("rwkv", "RwkvForCausalLM"),
    ],
)
def test_what_cannot_work_refuses_itself(family, cls):
    model = support.tiny_of(family, cls)
    with pytest.raises(ValueError, match=f"{cls} with .*trial step"):
        zerodraft.attach(model)
    assert "generate" not in vars(model)


def test_replayed_positions_are_counted():
    model, ids = _model("short convolution"), support.prompt(1, 24)
    expected = support.plain(model, ids, max_new_tokens=NEW)
    widths = []

    def note(_, args, kwargs):
        widths.append(kwargs["input_ids"].shape[1])

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        _, stats = support.ours(model, ids, support.adversary(expected[0]), max_new_tokens=NEW)
    finally:
        handle.remove()
    assert stats.num_positions == sum(widths[-stats.num_decode_forwards :])
    assert stats.num_replayed_positions > 0


@pytest.mark.parametrize("kind", ["short convolution", "bloom"])
def test_the_cost_of_its_forwards_is_measured_on_its_own_way(kind, tmp_path):
    from zerodraft.integrations.hf.cost_measure import measured_curve

    model = support.tiny_of("bloom", "BloomForCausalLM") if kind == "bloom" else _model(kind)
    before = support.plain(model, support.prompt(1, 24), max_new_tokens=8)
    curve = measured_curve(model, cache_dir=tmp_path, max_seconds=0.5)
    assert [positions for positions, _ in curve.points][:3] == [1, 2, 4]
    assert curve.row_cost == 0.0
    assert torch.equal(support.plain(model, support.prompt(1, 24), max_new_tokens=8), before)
