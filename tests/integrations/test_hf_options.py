"""Every generation option does per token what it does in plain generation (cases 10, 11, 14 to 16, 18, 22)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import support  # noqa: E402


def _same(model, ids, seed=3, drafters=(support.oracle, support.adversary, support.bushy), **options):
    """Assert equality under each drafter; return plain's output and the forwards each drafter took."""
    expected = support.plain(model, ids, seed, **options)
    state = torch.get_rng_state()
    sequences = expected if isinstance(expected, torch.Tensor) else expected.sequences
    forwards = []
    for make in drafters:
        got, stats = support.ours(model, ids, make(sequences[0]), seed, **options)
        assert torch.equal(got if isinstance(got, torch.Tensor) else got.sequences, sequences), make.__name__
        assert torch.equal(torch.get_rng_state(), state)
        assert stats.num_emitted_tokens == sequences.shape[1] - ids.shape[1]
        assert stats.num_emitted_tokens == (
            stats.num_accepted_tokens + stats.num_row_steps + stats.num_rows - stats.num_stopped_on_accepted
        )
        forwards.append(stats.num_decode_forwards)
    return expected, forwards


OPTIONS = {
    "repetition penalty": {"repetition_penalty": 1.3},
    "no repeat n-gram": {"no_repeat_ngram_size": 2},
    "encoder repetition": {"encoder_repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 3},
    "bad words": {"bad_words_ids": [[5], [7, 9], [11, 12, 13]]},
    "sequence bias": {"sequence_bias": [[[5], -100.0], [[7, 9], 3.0]]},
    "suppressed": {"suppress_tokens": [4, 5, 6], "begin_suppress_tokens": [8, 9]},
    "min new tokens": {"min_new_tokens": 20, "eos_token_id": [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]},
    "min length": {"min_length": 30, "eos_token_id": list(range(3, 40))},
    "exponential decay": {"exponential_decay_length_penalty": (5, 1.4), "eos_token_id": 17},
    "forced eos": {"forced_eos_token_id": 33, "eos_token_id": 33},
    "renormalized": {"renormalize_logits": True, "remove_invalid_values": True},
    "watermark": {"watermarking_config": {"bias": 2.5, "seeding_scheme": "selfhash"}},
    "guidance": {"guidance_scale": 1.5},
}
SAMPLING = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 1.5, "top_k": 0},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.8, "top_k": 0},
    "min-p": {"min_p": 0.9, "top_k": 0},
    "typical": {"typical_p": 0.9},
    "epsilon": {"epsilon_cutoff": 0.01},
    "eta": {"eta_cutoff": 0.01},
    "everything": {"temperature": 0.9, "top_k": 30, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1},
}


@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", OPTIONS)
def test_processors(name, do_sample):
    drafters = (support.oracle, support.adversary) if name == "guidance" else (support.oracle, support.bushy)
    expected, forwards = _same(
        support.tiny("llama"),
        support.prompt(1),
        drafters=drafters,
        max_new_tokens=36,
        do_sample=do_sample,
        **OPTIONS[name],
    )
    if expected.shape[1] > 20:
        assert min(forwards) < expected.shape[1] - 12 - 1


@pytest.mark.parametrize("name", SAMPLING)
def test_warpers(name):
    for seed in range(4):
        _, forwards = _same(
            support.tiny("qwen3"), support.prompt(seed), seed, max_new_tokens=30, do_sample=True, **SAMPLING[name]
        )
        assert min(forwards) < 29


def test_a_token_biased_away_is_never_emitted_anywhere():
    """Neither at verified nor at bonus positions, however often it is drafted (case 14)."""
    model, ids = support.tiny("llama"), support.prompt(4)
    free = support.plain(model, ids, max_new_tokens=40)[0]
    banned = int(free[14])
    bias = [[[banned], -100.0]]
    expected = support.plain(model, ids, max_new_tokens=40, sequence_bias=bias)
    drafter = support.Scripted(lambda at, most, deep: support.oracle(free).make(at, most, deep))
    got, stats = support.ours(model, ids, drafter, max_new_tokens=40, sequence_bias=bias)
    assert torch.equal(got, expected)
    assert banned not in got[0, 12:].tolist()
    assert stats.num_draft_tokens > 0


