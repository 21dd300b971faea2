"""The doors of ``generate``: drafting per call, why rows end, ids that are none, what does not fit.

Cases 42 and 45 to 51.
"""

from __future__ import annotations

import copy
import functools
import inspect
import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import numpy as np  # noqa: E402
import support  # noqa: E402

import zerodraft  # noqa: E402
from zerodraft import Drafter, DraftMemory, DraftPolicy, Lookahead  # noqa: E402
from zerodraft.lookup.draft import MEMORY, Draft  # noqa: E402

# ---------------------------------------------------------------- off and bounded, per call


def _sources():
    memory = DraftMemory(1000)
    model, ids = support.tiny("llama"), support.prompt(1, 30)
    memory.add(support.plain(model, ids, max_new_tokens=40)[0].tolist())
    return {
        "copies": dict,
        "memory": lambda: {"drafter": Drafter(memory=memory)},
        "recycled": lambda: {"drafter": Drafter(recycle=True)},
        "shared recycler": lambda: {"drafter": Drafter(recycle="shared")},
        "tree": lambda: {"drafter": Drafter(suffix_tree=True)},
        "lookahead alone": lambda: {"drafter": Lookahead(4, 3, 4)},
        "lookahead beside": lambda: {"lookahead": Lookahead(4, 3, 4)},
        "scripted": lambda: {"drafter": support.bushy(support.plain(model, ids, max_new_tokens=40)[0], windows=True)},
    }


SOURCES = ("copies", "memory", "recycled", "shared recycler", "tree", "lookahead alone", "lookahead beside", "scripted")


def _run(settings, ids, door="attach", **options):
    model = support.tiny("llama")
    settings = {**settings, "trace": True}
    if door == "attach":
        drafter = settings.pop("drafter", None)
        return support.ours(model, ids, drafter, settings=settings, max_new_tokens=40, **options)
    decode = zerodraft.speculate(**settings)
    return support.plain(model, ids, max_new_tokens=40, custom_generate=decode, **options), decode.stats


@pytest.mark.parametrize("door", ["attach", "speculate"])
@pytest.mark.parametrize("name", SOURCES)
def test_a_call_may_switch_drafting_off_and_bound_it(name, door):
    """Case 50: off means no drafts from any source, a bound binds every source, window nodes too."""
    make, ids = _sources()[name], support.prompt(1, 30)
    expected = support.plain(support.tiny("llama"), ids, max_new_tokens=40)
    free = _run(make(), ids, door)
    assert torch.equal(free[0], expected)
    assert max(step.num_drafted for step in free[1].trace.steps) > 3
    assert free[1].num_decode_forwards < 39
    for off in ({"draft": False}, {"max_draft_tokens": 0}, {"draft": False, "max_draft_tokens": 9}):
        got, stats = _run(make(), ids, door, **off)
        assert torch.equal(got, expected)
        assert stats.num_decode_forwards == stats.num_positions == stats.num_empty_drafts == 39
        assert stats.num_draft_tokens == stats.num_window_nodes == 0
        assert "switched off for this call" in stats.stand_down_reason
    for most in (1, 3):
        got, stats = _run(make(), ids, door, max_draft_tokens=most)
        assert torch.equal(got, expected)
        assert max(step.num_drafted for step in stats.trace.steps) <= most
        assert stats.num_positions <= stats.num_decode_forwards * (1 + most)
    assert stats.num_draft_tokens + stats.num_window_nodes > 0


def test_a_silent_call_asks_no_drafter_but_still_remembers():
    class Loud:
        def begin(self, *args):
            raise AssertionError("asked")

    model, ids = support.tiny("llama"), support.prompt(1, 30)
    expected = support.plain(model, ids, max_new_tokens=9)
    assert torch.equal(support.ours(model, ids, Loud(), max_new_tokens=9, draft=False)[0], expected)
    memory = DraftMemory(1000)
    got, stats = support.ours(model, ids, Drafter(memory=memory), max_new_tokens=9, draft=False, remember="both")
    assert memory.num_tokens == got.shape[1] == 39
    assert stats.num_decode_forwards == 8


