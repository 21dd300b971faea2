"""What is not decoded exactly is refused by option and class, before any token (cases 24 and 29)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import support  # noqa: E402

import zerodraft  # noqa: E402
from zerodraft.integrations.hf.support import check_model  # noqa: E402


class _NoForward:
    """Fails the test if the model computes anything while it is on."""

    def __init__(self, model):
        self.handle = model.register_forward_pre_hook(self.fail)

    def fail(self, *_):
        raise AssertionError("a forward ran before the refusal")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.handle.remove()


OPTIONS = {
    "num_beams=3": {"num_beams": 3},
    "use_cache=False": {"use_cache": False},
    "output_attentions": {"output_attentions": True, "return_dict_in_generate": True},
    "output_hidden_states": {"output_hidden_states": True, "return_dict_in_generate": True},
    "'static'": {"cache_implementation": "static"},
    "'offloaded'": {"cache_implementation": "offloaded"},
    "'quantized'": {"cache_implementation": "quantized"},
    "position_ids": {"position_ids": torch.arange(5, 17)[None]},
    "synced_gpus": {"synced_gpus": True},
    "attention mask that ends in 0": {"attention_mask": torch.tensor([[1] * 11 + [0]])},
}


@pytest.mark.parametrize("named", OPTIONS)
def test_options(named, monkeypatch):
    from transformers.generation.utils import GenerationMixin

    if named == "'quantized'":  # its backend is not installed here; what counts is our answer
        monkeypatch.setattr(GenerationMixin, "_prepare_cache_for_generation", lambda *args, **kwargs: None)
    model, ids = support.tiny("llama"), support.prompt(1)
    with _NoForward(model), pytest.raises(ValueError, match=named) as caught:
        support.ours(model, ids, support.silent(), max_new_tokens=5, **OPTIONS[named])
    assert "LlamaForCausalLM" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive_search"),
        ({"dola_layers": "low"}, "dola_generation"),
        ({"constraints": [1]}, "constrained_beam_search"),
    ],
)
def test_modes_that_transformers_keeps_elsewhere_are_refused_by_name(options, name):
    model, ids = support.tiny("llama"), support.prompt(1)
    with _NoForward(model), pytest.raises(ValueError, match=f"LlamaForCausalLM with generation mode={name}"):
        support.ours(model, ids, support.silent(), max_new_tokens=5, **options)


@pytest.mark.parametrize("make", ["static", "offloaded"])
def test_caches_handed_in(make):
    model, ids = support.tiny("llama"), support.prompt(1)
    cache = {
        "static": lambda: transformers.StaticCache(config=model.config, max_cache_len=64),
        "offloaded": lambda: transformers.DynamicCache(config=model.config, offloading=True),
    }
    try:
        cache = cache[make]()
    except (RuntimeError, AssertionError) as error:
        pytest.skip(f"this cache cannot be built here: {error}")
    with _NoForward(model), pytest.raises(ValueError, match=r"cache.*|offloaded"):
        support.ours(model, ids, support.silent(), max_new_tokens=5, cache=cache)


def test_a_cache_that_covers_the_whole_prompt():
    model, ids = support.tiny("llama"), support.prompt(1)
    cache = transformers.DynamicCache(config=model.config)
    support.plain(model, ids, max_new_tokens=5, cache=cache)
    with _NoForward(model), pytest.raises(ValueError, match="at least one must be unread"):
        support.ours(model, ids, support.silent(), max_new_tokens=5, cache=cache)


def test_models():
    """One whose wide forward does not go on from its state is refused, at the door and in the explicit form."""
    config = transformers.MambaConfig(vocab_size=97, hidden_size=32, num_hidden_layers=1)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(ValueError, match="MambaForCausalLM with a recurrent state: a trial step"):
        zerodraft.attach(model)
    assert "generate" not in vars(model)
    with _NoForward(model), pytest.raises(ValueError, match="MambaForCausalLM"):  # tried once, not again
        model.generate(support.prompt(1), max_new_tokens=4, custom_generate=zerodraft.speculate(support.silent()))


def test_an_untested_family_is_tried_out_first():
    """One that follows masks and positions drafts trees; one whose layers keep a window of their own drafts chains."""
    common = {"vocab_size": 97, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    local = transformers.GPTNeoConfig(
        **common, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=8
    )
    torch.manual_seed(0)
    chains = transformers.AutoModelForCausalLM.from_config(local).eval()
    trees = transformers.AutoModelForCausalLM.from_config(transformers.CohereConfig(**support.SIZES)).eval()
    ids = support.prompt(1)
    for model, way in ((chains, "chains"), (trees, "trees")):
        expected = support.plain(model, ids, max_new_tokens=30)
        got, stats = support.ours(model, ids, support.bushy(expected[0]), max_new_tokens=30)
        assert torch.equal(got, expected)
        assert stats.num_decode_forwards < 29
        assert check_model(model) == way
        with _NoForward(model):  # tried once, not again
            zerodraft.attach(model)


def test_a_trial_leaves_the_model_in_the_mode_it_was_in():
    model = transformers.AutoModelForCausalLM.from_config(transformers.CohereConfig(**support.SIZES)).train()
    model.model.layers[1].eval()
    zerodraft.attach(model)
    assert model.training
    assert not model.model.layers[1].training


@pytest.mark.parametrize("name", support.MODEL_NAMES)
def test_the_trial_passes_on_the_tested_families_and_can_fail(name, monkeypatch):
    from zerodraft.integrations.hf import target
    from zerodraft.integrations.hf.selftest import width_error

    model = support.tiny(name)
    assert width_error(model) < 2e-6
    right = target.forward_inputs

    def wrong(*args, **options):
        positions, masks = right(*args, **options)
        return positions, {window: torch.zeros_like(mask) for window, mask in masks.items()}

    monkeypatch.setattr(target, "forward_inputs", wrong)
    assert width_error(model) > 1e-3


def test_attention_without_tree_masks():
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**support.SIZES)).eval()
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(ValueError, match="flex_attention"):
        zerodraft.attach(model)


def test_what_an_encoder_decoder_model_cannot_have():
    model = support.tiny_seq2seq("t5")
    ids = torch.cat([support.prompt(1), support.prompt(2)])
    with pytest.raises(ValueError, match="a batch of 2"):
        support.ours(model, ids, None, max_new_tokens=3)


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"prediction_ids": [1, -100]}, "-100"),
        ({"prediction_ids": [[1, 2], [3]]}, "one per row"),
        ({"prediction_ids": torch.tensor([1.5])}, "float"),
        ({"seeds": [1, 2]}, "expected 1, got 2"),
        ({"remember": True}, "with a memory"),
        ({"remember": "all"}, "got 'all'"),
        ({"namespace": 7}, "namespace"),
    ],
)
def test_own_arguments(extra, named):
    model, ids = support.tiny("llama"), support.prompt(1)
    with _NoForward(model), pytest.raises(ValueError, match=named):
        support.ours(model, ids, None, max_new_tokens=5, **extra)


@pytest.mark.parametrize("beside", [False, True])
def test_a_lookahead_that_cannot_remember_says_so_before_the_text_is_written(beside):
    model, ids = support.tiny("llama"), support.prompt(1)
    ahead = zerodraft.Lookahead(3, 3, 3)
    drafter, settings = (None, {"lookahead": ahead}) if beside else (ahead, {})
    with _NoForward(model), pytest.raises(ValueError, match="with a memory"):
        support.ours(model, ids, drafter, settings=settings, max_new_tokens=5, remember=True)
    memory = zerodraft.DraftMemory(max_tokens=1000)
    drafter = zerodraft.Drafter(memory=memory)
    support.ours(model, ids, drafter, settings={"lookahead": ahead}, max_new_tokens=5, remember=True)
    assert memory.num_tokens == 5


def test_settings():
    model = support.tiny("llama")
    with pytest.raises(ValueError, match="tie_guard"):
        zerodraft.attach(model, tie_guard="maybe")
    with pytest.raises(ValueError, match="not both"):
        zerodraft.attach(model, support.silent(), policy=zerodraft.DraftPolicy())
    assert "generate" not in vars(model)


def test_a_draft_with_ids_the_model_does_not_have():
    from zerodraft.lookup.draft import Draft

    drafter = support.Scripted(lambda at, most, deep: Draft.chain([5000]))
    with pytest.raises(ValueError, match="5000"):
        support.ours(support.tiny("llama"), support.prompt(1), drafter, max_new_tokens=5)


def test_drafters_that_ignore_the_limits_are_cut():
    """Deeper than the row can use, or wider than the loop takes: text and length stay plain's."""
    from zerodraft.lookup.draft import Draft

    model, ids = support.tiny("llama"), support.prompt(1)
    expected = support.plain(model, ids, max_new_tokens=10)
    text = support.plain(model, ids, max_new_tokens=40)[0].tolist()
    deep = support.Scripted(lambda at, most, deep: Draft.chain(text[at : at + 20]))
    got, stats = support.ours(model, ids, deep, max_new_tokens=10)
    assert torch.equal(got, expected)
    assert stats.num_decode_forwards == 1
    wide = support.Scripted(lambda at, most, deep: Draft.tree(range(90), [-1] * 90))
    got, stats = support.ours(model, ids, wide, max_new_tokens=10)
    assert torch.equal(got, expected)
    assert stats.num_decode_forwards < 9
