"""Image-text checkpoints: text alone, and pictures in the prefill at batch 1 (cases 43 and 51)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import support  # noqa: E402

import zerodraft  # noqa: E402
from zerodraft.integrations.hf.families import placeholder_ids  # noqa: E402
from zerodraft.lookup.draft import Draft  # noqa: E402

NEW = 30
TEXT_MODELS = {  # family: class, what its configuration needs so that pictures fit
    "gemma3": ("Gemma3ForConditionalGeneration", {"own": {"mm_tokens_per_image": 4}}),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", {}),
    "qwen3_vl": (
        "Qwen3VLForConditionalGeneration",
        {"parts": {"vision_config": {"deepstack_visual_indexes": [0], "num_position_embeddings": 16}}},
    ),
    "qwen3_5": (
        "Qwen3_5ForConditionalGeneration",
        {"parts": {"vision_config": {"num_position_embeddings": 16}}},
    ),
    "llava": ("LlavaForConditionalGeneration", {"own": {"vision_feature_layer": -1}}),
    "idefics3": ("Idefics3ForConditionalGeneration", {}),
    "smolvlm": ("SmolVLMForConditionalGeneration", {}),
    "mistral3": ("Mistral3ForConditionalGeneration", {"own": {"vision_feature_layer": -1}}),
    "internvl": (
        "InternVLForConditionalGeneration",
        {"parts": {"vision_config": {"image_size": [56, 56], "patch_size": [14, 14]}}},
    ),
}
NAMES = tuple(TEXT_MODELS)


def _model(name):
    cls, odd = TEXT_MODELS[name]
    model = support.tiny_of(name, cls, **odd)
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            if parameter.ndim > 1 and ("projector" in part or not parameter.any()):
                torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(1))
    return model


def _with_picture(model, name):
    """(ids with placeholders, the model's other arguments) of a prompt with one random picture."""
    config, vision = model.config, model.config.vision_config
    generator = torch.Generator().manual_seed(0)

    def first(value):
        return value if isinstance(value, int) else value[0]

    extra = {}
    if name.startswith("qwen"):
        channels = getattr(vision, "in_channels", None) or vision.in_chans
        pixels = torch.randn(16, channels * vision.temporal_patch_size * vision.patch_size**2, generator=generator)
        count, extra = 16 // vision.spatial_merge_size**2, {"image_grid_thw": torch.tensor([[1, 4, 4]])}
    else:
        size = first(vision.image_size)
        pixels = torch.randn(1, 3, size, size, generator=generator)
        patches = (size // first(vision.patch_size)) ** 2
        if name == "gemma3":
            count = config.mm_tokens_per_image
        elif name in ("idefics3", "smolvlm"):
            count, pixels = patches // config.scale_factor**2, pixels[None]
        elif name == "mistral3":
            count, extra = patches // config.spatial_merge_size**2, {"image_sizes": torch.tensor([[size, size]])}
        else:
            count = patches // 4 if name == "internvl" else patches
    (token,) = {config.image_token_id}
    text = support.prompt(1, 30)[0]
    ids = torch.cat([text[:26], torch.full((count,), token), text[26:]])[None]  # within the reach of small windows
    types = {"gemma3": "token_type_ids"}.get(name, "mm_token_type_ids" if name.startswith("qwen") else None)
    if types is not None:
        extra[types] = (ids == token).long()
    return ids, {"pixel_values": pixels, **extra}


@pytest.mark.parametrize("name", NAMES)
def test_text_alone(name):
    model, ids = _model(name), support.prompt(1, 24)
    expected = support.plain(model, ids, max_new_tokens=NEW)
    for drafter in (support.oracle(expected[0]), support.adversary(expected[0]), support.bushy(expected[0]), None):
        got, stats = support.ours(model, ids, drafter, max_new_tokens=NEW)
        assert torch.equal(got, expected)
        if drafter is not None:
            assert stats.num_decode_forwards < NEW - 5
    if not getattr(model, "_is_stateful", False):
        both = torch.cat([ids, support.prompt(2, 24)])
        rows = support.plain(model, both, max_new_tokens=NEW)
        assert torch.equal(support.ours(model, both, None, max_new_tokens=NEW)[0], rows)


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_in_the_prefill(name):
    """Positions of several axes go on from the prefill's; another picture gives another text."""
    model = _model(name)
    ids, pictures = _with_picture(model, name)
    expected = support.plain(model, ids, max_new_tokens=NEW, **pictures)
    negative = {**pictures, "pixel_values": -3 * pictures["pixel_values"]}
    options = {"max_new_tokens": 1, "return_dict_in_generate": True, "output_logits": True}
    seen, other = (support.plain(model, ids, **options, **given).logits[0] for given in (pictures, negative))
    assert not torch.allclose(seen, other, rtol=1e-3)
    for drafter in (support.oracle(expected[0]), support.adversary(expected[0]), support.noise(), None):
        got, stats = support.ours(model, ids, drafter, max_new_tokens=NEW, **pictures)
        assert torch.equal(got, expected)
    got, stats = support.ours(model, ids, support.oracle(expected[0]), max_new_tokens=NEW, **pictures)
    assert stats.num_decode_forwards < NEW / 4
    sampled = {"do_sample": True, "top_k": 20, "max_new_tokens": NEW, **pictures}
    expected = support.plain(model, ids, seed=3, **sampled)
    got, _ = support.ours(model, ids, support.adversary(expected[0]), seed=3, **sampled)
    assert torch.equal(got, expected)


def test_a_batch_with_pictures_is_refused_by_name():
    model = _model("llava")
    ids, pictures = _with_picture(model, "llava")
    zerodraft.attach(model)
    try:
        with pytest.raises(
            ValueError, match=r"LlavaForConditionalGeneration with the model arguments \['pixel_values'\]"
        ):
            model.generate(ids.repeat(2, 1), pixel_values=pictures["pixel_values"].repeat(2, 1, 1, 1), max_new_tokens=3)
    finally:
        zerodraft.detach(model)


def test_placeholders_are_never_drafted():
    model, ids = _model("gemma3"), support.prompt(1, 24)
    taken = placeholder_ids(model)
    assert model.config.image_token_id in taken
    drafter = support.Scripted(lambda at, most, deep: Draft.chain([model.config.image_token_id, 5]))
    expected = support.plain(model, ids, max_new_tokens=8)
    got, stats = support.ours(model, ids, drafter, max_new_tokens=8)
    assert torch.equal(got, expected)
    assert stats.num_draft_tokens == 0
    assert stats.num_pruned_tokens > 0


@pytest.mark.parametrize(
    ("family", "cls"), [("gemma3n_text", "Gemma3nForCausalLM"), ("gemma4_text", "Gemma4ForCausalLM")]
)
def test_layers_that_share_a_cache(family, cls):
    """Trees, batches, and a second turn in a cache some of whose layers hold nothing."""
    model, ids, more = support.tiny_of(family, cls, factor=2.0), support.prompt(1, 24), support.prompt(9, 9)

    def turns(run):
        first = run(ids, return_dict_in_generate=True)
        return run(torch.cat([first.sequences, more], dim=1), cache=first.cache)

    expected = turns(lambda prompt, **rest: support.plain(model, prompt, max_new_tokens=NEW, **rest))
    for drafter in (support.oracle(expected[0]), support.bushy(expected[0])):
        stats = []

        def run(prompt, drafter=drafter, stats=stats, **rest):
            got, counted = support.ours(model, prompt, drafter, max_new_tokens=NEW, **rest)
            stats.append(counted)
            return got

        assert torch.equal(turns(run), expected)
        assert all(counted.num_decode_forwards < NEW / 2 for counted in stats)
    both = torch.cat([ids, support.prompt(2, 24)])
    rows = support.plain(model, both, max_new_tokens=NEW)
    assert torch.equal(support.ours(model, both, None, max_new_tokens=NEW)[0], rows)