class _Counter(transformers.LogitsProcessor):
    """Stateful: pushes down the token of its own call count, and notes what it was shown."""

    def __init__(self):
        self.calls = 0
        self.shapes = []

    def __call__(self, input_ids, scores):
        self.shapes.append((tuple(input_ids.shape), tuple(scores.shape)))
        scores = scores.clone()
        scores[:, self.calls % support.VOCAB] = -float("inf")
        scores[:, (7 * input_ids.shape[1]) % support.VOCAB] += 3.0
        self.calls += 1
        return scores


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_stateful_processor_sees_what_plain_shows_it(do_sample):
    """Once per emitted token, in order, with plain's prefix (case 16)."""
    model, ids = support.tiny("llama"), support.prompt(4)
    options = {"max_new_tokens": 30, "do_sample": do_sample}
    reference = _Counter()
    expected = support.plain(model, ids, 1, logits_processor=transformers.LogitsProcessorList([reference]), **options)
    for make in (support.oracle, support.adversary, support.bushy):
        mine = _Counter()
        got, stats = support.ours(
            model, ids, make(expected[0]), 1, logits_processor=transformers.LogitsProcessorList([mine]), **options
        )
        assert torch.equal(got, expected)
        assert mine.shapes == reference.shapes
        assert stats.num_decode_forwards < 29


def test_a_grammar_by_prefix():
    def allowed(batch_id, ids):
        assert batch_id == 0
        return [(int(ids[-1]) * 3 + step) % support.VOCAB for step in range(5)]

    _, forwards = _same(support.tiny("gpt2"), support.prompt(4), max_new_tokens=30, prefix_allowed_tokens_fn=allowed)
    assert min(forwards) < 29


# ---------------------------------------------------------------- where the text ends