def test_a_bound_binds_every_row_of_a_batch():
    model, ids = support.tiny("llama"), torch.cat([support.prompt(seed, 24) for seed in range(3)])
    expected = support.plain(model, ids, max_new_tokens=30)
    for settings in ({}, {"lookahead": Lookahead(4, 3, 4)}):
        for most in (0, 2):
            got, stats = support.ours(
                model, ids, settings={**settings, "trace": True}, max_new_tokens=30, max_draft_tokens=most
            )
            assert torch.equal(got, expected)
            assert max(step.num_drafted for step in stats.trace.steps) <= most
        assert stats.num_decode_forwards < 29


@pytest.mark.parametrize("settings", [{}, {"lookahead": Lookahead(4, 3, 4)}], ids=["copies", "beside"])
def test_max_batch_tokens_binds_one_row_and_the_window(settings):
    """Case 48: 0 is no drafts at batch 1, too."""
    model = support.tiny("llama")
    for rows in (1, 3):
        ids = torch.cat([support.prompt(seed, 24) for seed in range(rows)])
        expected = support.plain(model, ids, max_new_tokens=30)
        for most in (0, 4):
            policy = DraftPolicy(max_batch_tokens=most)
            got, stats = support.ours(model, ids, settings={**settings, "policy": policy}, max_new_tokens=30)
            assert torch.equal(got, expected)
            assert stats.num_draft_tokens + stats.num_window_nodes <= most * stats.num_decode_forwards
            assert (stats.num_draft_tokens > 0) == (most > 0)


# ---------------------------------------------------------------- why rows end


class _Length(transformers.StoppingCriteria):
    def __init__(self, length):
        self.length = length

    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((input_ids.shape[0],), input_ids.shape[1] >= self.length)


@functools.cache
def _letters():
    """A tokenizer of one letter per token: token n is ``_letter(n)``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    bpe = Tokenizer(models.BPE(vocab={_letter(token): token for token in range(support.VOCAB)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    bpe.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, clean_up_tokenization_spaces=False)


def _letter(token):
    return chr(33 + token) if token < 94 else chr(0x4E00 + token)


def _expected_reason(new, most, eos=None, stop=None, criterion=None):
    """What ended plain decoding's text of token ids ``new``, by looking at the text alone."""
    if new[-1] == eos:
        return "eos"
    if stop is not None and new[-len(stop) :] == stop:
        return "stop"
    if criterion is not None and len(new) >= criterion:
        return "criterion"
    assert len(new) == most
    return "length"


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("make", [support.oracle, support.bushy])
def test_every_reason_at_every_place(make, do_sample):
    """Case 49: end token, stop string, criterion and length, alone and on the last token allowed."""
    model, ids = support.tiny("llama"), support.prompt(6)
    options = {"do_sample": do_sample}
    free = support.plain(model, ids, 3, max_new_tokens=24, **options)[0]
    new = free[12:].tolist()
    seen, forwards = set(), []
    for place in range(1, 14, 3):
        first = new.index(new[place]) + 1  # tokens until this one came first
        for most in (first, 20):
            cases = [
                {"eos": new[place]},
                {"stop": new[place - 1 : place + 1]},
                {"criterion": place + 1},
                {"criterion": most},
                {"eos": new[place], "criterion": first},
                {},
            ]
            for case in cases:
                call = dict(options)
                if "eos" in case:
                    call["eos_token_id"] = case["eos"]
                if "stop" in case:
                    call |= {
                        "stop_strings": "".join(map(_letter, case["stop"])),
                        "tokenizer": _letters(),
                    }
                if "criterion" in case:
                    call["stopping_criteria"] = transformers.StoppingCriteriaList([_Length(12 + case["criterion"])])
                expected = support.plain(model, ids, 3, max_new_tokens=most, **call)
                got, stats = support.ours(model, ids, make(free), 3, max_new_tokens=most, **call)
                assert torch.equal(got, expected)
                reason = _expected_reason(expected[0, 12:].tolist(), most, **case)
                assert stats.finish_reasons == [reason], case
                seen.add((reason, expected.shape[1] - 12 == most))
                forwards.append(expected.shape[1] - 13 - stats.num_decode_forwards)
    assert {("eos", True), ("eos", False), ("stop", True), ("stop", False)} <= seen
    assert {("criterion", True), ("criterion", False), ("length", True)} <= seen
    assert max(forwards) > 5


