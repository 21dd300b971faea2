"""Batches: every row equals its own run alone, whatever stands beside it (case 25)."""

from __future__ import annotations

import contextlib
import random

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import reference.tree  # noqa: E402
import support  # noqa: E402

LENGTHS = (3, 9, 17, 30)


def _prompts(lengths=LENGTHS, seed=0):
    return [support.prompt(seed + index, length) for index, length in enumerate(lengths)]


def _padded(prompts):
    """Left-padded ids and mask."""
    width = max(p.shape[1] for p in prompts)
    ids = torch.cat([torch.cat([torch.zeros(1, width - p.shape[1], dtype=torch.long), p], 1) for p in prompts])
    mask = torch.cat([(torch.arange(width) >= width - p.shape[1]).long()[None] for p in prompts])
    return ids, mask


class _PerRow:
    """A drafter that gives each prompt the script made for its text."""

    def __init__(self, texts, make):
        self.by_prompt = {}
        for prompt, text in texts:
            self.by_prompt[tuple(prompt[0].tolist())] = make(text)

    def begin(self, prompt_ids, prediction_ids=None, namespace=None):
        return self.by_prompt[tuple(int(t) for t in prompt_ids)].begin(prompt_ids)


def _texts(model, prompts, seeds=None, **options):
    """Every row alone: plain generation's text when greedy, our batch-1 run's under its seed when sampled."""
    rows = []
    for index, p in enumerate(prompts):
        if seeds is None:
            rows.append(support.plain(model, p, **options)[0])
        else:
            got, _ = support.ours(model, p, support.silent(), seeds=[seeds[index]], **options)
            # the row's seed means what a global seed means to plain generation
            assert torch.equal(got, support.plain(model, p, seeds[index], **options))
            rows.append(got[0])
    return rows


@pytest.fixture(params=[True, False], ids=["packed", "side_by_side"])
def is_packed(request, monkeypatch):
    """Rows whose drafts differ in size stand one behind the other in the forward, or all are filled up.

    Prompts that differ in length likewise: read one by one, or side by side.
    """
    from zerodraft.integrations.hf import target

    monkeypatch.setattr(target.Target, "_packing_pays", lambda self, counts: request.param and len(set(counts)) > 1)
    monkeypatch.setattr(target, "FORWARD_FLOOR", 0 if request.param else 1000)
    return request.param


@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt2", "opt"])
def test_rows_equal_their_own_runs(name, do_sample, is_packed):
    """Ragged prompts, rows that finish at different steps, one without a draft, one that ends at once."""
    model, prompts = support.tiny(name), _prompts()
    seeds = [11, 22, 33, 44] if do_sample else None
    options = {"max_new_tokens": 35, "do_sample": do_sample}
    free = _texts(model, prompts, seeds, **options)
    at_once = int(free[1][LENGTHS[1]])  # row 1 ends with its first token
    options["eos_token_id"] = [at_once, int(free[2][LENGTHS[2] + 20])]
    alone = [text[length:] for text, length in zip(_texts(model, prompts, seeds, **options), LENGTHS)]
    assert len(alone[1]) == 1
    ids, mask = _padded(prompts)
    for make in (
        lambda text: support.oracle(text, 4),
        support.adversary,
        lambda text: support.bushy(text, windows=True),
        lambda text: support.silent() if len(text) % 2 else support.oracle(text, 6),
    ):
        drafter = _PerRow(zip(prompts, free), make)
        got, stats = support.ours(model, ids, drafter, attention_mask=mask, seeds=seeds, **options)
        assert got.shape[0] == 4
        for row, text in zip(got, alone):
            assert row[30 : 30 + len(text)].tolist() == text.tolist()
            assert row[30 + len(text) :].eq(0).all()
        assert stats.num_rows == 4
        assert stats.num_emitted_tokens == sum(len(text) for text in alone)
        assert stats.num_emitted_tokens == (
            stats.num_accepted_tokens + stats.num_row_steps + stats.num_rows - stats.num_stopped_on_accepted
        )
        assert stats.num_decode_forwards <= max(len(text) for text in alone) - 1
        assert stats.num_row_steps < sum(len(text) for text in alone) - 4


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", support.MODEL_NAMES)
def test_a_row_costs_what_it_drafts(name, attention, is_packed):
    """Rows without a draft cost one position where that is less; what the model says is the same either way."""
    from zerodraft.integrations.hf.target import Target
    from zerodraft.lookup.draft import Draft

    model = support.tiny(name, attention)
    texts = [p[0].tolist() for p in _prompts()]
    drafts = [Draft.empty(), Draft.tree([5, 6, 7, 8], [-1, -1, 0, 2]), Draft.empty(), Draft.chain([9])]
    with torch.no_grad():
        target = Target(model, 4)
        target.prefill([torch.tensor(text) for text in texts])
        for last, path in ((3, [0, 2, 3]), (4, [1])):  # the second forward stands on what the first one left
            logits = target.check([last] * 4, drafts)
            assert sum(len(row) for row in logits) == (9 if is_packed else 20)
            for text, draft, row in zip(texts, drafts, logits):
                for node in range(-1, len(draft)):
                    above = [draft.token_ids[i] for i in reference.tree.path_to(node, draft.parents.tolist())]
                    alone = model(torch.tensor([[*text, last, *above]])).logits[0, -1]
                    torch.testing.assert_close(row[node + 1], alone, rtol=1e-4, atol=1e-4)
            paths = [[], path, [], [0]]
            target.cache.keep_all([[0, *(node + 1 for node in taken)] for taken in paths])
            for text, draft, taken in zip(texts, drafts, paths):
                text += [last, *draft.token_ids[taken].tolist()]