def _tokens_of(model, ids, **options):
    return support.plain(model, ids, 3, max_new_tokens=40, **options)[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("do_sample", [False, True])
def test_eos_anywhere_in_a_block(name, do_sample):
    """A token that plain really wrote is declared the end: in mid-block, as bonus, at once (case 10)."""
    model, ids = support.tiny(name), support.prompt(5)
    free = _tokens_of(model, ids, do_sample=do_sample)
    text = torch.tensor([*ids[0].tolist(), *free])
    stops = set()
    for place in range(12):
        eos = free[place]
        for width in (1, 3, 8):
            options = {"max_new_tokens": 40, "do_sample": do_sample, "eos_token_id": eos}
            expected = support.plain(model, ids, 3, **options)
            drafter = support.oracle(text, width)
            got, stats = support.ours(model, ids, drafter, 3, **options)
            assert torch.equal(got, expected)
            assert stats.num_emitted_tokens == expected.shape[1] - 12 == free.index(eos) + 1
            outcome = drafter.log[-1][1]
            assert outcome.stop == "eos"
            assert outcome.new_ids[-1] == eos
            stops.add(outcome.stopped_on_accepted)
    assert stops == {True, False}


@pytest.mark.parametrize("form", ["int", "list", "tensor", "none"])
@pytest.mark.parametrize("pad", [0, None])
def test_eos_and_pad_in_every_form(form, pad):
    """Case 22."""
    model, ids = support.tiny("llama"), support.prompt(5)
    free = _tokens_of(model, ids)
    token = next(token for place, token in enumerate(free) if place > 5 and token not in free[:place])
    eos = {"int": token, "list": [token, 3], "tensor": torch.tensor([token]), "none": None}[form]
    expected, forwards = _same(model, ids, max_new_tokens=30, eos_token_id=eos, pad_token_id=pad)
    assert (expected.shape[1] == 42) == (form == "none")
    assert min(forwards) < expected.shape[1] - 13


class _StopAfter(transformers.StoppingCriteria):
    """Ends the text when the last ids add up to a multiple, and counts how often it was asked."""

    def __init__(self, modulus):
        self.modulus, self.lengths = modulus, []

    def __call__(self, input_ids, scores, **kwargs):
        self.lengths.append(input_ids.shape[1])
        return torch.tensor([int(input_ids[0, -3:].sum()) % self.modulus == 0])


@pytest.mark.parametrize("modulus", [3, 11, 17])
def test_a_users_criterion_is_asked_per_token(modulus):
    """Case 11."""
    model, ids = support.tiny("llama"), support.prompt(6)
    text = torch.tensor([*ids[0].tolist(), *_tokens_of(model, ids)])
    reference = _StopAfter(modulus)
    expected = support.plain(model, ids, max_new_tokens=40, stopping_criteria=[reference])
    for width in (1, 4, 20):
        mine = _StopAfter(modulus)
        got, stats = support.ours(
            model,
            ids,
            support.oracle(text, width),
            max_new_tokens=40,
            stopping_criteria=transformers.StoppingCriteriaList([mine]),
        )
        assert torch.equal(got, expected)
        assert mine.lengths == reference.lengths
    if expected.shape[1] > 16:
        assert stats.num_decode_forwards < expected.shape[1] - 13


def test_max_time_zero_ends_after_one_token():
    got, _ = support.ours(support.tiny("llama"), support.prompt(6), support.silent(), max_new_tokens=20, max_time=0.0)
    assert got.shape[1] == 13


def test_max_time_ends_within_a_draft(monkeypatch):
    """Time is asked for after every token: by a clock that ticks when it is looked at, both end after as many."""
    import itertools
    import types

    model, ids = support.tiny("llama"), support.prompt(6)
    text = support.plain(model, ids, max_new_tokens=30)[0]

    def ticking():
        clock = itertools.count()
        fake = types.SimpleNamespace(time=lambda: float(next(clock)))
        monkeypatch.setattr(transformers.generation.stopping_criteria, "time", fake)

    ticking()
    expected = support.plain(model, ids, max_new_tokens=30, max_time=9.0)
    assert 12 + 5 < expected.shape[1] < 12 + 20
    ticking()
    got, stats = support.ours(model, ids, support.oracle(text, 6), max_new_tokens=30, max_time=9.0)
    assert torch.equal(got, expected)
    assert stats.num_decode_forwards < got.shape[1] - 12 - 1


# ---------------------------------------------------------------- what comes back


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
def test_scores_logits_and_cache(name, do_sample):
    """One row per emitted token, equal to plain's; the cache continues a talk as plain's does (case 18)."""
    model, ids = support.tiny(name), support.prompt(7)
    options = {
        "max_new_tokens": 25,
        "do_sample": do_sample,
        "repetition_penalty": 1.2,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
    }
    expected, forwards = _same(model, ids, **options)
    assert min(forwards) < 24
    for make in (support.oracle, support.adversary, support.bushy):
        got, _ = support.ours(model, ids, make(expected.sequences[0]), 3, **options)
        assert type(got) is type(expected)
        assert len(got.scores) == len(got.logits) == 25
        for mine, theirs in zip(got.scores + got.logits, expected.scores + expected.logits):
            assert mine.shape == theirs.shape
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-5)
        assert type(got.cache) is type(expected.cache)
        assert got.cache.get_seq_length() == expected.cache.get_seq_length() == 36
        for mine, theirs in zip(got.cache.layers, expected.cache.layers):
            torch.testing.assert_close(mine.keys, theirs.keys, atol=1e-4, rtol=1e-5)
            torch.testing.assert_close(mine.values, theirs.values, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole ids", "new ids only"])
def test_a_cache_of_a_former_turn(name, whole):
    model, first, more = support.tiny(name), support.prompt(7), support.prompt(8, 6)

    def turns(generate):
        cache = transformers.DynamicCache(config=model.config)
        one = generate(first, max_new_tokens=15, cache=cache)
        two_ids = torch.cat([one, more], 1)
        # the last token of a turn is not in the cache yet, so "new only" starts with it
        given = two_ids if whole else two_ids[:, cache.get_seq_length() :]
        mask = torch.ones_like(two_ids)
        two = generate(given, max_new_tokens=20, cache=cache, attention_mask=mask)
        return one, two, cache

    expected = turns(lambda ids, **options: support.plain(model, ids, **options))
    forwards = []

    def mine(ids, **options):
        text = expected[len(forwards)][0]
        got, stats = support.ours(model, ids, support.adversary(text, 7), **options)
        forwards.append(stats.num_decode_forwards)
        return got

    got = turns(mine)
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])
    assert sum(forwards) < 33
    assert got[2].get_seq_length() == expected[2].get_seq_length()
    for left, right in zip(got[2].layers, expected[2].layers):
        torch.testing.assert_close(left.keys, right.keys, atol=1e-4, rtol=1e-5)