def test_reasons_are_per_row_and_in_order():
    model = support.tiny("llama")
    ids = torch.cat([support.prompt(seed, 12) for seed in range(4)])
    free = support.plain(model, ids, max_new_tokens=20)[:, 12:].tolist()
    eos = free[2][5]
    ends = [row.index(eos) + 1 if eos in row else 20 for row in free]
    _, stats = support.ours(model, ids, max_new_tokens=20, eos_token_id=eos)
    assert stats.finish_reasons == ["eos" if end < 20 or row[-1] == eos else "length" for row, end in zip(free, ends)]
    assert set(stats.finish_reasons) == {"eos", "length"}
    assert stats.as_dict()["finish_reasons"] == stats.finish_reasons
    total = zerodraft.GenerationStats()
    total.merge(stats)
    total.merge(stats)
    assert total.finish_reasons == stats.finish_reasons * 2


def test_rows_that_are_walked_together_have_the_same_reasons(monkeypatch):
    """As on CUDA, where all rows are walked in one launch."""
    model = support.tiny("llama")
    ids = torch.cat([support.prompt(seed, 12) for seed in range(4)])
    eos = int(support.plain(model, ids, max_new_tokens=20)[2, 17])
    expected = support.ours(model, ids, max_new_tokens=20, eos_token_id=eos)[1].finish_reasons
    monkeypatch.setattr("zerodraft.integrations.hf.fused.serves", lambda logits: True)
    assert support.ours(model, ids, max_new_tokens=20, eos_token_id=eos)[1].finish_reasons == expected
    assert set(expected) == {"eos", "length"}


def test_the_context_is_a_reason_of_its_own():
    """Without max_new_tokens generate stops at the model's context; asked for so many tokens, it is the length."""
    model = support.tiny("gpt2")
    ids = support.prompt(2, 500)
    expected = support.plain(model, ids)
    got, stats = support.ours(model, ids, support.oracle(expected[0]))
    assert torch.equal(got, expected)
    assert got.shape[1] == 512
    assert stats.finish_reasons == ["context"]
    assert stats.num_decode_forwards < 11
    assert support.ours(model, ids, max_new_tokens=12)[1].finish_reasons == ["length"]
    assert support.ours(model, support.prompt(2, 30))[1].finish_reasons == ["length"]


def test_max_time_is_a_criterion():
    model, ids = support.tiny("llama"), support.prompt(6)
    stats = support.ours(model, ids, max_new_tokens=20, max_time=1e-9)[1]
    assert (stats.finish_reasons, stats.num_emitted_tokens) == (["criterion"], 1)


# ---------------------------------------------------------------- standing down


def test_no_run_that_paid_says_that_it_stood_down():
    """Case 26: many steps without a draft beside a few that won much is no standing down."""
    model, ids = support.tiny("llama"), support.prompt(3, 20)
    text = support.plain(model, ids, max_new_tokens=60)[0]
    script = support.oracle(text, 30)

    class Late:
        """Drafts nothing for 12 steps, then all that is left."""

        def begin(self, *args):
            session = script.begin(*args)
            real, steps = session.propose, iter(range(100))
            session.propose = lambda most, deep=None: real(most, deep) if next(steps) >= 12 else Draft.empty()
            session.stand_down_reason = "stood down: nothing to copy"
            return session

    got, stats = support.ours(model, ids, Late(), max_new_tokens=60)
    assert torch.equal(got, text[None])
    assert 2 * stats.num_empty_drafts > stats.num_row_steps
    assert stats.tokens_per_forward > 2
    assert stats.stand_down_reason is None
    total = zerodraft.GenerationStats(stand_down_reason="stood down: nothing to copy")
    total.merge(stats)
    assert total.stand_down_reason is None
    never = support.ours(
        model, torch.arange(3, 40)[None], Drafter(policy=DraftPolicy(prompt_lookup_min=9)), max_new_tokens=6
    )[1]
    assert never.num_draft_tokens == 0
    assert never.stand_down_reason == "stood down: nothing to copy at 4 of 4 steps"


def test_a_session_that_paid_does_not_say_that_it_stood_down():
    from zerodraft.lookup.draft import Outcome

    session = Drafter().begin([*range(10, 60)])
    text = [*range(100, 110), *range(10, 60)]
    at = drafted = empty = 0
    while at < len(text):
        draft = session.propose(20)
        path = 0
        while path < len(draft) and draft.is_chain and at + path < len(text) - 1:
            if draft.token_ids[path] != text[at + path]:
                break
            path += 1
        drafted, empty = drafted + bool(len(draft)), empty + (not len(draft))
        new = text[at : at + path + 1]
        session.commit(draft, Outcome(path=tuple(range(path)), new_ids=tuple(new)))
        at += len(new)
    assert empty > drafted > 0
    assert session.stand_down_reason is None