def test_prompts_are_read_one_by_one_in_chunks(is_packed):
    model, prompts = support.tiny("mistral"), _prompts()
    ids, mask = _padded(prompts)
    options = {"max_new_tokens": 12, "prefill_chunk_size": 7}
    texts = _texts(model, prompts, max_new_tokens=12)
    drafter = _PerRow(zip(prompts, texts), lambda text: support.oracle(text, 4))
    with _counted(model) as widths:
        got, stats = support.ours(model, ids, drafter, attention_mask=mask, **options)
    expected = [-(-length // 7) for length in LENGTHS] if is_packed else [5]
    assert stats.num_decode_forwards < 11
    assert len(widths) == sum(expected) + stats.num_decode_forwards
    for row, text, length in zip(got, texts, LENGTHS):
        assert row[ids.shape[1] :].tolist() == text[length:].tolist()


@contextlib.contextmanager
def _counted(model):
    """The widths of the model's forwards."""
    widths = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    try:
        yield widths
    finally:
        hook.remove()


def test_rows_are_packed_where_that_computes_less():
    """Filling up one long draft's neighbours costs more than looking at all rows' columns."""
    from zerodraft.integrations.hf.target import Target

    target = Target(support.tiny("llama"), 8)
    target._column_cost = 1e-4
    target.cache.set_lengths([500] * 8)
    assert target._packing_pays([61, *[1] * 7])
    assert not target._packing_pays([16] * 8)
    assert not target._packing_pays([16] * 7 + [15])  # eight times the columns for one position less
    assert not Target(support.tiny("llama"), 1)._packing_pays([61])


def _scaled(rope_type):
    """A llama whose positions are scaled anew beyond 24 tokens."""
    rope = {"rope_type": rope_type, "rope_theta": 10000.0, "factor": 4.0}
    if rope_type == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4, "original_max_position_embeddings": 24}
    size = support.SIZES | {"max_position_embeddings": 24 if rope_type == "dynamic" else 96, "rope_parameters": rope}
    torch.manual_seed(7)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**size)).eval()


@pytest.mark.parametrize("rope_type", ["longrope", "dynamic"])
def test_rows_are_not_scaled_by_their_neighbours(rope_type):
    """Where the longest row decides on the scale, rows on both sides of the border are refused, others are exact."""
    from zerodraft.integrations.hf.support import Unsupported

    model = _scaled(rope_type)
    for lengths, new_tokens, is_exact in (
        ((6, 12), 12, True),
        ((6, 12), 13, False),
        ((6, 30), 8, False),
        ((26, 30), 8, rope_type == "longrope"),
        ((30,), 8, True),
    ):
        prompts = [support.prompt(seed, length) for seed, length in enumerate(lengths)]
        ids, mask = _padded(prompts)
        options = {"max_new_tokens": new_tokens, "attention_mask": mask}
        if not is_exact:
            with pytest.raises(Unsupported, match="rows on both sides of position 24"):
                support.ours(model, ids, support.silent(), **options)
            continue
        texts = _texts(model, prompts, max_new_tokens=new_tokens)
        got, stats = support.ours(
            model, ids, _PerRow(zip(prompts, texts), lambda text: support.oracle(text, 3)), **options
        )
        if (
            rope_type == "longrope" or max(lengths) + new_tokens <= 24
        ):  # a dynamic scale is new at every length: no drafts
            assert stats.num_decode_forwards < new_tokens - 1
        for row, text, length in zip(got, texts, lengths):
            assert row[ids.shape[1] :].tolist() == text[length:].tolist()


