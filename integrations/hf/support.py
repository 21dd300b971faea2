"""What the decoding loop can do exactly, and one clear refusal for everything else, before any token is produced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import (
    Cache,
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
)
from transformers.generation.configuration_utils import GenerationMode

from zerodraft.integrations.hf.chains import num_covered
from zerodraft.integrations.hf.families import (
    FORGETFUL,
    TESTED,
    Way,
    fingerprint,
    foreign_arguments,
    foreign_part,
    in_full_precision,
    is_tested,
    why_own_cache,
)
from zerodraft.integrations.hf.target import PositionLimits
from zerodraft.lookup.checks import shown

_LARGEST_ERROR = {"trees": 2048, "chains": 8192}  # of a trial, in eps of the model's dtype; never more than 0.1
_CACHE_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer)


class Unsupported(ValueError):
    """An option, model or cache that zerodraft would not decode exactly. The message names option and class."""


def refuse(option: str, model: object, reason: str) -> Unsupported:
    """Build the one form of refusal; the caller raises it."""
    return Unsupported(
        f"zerodraft cannot decode {type(model).__name__} with {option}: {reason}. "
        "Use plain generation for this call (zerodraft.detach(model), or without custom_generate)."
    )


def check_is_model(model: object) -> None:
    """Raise a ValueError for what is no model, or holds one inside."""
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"model must be a transformers PreTrainedModel, got {shown(model)}{_inside(model)}")


def check_model(model: PreTrainedModel) -> Way:
    """Which way the model is decoded; Unsupported, by its class, where neither would be exact.

    What is no model is a ValueError. A model that the tests do not vouch for is tried out once, by some short forwards.
    """
    check_is_model(model)
    if model.config.get_text_config(decoder=True)._attn_implementation == "flex_attention":
        raise refuse("attn_implementation='flex_attention'", model, "its masks are compiled for one width")
    what = why_own_cache(model)
    if what is None and (is_tested(model, "trees") or what_is_off(model, "trees") is None):
        return "trees"
    reason = None if is_tested(model, "chains") else what_is_off(model, "chains")
    if reason is not None:
        raise refuse(what or foreign_part(model) or f"model type {model.config.model_type!r}", model, reason)
    return "chains"


def _inside(wrapper: object) -> str:
    """What to attach instead, where a model is inside of what was given."""
    get_base = getattr(wrapper, "get_base_model", None)
    places = {".get_base_model()": get_base() if callable(get_base) and not isinstance(wrapper, type) else None}
    places |= {f".{name}": getattr(wrapper, name, None) for name in ("_orig_mod", "module", "model")}
    found = next((place for place, inner in places.items() if isinstance(inner, PreTrainedModel)), None)
    return "" if found is None else f": it wraps a model, give that one: attach(model{found})"


def check_mode(model: PreTrainedModel) -> None:
    """Raise Unsupported for a model in training mode: its dropout makes every forward another one."""
    dropout = torch.nn.modules.dropout._DropoutNd
    names = (name for name, part in model.named_modules() if part.training and isinstance(part, dropout) and part.p > 0)
    found = "training mode" if model.training else next((f"{name} in training mode" for name in names), None)
    if found is not None:
        raise refuse(found, model, "its dropout would differ from forward to forward: call model.eval() first")


def way_of_call(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    config: GenerationConfig,
    cache: Cache | None,
    model_kwargs: Mapping[str, Any],
) -> Way:
    """Which way this call goes: a model that drafts trees leaves some calls at batch 1 to its own cache.

    Those are calls with pictures or other arguments of the model's own, and texts that reach the length at which the
    model computes its cache anew.
    """
    way = check_model(model)
    if way == "chains" or input_ids.shape[0] > 1:
        return way
    what = foreign_arguments(model_kwargs)
    option = f"the model arguments {what}" if what else None
    if option is None:
        read = num_covered(input_ids, config, model_kwargs)
        begun = (cache.get_seq_length() if isinstance(cache, Cache) else 0) or read
        limits = PositionLimits(model.config.get_text_config(decoder=True))
        border = limits.recomputed_between(begun, read + (config.max_length or 0) - input_ids.shape[1])
        option = None if border is None else f"a text that reaches position {border}"
    if option is None:
        return way
    reason = what_is_off(model, "chains")
    if reason is not None:
        raise refuse(option, model, reason)
    return "chains"


def what_is_off(model: PreTrainedModel, way: Way) -> str | None:
    """What a trial of this way on this very model found wrong, None if nothing; kept with the model."""
    verdicts = vars(model).setdefault("_zerodraft_trials", {})
    key = (way, fingerprint(model))
    if key not in verdicts:
        verdicts[key] = _tried(model, way)
    verdict: str | None = verdicts[key]
    return verdict


def _tried(model: PreTrainedModel, way: Way) -> str | None:
    from zerodraft.integrations.hf.selftest import chain_error, width_error

    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        one = in_full_precision(model)
        if one is model and model.dtype.itemsize < 4 and model.config.model_type in FORGETFUL:
            return "its wide forwards do not go on from its state"
        error = (width_error if way == "trees" else chain_error)(one)
        if error < min(_LARGEST_ERROR[way] * torch.finfo(one.dtype).eps, 0.1):
            return None
        return f"a trial step was off by {error:.1e} of its scale"
    except Exception as failure:
        return f"a trial step failed: {failure or type(failure).__name__}"
    finally:
        for module in training:
            module.training = True


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


def check_cache(model: PreTrainedModel, cache: Cache, num_rows: int, way: Way = "trees") -> None:
    """Raise Unsupported unless the cache is one that this way of decoding can go on in, and one of this model."""
    if isinstance(cache, EncoderDecoderCache):
        check_cache(model, cache.self_attention_cache, num_rows)
        check_cache(model, cache.cross_attention_cache, num_rows)
        return
    if not isinstance(cache, Cache):
        raise refuse(f"a cache of type {type(cache).__name__}", model, "only dynamic caches are")
    if getattr(cache, "offloading", False):
        raise refuse("an offloaded cache", model, "its layers leave the device between steps")
    own = DynamicCache(config=model.config.get_text_config(decoder=True)).layers if way == "chains" else []
    for index, layer in enumerate(cache.layers):
        is_own = index < len(own) and type(layer) is type(own[index])
        if type(layer) not in _CACHE_LAYERS and not is_own:
            wanted = f"layer {index} needs a {type(own[index]).__name__}" if own[index:] else "only dynamic caches are"
            raise refuse(f"the cache {type(cache).__name__} ({type(layer).__name__})", model, wanted)
    if not model.config.is_encoder_decoder:
        _check_fit(model, cache, num_rows)


def _check_fit(model: PreTrainedModel, cache: Cache, num_rows: int) -> None:
    """Raise Unsupported for a cache that another model, or another batch, has filled or prepared."""
    own = DynamicCache(config=model.config.get_text_config(decoder=True)).layers
    for index, layer in enumerate(cache.layers[: len(own)]):
        window, expected = (getattr(one, "sliding_window", None) for one in (layer, own[index]))
        if window is not None and window != expected:
            given = f"a cache whose layer {index} keeps {window} tokens"
            raise refuse(given, model, f"the model's layer looks at {expected or 'all'}")
    filled = {index: layer.keys for index, layer in enumerate(cache.layers) if _is_filled(layer)}
    if filled and len(filled) != sum(isinstance(layer, DynamicLayer) for layer in own):
        raise refuse(f"a cache of {len(filled)} layers", model, f"the model has {len(own)}")
    for index, keys in filled.items():
        reason = _misfit(model, keys, num_rows)
        if reason is not None:
            raise refuse(f"a cache whose layer {index} has {reason[0]}", model, f"expected {reason[1]}")


def _is_filled(layer: object) -> bool:
    """Whether a layer of a cache holds keys; layers that share another's, or keep a state only, do not."""
    return isinstance(layer, DynamicLayer) and layer.is_initialized and layer.get_seq_length() > 0


def _misfit(model: PreTrainedModel, keys: torch.Tensor, num_rows: int) -> tuple[str, str] | None:
    """What is wrong with a layer's keys (B, heads, n, size), and what would be right; None: nothing."""
    config = model.config.get_text_config(decoder=True)
    if keys.shape[0] != num_rows:
        return f"{keys.shape[0]} rows", str(num_rows)
    if keys.dtype != model.dtype and not torch.is_autocast_enabled(keys.device.type):
        return f"dtype {keys.dtype}", str(model.dtype)
    if keys.device.type != model.device.type != "meta":  # weights kept elsewhere say nothing about the cache
        return f"device {keys.device}", str(model.device)
    if config.model_type not in TESTED["trees"]:
        return None  # whose heads may be counted otherwise, or differ from layer to layer
    heads = getattr(config, "num_key_value_heads", None)
    if heads is not None and keys.shape[1] != heads:
        return f"{keys.shape[1]} heads", str(heads)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if keys.shape[3] != size:
        return f"heads of {keys.shape[3]} dimensions", str(size)
    return None