# ---------------------------------------------------------------- ids that are none, and that never come


def _foreign_sources(text):
    """Drafters that know the text, with an id of another vocabulary in the middle of it."""
    stained = [*text[:20], support.VOCAB + 5, *text[20:26], 2**31 - 1, *text[26:]]
    memory = DraftMemory(10_000, min_match_len=1)
    memory.add(stained)
    book = zerodraft.PhraseBook([stained[start : start + 9] for start in range(12, 30)], min_match=2)
    return {"memory": Drafter(memory=memory), "phrases": Drafter(phrases=book)}


@pytest.mark.parametrize("name", ["memory", "phrases"])
def test_foreign_ids_of_shared_sources_are_left_out_and_counted(name):
    """Case 42: they raised in mid-text."""
    pytest.importorskip("ahocorasick")
    model, ids = support.tiny("llama"), support.prompt(8)
    expected = support.plain(model, ids, max_new_tokens=40)
    got, stats = support.ours(model, ids, _foreign_sources(expected[0].tolist())[name], max_new_tokens=40)
    assert torch.equal(got, expected)
    assert stats.num_pruned_tokens > 0
    assert stats.num_decode_forwards < 39


def test_foreign_ids_in_predictions_are_left_out_and_counted():
    model, ids = support.tiny("llama"), support.prompt(8)
    expected = support.plain(model, ids, max_new_tokens=40)
    new = expected[0, 12:].tolist()
    stained = [*new[:10], support.VOCAB, *new[10:20], 2**31 - 1, *new[20:]]
    for lookahead in (None, Lookahead(4, 3, 4)):
        got, stats = support.ours(
            model, ids, settings={"lookahead": lookahead}, max_new_tokens=40, prediction_ids=stained
        )
        assert torch.equal(got, expected)
        assert stats.num_foreign_tokens == 2
        assert stats.num_decode_forwards < 20


@pytest.mark.parametrize("lookahead", [None, Lookahead(4, 3, 4)], ids=["copies", "lookahead"])
@pytest.mark.parametrize("sentinel", [-200, support.VOCAB, 2**40])
def test_sentinels_beside_embeddings_are_left_out_and_counted(sentinel, lookahead):
    """A prompt for text and images: its ids hold places that only the embeddings fill."""
    model, ids = support.tiny("llama"), support.prompt(8, 24)
    embeds = model.get_input_embeddings()(ids).detach()
    marked = ids.clone()
    marked[0, 3:6] = sentinel
    options = {"inputs_embeds": embeds, "max_new_tokens": 40}
    expected = support.plain(model, marked, **options)
    got, stats = support.ours(model, marked, settings={"lookahead": lookahead}, **options)
    assert torch.equal(got, expected)
    assert stats.num_foreign_tokens == 3
    assert stats.num_decode_forwards < 39


def test_a_drafter_of_ones_own_is_told_at_its_first_draft():
    model, ids = support.tiny("llama"), support.prompt(8)
    for token in (support.VOCAB, 2**31 - 1):
        drafter = support.Scripted(lambda at, most, deep, token=token: Draft.chain([5, token][: min(most, deep)]))
        with pytest.raises(ValueError, match=rf"drafted token ids must be in \[0, 96\], got \[5, {token}\]"):
            support.ours(model, ids, drafter, max_new_tokens=10)


def test_a_foreign_node_takes_its_descendants_with_it_and_nothing_else():
    from zerodraft.integrations.hf.sieve import Sieve

    sieve = Sieve(97, {7})
    draft = Draft.tree([5, 97, 6, 8, 7, 9], [-1, -1, 1, 0, 3, 4], source=MEMORY)
    fit = sieve.fit(draft, 100, 100)
    assert (fit.token_ids.tolist(), fit.parents.tolist()) == ([5, 8], [-1, 0])
    assert sieve.num_pruned_tokens == 4
    window = Draft.tree([5, 7, 8], [-1, -1, 1], verify=[True, False, False])
    assert sieve.fit(window, 100, 100) is window  # computed, never said
    assert sieve.fit(draft, 1, 100).token_ids.tolist() == [5]
    assert len(sieve.fit(draft, 100, 1)) == 1