def test_sixteen_rows_in_any_order():
    """Draft lengths 0..8 side by side, learned positions, shuffled: a row's text does not depend on its place."""
    model = support.tiny("gpt2")
    rng = random.Random(1)
    prompts = _prompts([rng.randrange(2, 40) for _ in range(16)], seed=50)
    texts = _texts(model, prompts, max_new_tokens=25)
    for _ in range(3):
        order = rng.sample(range(16), 16)
        ids, mask = _padded([prompts[index] for index in order])
        widths = iter(range(16))
        drafter = _PerRow(
            [(prompts[index], texts[index]) for index in order],
            lambda text, widths=widths: support.oracle(text, next(widths) % 9),
        )
        got, stats = support.ours(model, ids, drafter, attention_mask=mask, max_new_tokens=25)
        assert [row[-25:].tolist() for row in got] == [texts[index][-25:].tolist() for index in order]
        assert stats.num_row_steps < 16 * 24


def test_the_own_drafter_never_matches_padding():
    """Prompts end in the pad id's neighbours; what is drafted comes from text only."""
    model, prompts = support.tiny("llama"), _prompts()
    ids, mask = _padded(prompts)
    texts = _texts(model, prompts, max_new_tokens=40)
    got, stats = support.ours(model, ids, None, attention_mask=mask, max_new_tokens=40)
    assert [row[-40:].tolist() for row in got] == [text[-40:].tolist() for text in texts]
    assert stats.num_row_steps < 4 * 39
    predictions = [text[-40:].tolist() for text in texts]
    predictions[2] = None
    got, stats = support.ours(model, ids, None, attention_mask=mask, max_new_tokens=40, prediction_ids=predictions)
    assert [row[-40:].tolist() for row in got] == [text[-40:].tolist() for text in texts]
    assert stats.accepted_by_source["prediction"] > 60


@pytest.mark.parametrize("do_sample", [False, True])
def test_several_sequences_of_one_prompt(do_sample):
    model, p = support.tiny("llama"), support.prompt(3)
    seeds = [4, 5, 6] if do_sample else None
    options = {"max_new_tokens": 30, "do_sample": do_sample}
    alone = _texts(model, [p] * 3, seeds, **options)
    if not do_sample:
        with pytest.raises(ValueError):  # plain generation does not return several greedy sequences either
            support.plain(model, p, num_return_sequences=3, **options)
        return
    got, stats = support.ours(model, p, support.oracle(alone[0]), seeds=seeds, num_return_sequences=3, **options)
    assert [row.tolist() for row in got] == [text.tolist() for text in alone]
    assert stats.num_row_steps < 3 * 29


