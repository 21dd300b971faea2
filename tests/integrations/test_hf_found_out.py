"""Found out, not trusted: quantized or wrapped modules, work between steps, weights elsewhere (cases 40 to 45)."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import support  # noqa: E402

import zerodraft  # noqa: E402
from zerodraft.integrations.hf.families import foreign_part  # noqa: E402
from zerodraft.integrations.hf.support import check_model  # noqa: E402

NEW = 40


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", ["llama", "short convolution"])
def test_activations_scaled_over_a_forward_are_found_out(name):
    """Dynamic int8 in a family that the tests know: its logits depend on what else is in the forward."""
    original = support.tiny_of(*support.OWN_STATE[name]) if name in support.OWN_STATE else support.tiny(name)
    model = torch.ao.quantization.quantize_dynamic(
        copy.deepcopy(original), {torch.nn.Linear}, dtype=torch.qint8, inplace=True
    )
    with pytest.raises(ValueError, match=f"{type(original).__name__} with .*: a trial step"):
        zerodraft.attach(model)
    assert check_model(original) == ("trees" if name == "llama" else "chains")


class _Wrapped(torch.nn.Module):
    def __init__(self, inner, factor):
        super().__init__()
        self.inner, self.factor = inner, factor

    def forward(self, states):
        scale = states.abs().amax() if self.factor else 1.0  # over the whole forward, or position by position
        return self.inner(states / scale) * scale + self.factor * states.mean() * 0.1


@pytest.mark.parametrize("factor", [0, 1])
def test_wrapped_modules_are_tried_out(factor):
    """A wrapper that works position by position is taken; one that looks at the whole forward is refused, by name."""
    model = copy.deepcopy(support.tiny("llama"))
    assert foreign_part(model) is None
    layer = model.model.layers[0].self_attn
    layer.o_proj = _Wrapped(layer.o_proj, factor)
    assert "_Wrapped" in foreign_part(model)
    if factor:
        with pytest.raises(ValueError, match=r"LlamaForCausalLM with modules of another make .*_Wrapped"):
            zerodraft.attach(model)
        return
    ids = support.prompt(1)
    expected = support.plain(model, ids, max_new_tokens=NEW)
    got, stats = support.ours(model, ids, support.bushy(expected[0]), max_new_tokens=NEW)
    assert torch.equal(got, expected)
    assert stats.num_decode_forwards < NEW / 2


def test_a_forward_that_was_replaced_or_hooked_is_tried_out():
    """A module of the right kind whose work is another's: in an attribute of its own, and in a hook."""

    def over_the_whole(states):
        return states * (1 + states.abs().amax() / 10)

    for change in (
        lambda layer: setattr(layer, "forward", lambda states, real=layer.forward: over_the_whole(real(states))),
        lambda layer: layer.register_forward_hook(lambda module, args, out: over_the_whole(out)),
    ):
        model = copy.deepcopy(support.tiny("llama"))
        change(model.model.layers[0].mlp)
        with pytest.raises(
            ValueError, match=r"LlamaForCausalLM with (another forward in|hooks on) its LlamaMLP: a trial"
        ):
            zerodraft.attach(model)


def test_a_model_that_is_quantized_after_attach_is_tried_out_again():
    model = copy.deepcopy(support.tiny("llama"))
    zerodraft.attach(model)
    layer = model.model.layers[0].self_attn
    layer.o_proj = _Wrapped(layer.o_proj, 1)
    with pytest.raises(ValueError, match="a trial step"):
        model.generate(support.prompt(1), max_new_tokens=4)


def _phi3():
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0, 2.0, 3.0, 5.0],
        "original_max_position_embeddings": 48,
    }
    sizes = support.SIZES | {"num_key_value_heads": 4, "max_position_embeddings": 256}
    config = transformers.Phi3Config(**sizes, rope_parameters=rope, original_max_position_embeddings=48)
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    return model