@pytest.mark.parametrize("how", ["suppress_tokens", "bad_words_ids", "image_token_id"])
def test_what_can_never_come_is_not_drafted(how):
    """Case 51: a copy that runs over a suppressed id or a placeholder ends before it."""
    model, ids = support.tiny("llama"), support.prompt(4)
    free = support.plain(model, ids, max_new_tokens=40)[0]
    banned = int(free[20])
    if how == "image_token_id":
        model, options = copy.deepcopy(model), {}
        model.config.image_token_id = banned
    else:
        options = {how: [banned] if how == "suppress_tokens" else [[banned], [3, 4]]}
    expected = support.plain(model, ids, max_new_tokens=40, **options)
    drafter = support.oracle(free)
    got, stats = support.ours(model, ids, drafter, max_new_tokens=40, **options)
    assert torch.equal(got, expected)
    assert stats.num_pruned_tokens > 0
    assert not any(banned in draft.token_ids for draft, _ in drafter.log)
    assert stats.num_decode_forwards < 39
    assert support.ours(model, ids, support.oracle(free), max_new_tokens=40)[1].num_pruned_tokens == (
        0 if options else stats.num_pruned_tokens
    )


# ---------------------------------------------------------------- options without effect


def _warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [(str(w.message), w.filename) for w in caught if "zerodraft" in str(w.message)]


OWN = {
    "prediction_ids": [5, 6, 7],
    "namespace": "alice",
    "seeds": [4],
    "remember": True,
    "draft": False,
    "max_draft_tokens": 3,
}


@pytest.mark.parametrize("name", OWN)
def test_own_arguments_beside_another_way_of_decoding_are_said_to_do_nothing(name):
    """Case 48."""
    model, ids = copy.deepcopy(support.tiny("llama")), support.prompt(1, 30)
    expected = support.plain(model, ids, max_new_tokens=8)
    zerodraft.attach(model)
    out = []
    call = lambda: out.append(  # noqa: E731
        model.generate(ids, max_new_tokens=8, prompt_lookup_num_tokens=3, **{name: OWN[name]})
    )
    ((message, file),) = _warned(call)
    assert name in message
    assert "beside prompt_lookup_num_tokens" in message
    assert file == __file__
    assert torch.equal(out[0], expected)
    nothing = {"prediction_ids": None, "draft": True}
    assert not _warned(lambda: model.generate(ids, max_new_tokens=8, prompt_lookup_num_tokens=3, **nothing))


def test_own_arguments_reach_an_explicit_speculation_of_an_attached_model():
    model, ids = copy.deepcopy(support.tiny("llama")), support.prompt(1, 30)
    zerodraft.attach(model)
    decode = zerodraft.speculate()
    assert not _warned(lambda: model.generate(ids, max_new_tokens=8, custom_generate=decode, draft=False))
    assert decode.stats.num_positions == 7


def test_other_options_without_effect_are_said():
    model, ids = support.tiny("llama"), support.prompt(1, 30)
    cases = [
        ({"seeds": [4]}, "seeds has no effect without do_sample"),
        ({"namespace": "alice"}, "namespace has no effect on a drafter without a memory"),
        ({"prediction_ids": [5, 6], "draft": False}, "prediction_ids has no effect where nothing is drafted"),
    ]
    for options, message in cases:
        for call in (
            lambda: support.ours(model, ids, max_new_tokens=4, **options),  # noqa: B023
            lambda: support.plain(model, ids, max_new_tokens=4, custom_generate=zerodraft.speculate(), **options),  # noqa: B023
        ):
            ((said, file),) = _warned(call)
            assert message in said
            assert file == support.__file__  # where generate was called
    quiet = Drafter(memory=DraftMemory(100))
    assert not _warned(lambda: support.ours(model, ids, quiet, max_new_tokens=4, namespace="alice"))
    assert not _warned(lambda: support.ours(model, ids, max_new_tokens=4, do_sample=True, seeds=[4]))


# ---------------------------------------------------------------- models and caches that do not fit


def _no_forward(model):
    def fail(*_):
        raise AssertionError("a forward ran before the refusal")

    return model.register_forward_pre_hook(fail)


