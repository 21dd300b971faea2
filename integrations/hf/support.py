"""What the decoding loop can do exactly, and one clear refusal for everything else, before any token is produced."""

from __future__ import annotations

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import Cache, DummyLayer, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation.configuration_utils import GenerationMode

from zerodraft.integrations.hf.families import Way, fingerprint, is_tested, why_own_cache

_CACHE_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer)


class Unsupported(ValueError):
    """An option, model or cache that zerodraft would not decode exactly. The message names option and class."""


def refuse(option: str, model: object, reason: str) -> Unsupported:
    """Build the one form of refusal; the caller raises it."""
    return Unsupported(
        f"zerodraft cannot decode {type(model).__name__} with {option}: {reason}. "
        "Use plain generation for this call (zerodraft.detach(model), or without custom_generate)."
    )


def check_model(model: PreTrainedModel) -> Way:
    """Which way the model is decoded; Unsupported, by its class, where neither would be exact.

    A model that the tests do not vouch for is tried out once: some short forwards, the first time only.
    """
    what = why_own_cache(model)
    if what is None and (is_tested(model) or what_is_off(model, "trees") is None):
        return "trees"
    reason = what_is_off(model, "chains")
    if reason is not None:
        raise refuse(what or f"model type {model.config.model_type!r}", model, reason)
    return "chains"


def what_is_off(model: PreTrainedModel, way: Way) -> str | None:
    """What a trial of this way on this very model found wrong, None if nothing; kept with the model."""
    from zerodraft.integrations.hf.selftest import chain_error, width_error

    verdicts = vars(model).setdefault("_zerodraft_trials", {})
    key = (way, fingerprint(model))
    if key not in verdicts:
        training = [module for module in model.modules() if module.training]
        try:
            error = (width_error if way == "trees" else chain_error)(model.eval())
            is_fine = error < min(256 * torch.finfo(model.dtype).eps, 0.1)
            verdicts[key] = None if is_fine else f"a trial step was off by {error:.1e} of its scale"
        except Exception as failure:
            verdicts[key] = f"a trial step failed: {type(failure).__name__}: {failure}"
        finally:
            for module in training:
                module.training = True
    verdict: str | None = verdicts[key]
    return verdict


def check_options(model: PreTrainedModel, config: GenerationConfig) -> None:
    """Raise Unsupported for generation options outside greedy decoding and sampling with a dynamic cache."""
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        option = {"num_beams": config.num_beams} if (config.num_beams or 1) > 1 else {"generation mode": mode.value}
        raise refuse(", ".join(f"{k}={v}" for k, v in option.items()), model, "only greedy decoding and sampling are")
    if config.use_cache is False:
        raise refuse("use_cache=False", model, "verification needs the key/value cache")
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name, None):
            raise refuse(f"{name}=True", model, "they would come in blocks, not per token")
    if config.cache_implementation not in (None, "dynamic"):
        raise refuse(f"cache_implementation={config.cache_implementation!r}", model, "only dynamic caches are")
    if getattr(config, "is_assistant", False):
        raise refuse("is_assistant=True", model, "an assistant drafts for another model")


def check_cache(model: PreTrainedModel, cache: Cache, way: Way = "trees") -> None:
    """Raise Unsupported unless the cache is one that this way of decoding can go on in."""
    if getattr(cache, "offloading", False):
        raise refuse("an offloaded cache", model, "its layers leave the device between steps")
    if way == "chains":
        return _check_own_cache(model, cache)
    for layer in cache.layers:
        if type(layer) not in _CACHE_LAYERS:
            raise refuse(f"the cache {type(cache).__name__} ({type(layer).__name__})", model, "only dynamic caches are")


def _check_own_cache(model: PreTrainedModel, cache: Cache) -> None:
    """Chains go on in the cache itself: its layers must be the model's own kinds, or keep more than those."""
    if not getattr(cache, "_is_user_defined", False) or model.config.is_encoder_decoder:
        return
    own = DynamicCache(config=model.config.get_text_config(decoder=True))
    for number, (layer, mine) in enumerate(zip(cache.layers, own.layers)):
        keeps_all = type(layer) is DynamicLayer and type(mine) is DynamicSlidingWindowLayer
        windows = (getattr(layer, "sliding_window", None), getattr(mine, "sliding_window", None))
        if not keeps_all and (type(layer) is not type(mine) or windows[0] != windows[1]):
            got, wanted = type(layer).__name__, type(mine).__name__
            raise refuse(f"the cache {type(cache).__name__} ({got})", model, f"layer {number} needs a {wanted}")
