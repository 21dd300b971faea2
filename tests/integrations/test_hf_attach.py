"""attach and detach in life: copies, threads, repeated calls, other people's ways of decoding."""

from __future__ import annotations

import copy
import io
import pickle
import threading

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import support  # noqa: E402

import zerodraft  # noqa: E402


def _fresh():
    return copy.deepcopy(support.tiny("llama"))


def test_attach_twice_and_detach_restore():
    model = _fresh()
    original = model.generate
    assert zerodraft.attach(model) is model
    zerodraft.attach(model, tie_guard="report")
    assert model.generate.stats is None
    zerodraft.detach(model)
    assert "generate" not in vars(model)
    assert model.generate == original
    zerodraft.detach(model)
    mine = lambda *args, **kwargs: "mine"  # noqa: E731
    model.generate = mine
    zerodraft.attach(model)
    zerodraft.detach(model)
    assert model.generate is mine


def test_repeated_calls_share_nothing():
    """The same object for P, P, Q, P: every call drafts and counts as the first did (case 1)."""
    model = zerodraft.attach(_fresh())
    p, q = support.prompt(1, 30), support.prompt(2, 24)
    seen = []
    for ids in (p, p, q, p):
        output = model.generate(ids, max_new_tokens=40)
        stats = model.generate.stats
        seen.append((output.tolist(), stats.num_draft_tokens, stats.num_accepted_tokens, stats.num_decode_forwards))
    assert seen[0] == seen[1] == seen[3] != seen[2]
    assert seen[0][3] < 39


def test_a_copy_generates_with_its_own_weights():
    model = zerodraft.attach(_fresh())
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.lm_head.weight.neg_()
    ids = support.prompt(1)
    assert twin.generate.__self__ is twin
    assert torch.equal(twin.generate(ids, max_new_tokens=20), support.plain(twin, ids, max_new_tokens=20))
    assert torch.equal(model.generate(ids, max_new_tokens=20), support.plain(model, ids, max_new_tokens=20))
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again.generate(ids, max_new_tokens=20), support.plain(model, ids, max_new_tokens=20))
    torch.save(model.state_dict(), io.BytesIO())


def test_threads_do_not_mix():
    model = zerodraft.attach(_fresh())
    prompts = [support.prompt(seed, 20 + seed) for seed in range(6)]
    lengths = [20 + 5 * index for index in range(6)]
    expected = [support.plain(model, p, max_new_tokens=n) for p, n in zip(prompts, lengths)]
    results = [None] * 6

    def work(index):
        for _ in range(3):
            output = model.generate(prompts[index], max_new_tokens=lengths[index])
            results[index] = (output, model.generate.stats.num_emitted_tokens)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in range(6):
        assert torch.equal(results[index][0], expected[index])
        assert results[index][1] == lengths[index]
    assert model.generate.stats is None  # this thread has not called


def test_other_ways_of_decoding_are_left_alone():
    model, ids = _fresh(), support.prompt(1, 30)
    expected = support.plain(model, ids, max_new_tokens=20)
    zerodraft.attach(model)
    drafting = {"assistant_early_exit": 1}, {"assistant_model": support.tiny("llama")}, {"assistant_model": model}
    for options in ({"prompt_lookup_num_tokens": 3}, *drafting):
        assert torch.equal(model.generate(ids, max_new_tokens=20, **options), expected)
        assert model.generate.stats is None
    config = transformers.GenerationConfig(prompt_lookup_num_tokens=3, max_new_tokens=20, pad_token_id=0)
    model.generate(ids, generation_config=config)
    assert model.generate.stats is None
    decode = zerodraft.speculate()
    assert torch.equal(model.generate(ids, max_new_tokens=20, custom_generate=decode), expected)
    assert decode.stats.num_emitted_tokens == 20