def test_training_mode_is_refused_and_checkpointing_is_as_plain():
    """Case 46."""
    ids = support.prompt(1)
    model = copy.deepcopy(support.tiny("gpt2"))
    model.gradient_checkpointing_enable()
    expected = support.plain(model, ids, max_new_tokens=20)
    got, stats = support.ours(model, ids, support.oracle(expected[0]), max_new_tokens=20)
    assert torch.equal(got, expected)
    assert stats.num_decode_forwards < 19
    zerodraft.attach(model)
    for part, named in ((model, "training mode"), (model.transformer.drop, "transformer.drop in training mode")):
        model.eval()
        part.train()
        handle = _no_forward(model)
        with pytest.raises(zerodraft.Unsupported, match=rf"GPT2LMHeadModel with {named}.*call model.eval\(\)"):
            model.generate(ids, max_new_tokens=3)
        handle.remove()
    model.eval()
    assert torch.equal(model.generate(ids, max_new_tokens=20), expected)


def _filled(model, ids, cache):
    support.plain(model, ids, max_new_tokens=4, cache=cache)
    return cache


def _sized(**changes):
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**(support.SIZES | changes))).eval()


def test_a_cache_that_another_model_or_batch_filled_is_refused_by_name():
    """Case 45."""
    model, ids = support.tiny("llama"), support.prompt(1)
    longer = torch.cat([ids, support.prompt(2)], 1)
    window = transformers.DynamicCache(config=support.tiny("mistral").config)
    others = {
        "layer 0 keeps 8 tokens": window,
        "a cache of 1 layers": _filled(_sized(num_hidden_layers=1), ids, transformers.DynamicCache()),
        "4 heads": _filled(_sized(num_key_value_heads=4), ids, transformers.DynamicCache()),
        "heads of 4 dimensions": _filled(_sized(hidden_size=16), ids, transformers.DynamicCache()),
        "dtype torch.float64": _filled(_sized().double(), ids, transformers.DynamicCache()),
        "2 rows": _filled(model, torch.cat([ids, ids]), transformers.DynamicCache()),
        "layer 0 keeps 16 tokens": transformers.DynamicCache(config=transformers.MistralConfig(sliding_window=16)),
    }
    for named, cache in others.items():
        target = support.tiny("mistral") if "16 tokens" in named else model
        handle = _no_forward(target)
        try:
            with pytest.raises(zerodraft.Unsupported, match=named):
                support.ours(target, longer, support.silent(), max_new_tokens=3, cache=cache)
        finally:
            handle.remove()


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
def test_a_cache_without_a_configuration_goes_on_exactly(name):
    """Its layers keep everything, those of a sliding window, too: masks say what is seen."""
    model, ids = support.tiny(name), support.prompt(1, 20)
    texts = []
    for decode in (support.plain, lambda *args, **kwargs: support.ours(*args[:2], args[2], **kwargs)[0]):
        cache = transformers.DynamicCache()
        first = support.plain(model, ids, max_new_tokens=6, cache=cache)
        more = torch.cat([first, support.prompt(2, 9)], 1)
        if decode is support.plain:
            texts.append(decode(model, more, max_new_tokens=30, cache=cache))
        else:
            texts.append(decode(model, more, support.oracle(texts[0][0]), max_new_tokens=30, cache=cache))
    assert torch.equal(texts[0], texts[1])


# ---------------------------------------------------------------- what is no model, no drafter


def test_wrappers_are_told_what_to_attach_instead():
    """Case 47."""

    class Wrapper(torch.nn.Module):
        def __init__(self, **parts):
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

    class PeftModel(Wrapper):
        def get_base_model(self):
            return self.inner

    class Pipeline:
        model = support.tiny("llama")

    model = support.tiny("llama")
    wrapped = {
        r"attach\(model.model\)": Pipeline(),
        r"attach\(model.get_base_model\(\)\)": PeftModel(inner=model),
        r"attach\(model._orig_mod\)": torch.compile(model),
        r"attach\(model.module\)": torch.nn.DataParallel(model),
        "got None": None,
        "the class": type(model),
        "got 'gpt2'": "gpt2",
    }
    for named, wrapper in wrapped.items():
        with pytest.raises(ValueError, match=f"model must be a transformers PreTrainedModel, got .*{named}|{named}"):
            zerodraft.attach(wrapper)
    assert "generate" not in vars(model)