@pytest.mark.parametrize("length", [24, 40, 47, 48, 49, 60])
def test_the_cache_is_made_anew_where_the_model_does_it(length):
    """Phi-3 computes its cache again where the text passes the length up to which it was trained."""
    model, ids = _phi3(), support.prompt(1, length)
    expected = support.plain(model, ids, max_new_tokens=NEW)
    for drafter in (support.oracle(expected[0]), support.adversary(expected[0]), support.noise(), None):
        got, stats = support.ours(model, ids, drafter, max_new_tokens=NEW)
        assert torch.equal(got, expected)
    got, stats = support.ours(model, ids, support.oracle(expected[0]), max_new_tokens=NEW)
    assert stats.num_decode_forwards < NEW / 4
    if length <= 48:
        with pytest.raises(ValueError, match="both sides of position 48"):
            support.ours(model, ids.repeat(2, 1), None, max_new_tokens=NEW)


@pytest.mark.parametrize("more", [4, 20])
def test_a_second_turn_over_the_length_where_the_cache_is_made_anew(more):
    """Within the second prompt, and while the second answer is written."""
    model, ids = _phi3(), support.prompt(1, 20)

    def turns(run):
        first = run(ids, max_new_tokens=16, return_dict_in_generate=True)
        prompt = torch.cat([first.sequences, support.prompt(9, more)], dim=1)
        mask = torch.ones_like(prompt)
        return run(prompt, max_new_tokens=NEW, cache=first.cache, attention_mask=mask)

    expected = turns(lambda prompt, **rest: support.plain(model, prompt, **rest))
    for make in (support.oracle, support.adversary):
        got = turns(lambda prompt, m=make, **rest: support.ours(model, prompt, m(expected[0]), **rest)[0])
        assert torch.equal(got, expected)


@pytest.mark.parametrize("where", ["cpu", "disk"])
@pytest.mark.parametrize("name", ["llama", "gated delta net"])
def test_weights_elsewhere(name, where, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    original = support.tiny_of(*support.OWN_STATE[name]) if name in support.OWN_STATE else support.tiny(name)
    model, ids = copy.deepcopy(original), support.prompt(1, 24)
    expected = support.plain(model, ids, max_new_tokens=NEW)
    if where == "cpu":
        accelerate.cpu_offload(model, execution_device="cpu")
    else:
        accelerate.disk_offload(model, str(tmp_path), execution_device="cpu")
    assert torch.equal(support.plain(model, ids, max_new_tokens=NEW), expected)
    got, stats = support.ours(model, ids, support.adversary(expected[0]), max_new_tokens=NEW)
    assert torch.equal(got, expected)
    assert stats.num_decode_forwards < NEW


def test_a_cache_of_another_kind_is_refused_where_the_model_keeps_a_state():
    model, ids = support.tiny_of(*support.OWN_STATE["gated delta net"]), support.prompt(1, 24)
    zerodraft.attach(model)
    try:
        for cache in (
            transformers.StaticCache(config=support.tiny("llama").config, max_cache_len=64),
            transformers.DynamicCache(config=support.tiny("mistral").config),
        ):
            with pytest.raises(ValueError, match="Qwen3NextForCausalLM"):
                model.generate(ids, max_new_tokens=4, cache=cache)
    finally:
        zerodraft.detach(model)


def test_a_cache_with_windows_under_full_attention_is_refused():
    model, ids = support.tiny_of("bloom", "BloomForCausalLM"), support.prompt(1, 24)
    layers = [transformers.cache_utils.DynamicSlidingWindowLayer(8) for _ in range(model.config.num_hidden_layers)]
    zerodraft.attach(model)
    try:
        with pytest.raises(ValueError, match="BloomForCausalLM with a cache whose layer 0 keeps 8 tokens"):
            model.generate(ids, max_new_tokens=4, cache=transformers.cache_utils.Cache(layers=layers))
    finally:
        zerodraft.detach(model)


@pytest.mark.parametrize("name", support.MODEL_NAMES)
def test_a_model_as_transformers_makes_it_needs_no_trial(name, monkeypatch):
    from zerodraft.integrations.hf import support as doors

    monkeypatch.setattr(doors, "what_is_off", lambda *_: pytest.fail("tried out"))
    assert foreign_part(support.tiny(name)) is None
    assert check_model(support.tiny(name)) == "trees"