def test_positional_arguments_and_configs():
    model, ids = _fresh(), support.prompt(1, 30)
    config = transformers.GenerationConfig(max_new_tokens=15, do_sample=True, temperature=0.8, pad_token_id=0)
    expected = support.plain(model, ids, 4, generation_config=config)
    zerodraft.attach(model, support.oracle(expected[0]))
    torch.manual_seed(4)
    assert torch.equal(model.generate(ids, config), expected)
    torch.manual_seed(4)
    assert torch.equal(model.generate(inputs=ids, generation_config=config), expected)
    assert model.generate.stats.num_decode_forwards < 14


def test_on_finish_and_failure_leave_sessions_closed():
    closed = []

    class Session:
        def propose(self, max_tokens, max_depth=None):
            raise RuntimeError("boom")

        def finish(self, remember=False):
            closed.append(remember)

        def commit(self, draft, outcome):
            pass

    class Maker:
        def begin(self, *args):
            return Session()

    model, ids = support.tiny("llama"), support.prompt(1)
    with pytest.raises(RuntimeError, match="boom"):
        support.ours(model, ids, Maker(), max_new_tokens=5, remember=True)
    assert closed == [False]
    got = []
    decode = zerodraft.speculate(support.silent(), on_finish=got.append)
    support.plain(model, ids, max_new_tokens=5, custom_generate=decode)
    assert got == [decode.stats]