def test_what_belongs_elsewhere_is_told_where():
    model = support.tiny("llama")
    for wrong, named in (
        (DraftPolicy(), "policy=..."),
        (DraftMemory(100), r"Drafter\(memory=...\)"),
        (zerodraft.CostCurve([(1, 1.0), (2, 2.0)]), r"DraftPolicy\(cost=...\)"),
        (Drafter, "the class Drafter"),
        (5, "got 5"),
    ):
        for door in (lambda drafter: zerodraft.attach(model, drafter), zerodraft.speculate):
            with pytest.raises(ValueError, match=f"drafter must have begin.*{named}"):
                door(wrong)
    assert "generate" not in vars(model)


@pytest.mark.parametrize("one", [[[5]], [torch.tensor([5])], [np.array([5])], (range(5, 6),), [torch.tensor(5)]])
def test_predictions_in_every_form(one):
    from zerodraft.integrations.hf.request import Request

    predicted = Request(prediction_ids=one).prediction_ids
    assert predicted[0] == 5
    assert isinstance(predicted, list) == (not isinstance(one[0], torch.Tensor) or one[0].ndim == 1)


def test_numpy_values_are_taken_where_python_ones_are():
    policy = DraftPolicy(max_draft_tokens=np.int64(9), max_branches=np.uint8(2), max_batch_tokens=np.int32(4))
    assert (policy.max_draft_tokens, policy.max_branches, policy.max_row_tokens) == (9, 2, 4)
    model, ids = support.tiny("llama"), support.prompt(1, 30)
    options = {"max_draft_tokens": np.int64(3), "seeds": np.array([5]), "do_sample": True}
    _, stats = support.ours(model, ids, max_new_tokens=9, prediction_ids=np.array([5, 6, 7]), **options)
    assert stats.num_emitted_tokens == 9


WRONG_OWN = {
    "prediction_ids": [
        *(5, 1.5, True, "abc", {5, 6}, object(), [1.5], [-1], [2**31], ["a"], [[5], [-1]], [[5], 6], [None, "a"]),
        *(np.zeros((2, 2, 2), np.int64), torch.zeros(3), torch.tensor(5), torch.tensor([-1])),
    ],
    "namespace": [5, True, b"a", ["a"]],
    "seeds": [5, 1.5, "12", [1, None], [1.5], [2**64], [-1], [True], ["1"], {1}, torch.tensor([1.0])],
    "remember": ["x", 1, 0, None, "input", [True]],
    "draft": ["x", 1, 0, None, [True]],
    "max_draft_tokens": ["3", 2.5, True, -1, 10**9, float("nan"), [3]],
    "streamer": [3, "x"],
    "stop_strings": [3, [3], ["a", ""], [None]],
}


DOORS = [("attach", name) for name in WRONG_OWN] + [("speculate", name) for name in OWN]


@pytest.mark.parametrize(("door", "name"), DOORS)
def test_wrong_arguments_of_a_call_are_refused_before_a_forward(name, door):
    """Case 47: one error that names the argument; the model stays as it was."""
    model, ids = copy.deepcopy(support.tiny("llama")), support.prompt(1)
    handle = _no_forward(model)
    options = {"max_new_tokens": 3, "do_sample": True}
    if name == "stop_strings":
        options["tokenizer"] = _letters()
    if door == "attach":
        zerodraft.attach(model)
    else:
        options["custom_generate"] = zerodraft.speculate()
    for wrong in WRONG_OWN[name]:
        with pytest.raises(ValueError, match=name):
            model.generate(ids, **options, **{name: wrong})
    handle.remove()
    assert set(inspect.signature(zerodraft.speculate().__call__).parameters) >= set(OWN)


def test_wrong_arguments_are_refused_before_an_encoder_runs():
    model = copy.deepcopy(support.tiny_seq2seq("t5"))
    zerodraft.attach(model)
    handle = model.encoder.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(AssertionError("ran")))
    with pytest.raises(ValueError, match="seeds"):
        model.generate(support.prompt(1), max_new_tokens=3, seeds=5)
    handle.remove()
    expected = support.plain(model, support.prompt(1), max_new_tokens=12)
    assert torch.equal(model.generate(support.prompt(1), max_new_tokens=12, draft=False), expected)
    assert model.generate.stats.num_draft_tokens == 0