def test_a_batch_without_seeds_follows_the_global_seed():
    model = support.tiny("llama")
    ids, mask = _padded(_prompts())
    runs = [
        support.ours(model, ids, None, seed, attention_mask=mask, max_new_tokens=20, do_sample=True)[0]
        for seed in (1, 1, 2)
    ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


class _Diary(transformers.LogitsProcessor):
    """Per-row state: each row must have a copy of its own."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        assert input_ids.shape[0] == 1
        self.calls += 1
        return scores.masked_fill(torch.arange(scores.shape[1])[None] == self.calls % support.VOCAB, -float("inf"))


OPTIONS = {
    "repetition": lambda ids: {"repetition_penalty": 1.4},
    "n-grams": lambda ids: {"no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 4},
    "encoder": lambda ids: {"encoder_repetition_penalty": 1.5},
    "stateful": lambda ids: {"logits_processor": transformers.LogitsProcessorList([_Diary()])},
    "prefix": lambda ids: {
        "prefix_allowed_tokens_fn": lambda row, text: [(int(text[-1]) * 3 + 7 * row + k) % 97 for k in range(6)]
    },
}


@pytest.mark.parametrize("name", ["repetition", "n-grams", "encoder", "stateful"])
def test_processors_of_a_batch(name):
    """Equal-length rows, so that a row alone shows its processors the same prefix."""
    model, prompts = support.tiny("llama"), _prompts((12, 12, 12))
    ids = torch.cat(prompts)
    alone = (
        _texts(model, prompts, max_new_tokens=30, **OPTIONS[name](ids[:1]))
        if name != "stateful"
        else [support.plain(model, p, max_new_tokens=30, **OPTIONS[name](ids[:1]))[0] for p in prompts]
    )
    drafter = _PerRow(zip(prompts, alone), lambda text: support.oracle(text, 5))
    got, stats = support.ours(model, ids, drafter, max_new_tokens=30, **OPTIONS[name](ids))
    assert [row.tolist() for row in got] == [text.tolist() for text in alone]
    assert stats.num_row_steps < 3 * 29


def test_left_padding_is_not_repeated_text():
    """plain gives the repetition penalty the padding's length per row; ours hands each row its own."""
    model, prompts = support.tiny("llama"), _prompts()
    ids, mask = _padded(prompts)
    alone = _texts(model, prompts, max_new_tokens=30, repetition_penalty=1.4)
    drafter = _PerRow(zip(prompts, alone), lambda text: support.oracle(text, 5))
    got, stats = support.ours(
        model, ids, drafter, attention_mask=mask, max_new_tokens=30, repetition_penalty=1.4, pad_token_id=20
    )
    assert [row[-30:].tolist() for row in got] == [text[-30:].tolist() for text in alone]
    assert stats.num_row_steps < 4 * 29


def test_a_grammar_knows_its_row():
    model, prompts = support.tiny("llama"), _prompts((12, 12, 12))
    ids = torch.cat(prompts)
    rule = OPTIONS["prefix"](ids)
    expected = support.plain(model, ids, max_new_tokens=20, **rule)  # equal lengths: plain's own batch is the reference
    drafter = _PerRow(zip(prompts, expected), lambda text: support.oracle(text, 5))
    got, stats = support.ours(model, ids, drafter, max_new_tokens=20, **rule)
    assert torch.equal(got, expected)
    assert stats.num_row_steps < 3 * 19


def test_scores_of_finished_rows_are_certain_of_the_pad():
    model, prompts = support.tiny("llama"), _prompts((12, 12))
    ids = torch.cat(prompts)
    free = _texts(model, prompts, max_new_tokens=15)
    options = {"max_new_tokens": 15, "return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    options["eos_token_id"] = int(free[0][12 + 4])
    got, stats = support.ours(model, ids, _PerRow(zip(prompts, free), support.oracle), **options)
    ends = [
        int((row[12:] == options["eos_token_id"]).nonzero()[0]) + 1 if options["eos_token_id"] in row[12:] else 15
        for row in got.sequences
    ]
    assert min(ends) < max(ends)
    assert len(got.scores) == len(got.logits) == max(ends) == got.sequences.shape[1] - 12
    for index, p in enumerate(prompts):
        own = support.plain(model, p, **options)
        for step in range(max(ends)):
            if step < ends[index]:
                torch.testing.assert_close(got.scores[step][index], own.scores[step][0], atol=1e-4, rtol=1e-5)
                torch.testing.assert_close(got.logits[step][index], own.logits[step][0], atol=1e-4, rtol=1e-5)
            else:
                assert got.scores[step][index].softmax(-1)[0] == 1.0
    assert got.cache is None
    assert stats.num_row_steps < sum(ends) - 2


def test_what_a_batch_cannot_have():
    model = support.tiny("llama")
    ids, mask = _padded(_prompts())
    with pytest.raises(ValueError, match="streamer"):
        support.ours(model, ids, None, attention_mask=mask, max_new_tokens=3, streamer=_Null())
    with pytest.raises(ValueError, match="UnbatchedClassifierFreeGuidance"):
        support.ours(model, ids, None, attention_mask=mask, max_new_tokens=3, guidance_scale=1.5)
    with pytest.raises(ValueError, match="expected 4, got 3"):
        support.ours(model, ids, None, attention_mask=mask, max_new_tokens=3, do_sample=True, seeds=[1, 2, 3])


class _Null:
    def put(self, value):
        pass

    def end(self):
        pass


def test_the_rows_of_a_batch_are_drafted_for_together():
    """``propose_batch`` gets every running row, with each row's own room, and its drafts are what is verified."""
    import zerodraft

    model, prompts = support.tiny("llama"), _prompts((12, 12, 12))
    ids = torch.cat(prompts)
    alone = _texts(model, prompts, max_new_tokens=30)
    seen = []

    class Watched(zerodraft.Drafter):
        def propose_batch(self, sessions, max_tokens, max_depth=None):
            drafts = super().propose_batch(sessions, max_tokens, max_depth)
            seen.append((len(sessions), list(max_depth), sum(len(draft) for draft in drafts)))
            return drafts

    predictions = [text[12:].tolist() for text in alone]
    got, stats = support.ours(model, ids, Watched(), max_new_tokens=30, prediction_ids=predictions)
    assert [row.tolist() for row in got] == [text.tolist() for text in alone]
    assert seen[0][:2] == (3, [28, 28, 28])
    # the last row that runs drafts for itself alone
    assert 0 < sum(count for _, _, count in seen) <= stats.num_draft_tokens
    assert stats.num_accepted_tokens > 0
    assert stats.num_row_steps < 3 * 29


def test_statistics_say_why_nothing_was_drafted():
    model, ids = support.tiny("llama"), torch.arange(3, 15)[None]
    banned = [[[token], -100.0] for token in range(3, 15)]  # nothing of the prompt can be written again
    got, stats = support.ours(model, ids, None, max_new_tokens=8, sequence_bias=banned, no_repeat_ngram_size=1)
    assert got.shape == (1, 20)
    assert stats.num_draft_tokens == 0
    assert "stood down: nothing to copy" in stats.stand_down_reason