def test_row_seeds_make_a_call_repeatable():
    model, ids = support.tiny("llama"), support.prompt(1)
    torch.manual_seed(11)
    state = torch.get_rng_state()
    runs = [support.ours(model, ids, None, max_new_tokens=20, do_sample=True, seeds=[seed])[0] for seed in (5, 5, 6)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("do_sample", [False, True])
def test_near_ties_are_counted(do_sample):
    """Real ties: "report" counts them and changes nothing."""
    model, ids = _fresh(), support.prompt(1)
    with torch.no_grad():  # tokens come in twins with equal logits
        model.lm_head.weight[1::2] = model.lm_head.weight[0:-1:2]
    options = {"max_new_tokens": 30, "do_sample": do_sample}
    expected = support.plain(model, ids, 3, **options)
    seen = {}
    for guard in ("off", "report"):
        got, stats = support.ours(model, ids, support.oracle(expected[0]), 3, {"tie_guard": guard}, **options)
        assert torch.equal(got, expected)
        assert stats.num_emitted_tokens == 30
        assert stats.num_decode_forwards < 10
        seen[guard] = stats
    assert seen["off"].num_near_ties == 0
    assert seen["off"].num_decode_forwards == seen["report"].num_decode_forwards
    if not do_sample:  # under sampling noise twins are told apart
        assert seen["report"].num_near_ties > 20


def test_what_the_tie_guard_no_longer_does_is_refused():
    for door in (lambda **given: zerodraft.attach(support.tiny("llama"), **given), zerodraft.speculate):
        with pytest.raises(ValueError, match=r"tie_guard must be .*'off'.*'report'.*, got 'on'"):
            door(tie_guard="on")


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = ["<pad>", "<s>", "</s>", *(chr(33 + index) for index in range(94))]
    bpe = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = "{% for m in messages %}{{ m['role'][0] + ':' + m['content'] + ';' }}{% endfor %}a:"
    return fast


def test_pipelines_and_chat(tokenizer):
    """pipeline("text-generation"), single, batched and with a chat template, is accelerated without being changed."""
    model = _fresh()
    prompts = ["abcabcabcabc", "one+two=three;one+two=", "x"]
    chat = [{"role": "user", "content": "say(abc)abc(abc)"}]

    def run():
        pipe = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
        single = pipe(prompts[1], max_new_tokens=30, do_sample=False)
        several = pipe(prompts, max_new_tokens=30, do_sample=False, batch_size=1)
        talk = pipe(chat, max_new_tokens=30, do_sample=False)
        return single, several, talk

    expected = run()
    zerodraft.attach(model)
    assert run() == expected
    assert model.generate.stats.num_draft_tokens > 0
    assert model.generate.stats.num_decode_forwards < 29


def test_an_agent_like_loop_on_one_model(tokenizer):
    """Turn after turn, each call continues the talk so far; the texts are plain's, forwards fall as text repeats."""
    model = _fresh()

    def loop(generate):
        talk, counts = "goal:abc;", []
        for turn in range(4):
            inputs = tokenizer(talk + f"tool{turn}:abcabc;", return_tensors="pt")
            output = generate(**inputs, max_new_tokens=20)
            talk = tokenizer.decode(output[0])
            counts.append(getattr(getattr(model.generate, "stats", None), "num_decode_forwards", 19))
        return talk, counts

    expected, _ = loop(model.generate)
    zerodraft.attach(model)
    got, counts = loop(model.generate)
    assert got == expected
    assert sum(counts) < 4 * 19


def test_the_cost_of_a_model_worth_measuring_is_measured_once(monkeypatch, tmp_path):
    """Policy cost "auto": the curve of this model, kept on disk; the caller's drafter is left as it was."""
    from zerodraft.integrations.hf import cost_measure
    from zerodraft.integrations.hf import settings as door

    monkeypatch.setattr(door, "_MIN_PARAMETERS_TO_MEASURE", 1)
    monkeypatch.setattr(cost_measure, "_default_folder", lambda: tmp_path)
    model, ids = _fresh(), support.prompt(1, 30)
    drafter = zerodraft.Drafter()
    expected = support.plain(model, ids, max_new_tokens=30)
    zerodraft.attach(model, drafter)
    (kept,) = tmp_path.iterdir()
    assert torch.equal(model.generate(ids, max_new_tokens=30), expected)
    assert drafter.policy.cost == "auto"
    priced = model.generate.__func__._settings.drafter.policy.cost
    assert priced.points[0][0] == 1
    forwards = []
    handle = model.register_forward_pre_hook(lambda *_: forwards.append(1))
    zerodraft.attach(model)
    assert not forwards  # read from disk
    handle.remove()
    assert model.generate.__func__._settings.drafter.policy.cost == priced
    kept.unlink()
    explicit = zerodraft.DraftPolicy(cost=priced)
    zerodraft.attach(model, policy=explicit)
    assert not list(tmp_path.iterdir())
    model.generate(ids, max_new_tokens=5, custom_generate=zerodraft.speculate())
    assert list(tmp_path.iterdir())


def test_what_is_remembered_is_drafted_in_later_calls_of_its_namespace_only():
    model, ids = _fresh(), support.prompt(1, 14)
    memory = zerodraft.DraftMemory(max_tokens=10_000)
    zerodraft.attach(model, zerodraft.Drafter(memory=memory))
    forwards = []
    for namespace, remember in (("a", True), ("a", False), ("b", False), (None, False)):
        output = model.generate(ids, max_new_tokens=60, namespace=namespace, remember=remember)
        assert torch.equal(output, support.plain(model, ids, max_new_tokens=60))
        forwards.append(model.generate.stats.num_decode_forwards)
    assert forwards[1] < forwards[0]
    assert model.generate.stats.accepted_by_source["memory"] == 0
    assert forwards[2] == forwards[3] == forwards[0]


def test_a_trace_names_the_source_of_every_token_of_every_row():
    """Rows that end at different steps keep their numbers, and nothing is traced unasked."""
    model = _fresh()
    ids = torch.cat([support.prompt(1, 24), support.prompt(2, 24)])
    plain = model.generate(ids, max_new_tokens=30)[:, 24:].tolist()
    eos = next(token for token in plain[0] if token not in plain[1])
    zerodraft.attach(model, trace=True)
    output = model.generate(ids, max_new_tokens=30, eos_token_id=eos)
    stats = model.generate.stats
    assert output[1, 24:].tolist() == plain[1]
    assert [len(stats.trace.sources(row)) for row in (0, 1)] == [plain[0].index(eos) + 1, 30]
    assert plain[0].index(eos) < 29
    assert stats.trace.curve is not None
    assert sum(len(step.sources) for step in stats.trace.steps) == stats.num_accepted_tokens > 0
    assert all(step.seconds > 0 for step in stats.trace.steps)
    zerodraft.attach(model)
    model.generate(ids, max_new_tokens=4)
    assert model.generate.stats.trace is None