def test_left_padding_and_chunked_prefill():
    model, ids = support.tiny("llama"), support.prompt(9)
    padded = torch.cat([torch.zeros(1, 5, dtype=torch.long), ids], 1)
    mask = torch.cat([torch.zeros(1, 5, dtype=torch.long), torch.ones_like(ids)], 1)
    _, forwards = _same(model, padded, attention_mask=mask, max_new_tokens=20)
    assert min(forwards) < 19
    expected = support.plain(model, ids, max_new_tokens=20)
    for chunk in (1, 5, 12, 100):
        got, stats = support.ours(model, ids, support.oracle(expected[0]), max_new_tokens=20, prefill_chunk_size=chunk)
        assert torch.equal(got, expected)
        assert stats.num_decode_forwards < 19


def test_the_last_learned_position_is_not_crossed():
    """gpt2 with 40 positions, drafts of 20: plain's text up to the end, no crash."""
    config = transformers.GPT2Config(**support.GPT2 | {"n_positions": 40})
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = support.prompt(1)
    expected = support.plain(model, ids, max_new_tokens=28)
    for make in (support.oracle, support.adversary, support.bushy):
        got, stats = support.ours(model, ids, make(expected[0], 20), max_new_tokens=28)
        assert torch.equal(got, expected)
        assert stats.num_decode_forwards < 27


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope", "linear", "yarn", "llama3"])
def test_scaled_positions_switch_where_plain_switches(rope_type):
    """A scale that changes at a length is not applied to a draft's earlier tokens."""
    rope = {"rope_type": rope_type, "rope_theta": 10000.0, "factor": 4.0}
    if rope_type in ("longrope", "yarn", "llama3"):
        rope["original_max_position_embeddings"] = 20
    if rope_type == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    if rope_type == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    size = support.SIZES | {"max_position_embeddings": 20 if rope_type == "dynamic" else 80, "rope_parameters": rope}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**size)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    ids = support.prompt(1)
    options = {"max_new_tokens": 40, "return_dict_in_generate": True, "output_logits": True}
    expected = support.plain(model, ids, **options)
    got, stats = support.ours(model, ids, support.oracle(expected.sequences[0], 7), **options)
    assert torch.equal(got.sequences, expected.sequences)
    for mine, theirs in zip(got.logits, expected.logits):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-5)
    assert stats.num_decode_forwards < 39


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_decoder_models(name, do_sample):
    """Chains at batch 1; the own drafter copies from what the encoder has read; trees are cut to their trunk."""
    model, ids = support.tiny_seq2seq(name), support.prompt(3, 20)
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0  # encoders are padded on the right
    options = {"max_new_tokens": 40, "do_sample": do_sample, "attention_mask": mask, "repetition_penalty": 1.1}
    options |= {"return_dict_in_generate": True, "output_logits": True, "output_scores": True}
    expected = support.plain(model, ids, 3, **options)
    state = torch.get_rng_state()
    read = [*ids[0].tolist(), *expected.sequences[0].tolist()]
    for make in (support.oracle, support.adversary, support.bushy):
        got, stats = support.ours(model, ids, make(read), 3, **options)
        assert torch.equal(got.sequences, expected.sequences)
        assert torch.equal(torch.get_rng_state(), state)
        assert type(got) is type(expected)
        assert type(got.cache) is type(expected.cache)
        assert got.cache.get_seq_length() == expected.cache.get_seq_length()
        for mine, theirs in zip(got.logits + got.scores, expected.logits + expected.scores):
            torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=1e-5)
        assert stats.num_decode_forwards < 39
    got, stats = support.ours(model, ids, None, 3, **options)
    assert torch.equal(got.sequences, expected.sequences)
    assert stats.num_draft_tokens > 0
    if name == "bart":  # learned positions end at 64
        whole = support.plain(model, ids, max_new_tokens=63)
        got, stats = support.ours(model, ids, support.oracle([*ids[0], *whole[0]], 20), max_new_tokens=63)
        assert torch.equal(got, whole)
        assert stats.num_decode_forwards < 62


@pytest.mark.parametrize("with_ids", [False, True])
def test_embeddings_in_place_of_ids(with_ids):
    model, ids = support.tiny("llama"), support.prompt(4)
    given = ids if with_ids else None
    options = {"inputs_embeds": model.get_input_embeddings()(ids).detach(), "max_new_tokens": 25}
    expected = support.plain(model, given, **options)
    assert expected.shape[1] == (37 if with_ids else 25)
    got, stats = support.ours(model, given, support.oracle(expected[0]), **options)
    assert torch.equal(got, expected)
    assert stats.num_decode_forwards < 24
    got, stats = support.ours(model, given, None, **options)
    assert torch.equal(got, expected)
