"""What the decoding loop can do exactly, and one clear refusal for everything else, before any token is produced."""

from __future__ import annotations

import inspect

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer, EncoderDecoderCache
from transformers.generation.configuration_utils import GenerationMode

from zerodraft.lookup.checks import shown

_LAYER_TYPES = {"full_attention", "sliding_attention"}
_ENCODER_DECODERS = {"t5", "bart"}
_ATTENTION = {"eager", "sdpa"}
# Families that the tests compare with plain generation; others are tried out once before they are trusted.
_TESTED = {
    *("falcon", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "gpt_oss", "gptj", "llama"),
    *("mistral", "mixtral", "opt", "phi", "phi3", "qwen2", "qwen3"),
}
_CACHE_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer)


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


def check_model(model: PreTrainedModel) -> None:
    """Raise Unsupported for a model whose decoding the ragged cache and explicit positions do not reproduce, and a
    ValueError for what is no model."""
    check_is_model(model)
    config = model.config
    text_config = config.get_text_config(decoder=True)
    if config.is_encoder_decoder and config.model_type not in _ENCODER_DECODERS:
        raise refuse("is_encoder_decoder=True", model, f"of this kind only {sorted(_ENCODER_DECODERS)} are supported")
    if getattr(model, "_is_stateful", False):
        raise refuse("a recurrent state", model, "its state cannot be rolled back after a rejected draft")
    other = set(getattr(text_config, "layer_types", None) or ()) - _LAYER_TYPES
    if other:
        raise refuse(f"layer types {sorted(other)}", model, f"only {sorted(_LAYER_TYPES)} can be rolled back")
    if config.is_encoder_decoder:
        return
    if not _takes_positions(model) or getattr(text_config, "alibi", False):
        raise refuse("positions given by the model itself", model, "drafted tokens need explicit position_ids")
    attention = text_config._attn_implementation
    if attention not in _ATTENTION:
        raise refuse(f"attn_implementation={attention!r}", model, f"tree masks need one of {sorted(_ATTENTION)}")
    if text_config.model_type not in _TESTED and not vars(model).get("_zerodraft_tried", False):
        _try_out(model)


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


def _try_out(model: PreTrainedModel) -> None:
    """Refuse an untested family unless a small experiment on this very model comes out right."""
    from zerodraft.integrations.hf.selftest import width_error

    was_training = model.training
    try:
        error = width_error(model.eval())
    except Exception as failure:
        raise refuse(f"model type {model.config.model_type!r}", model, f"a trial step failed: {failure}") from failure
    finally:
        model.train(was_training)
    if not error < min(256 * torch.finfo(model.dtype).eps, 0.1):
        raise refuse(
            f"model type {model.config.model_type!r}", model, f"a trial step was off by {error:.1e} of its scale"
        )
    model._zerodraft_tried = True


def _takes_positions(model: PreTrainedModel) -> bool:
    return "position_ids" in inspect.signature(model.forward).parameters


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


def check_cache(model: PreTrainedModel, cache: Cache, num_rows: int) -> None:
    """Raise Unsupported unless every layer grows with the text, can be copied in and out, and is one of this model."""
    if isinstance(cache, EncoderDecoderCache):
        check_cache(model, cache.self_attention_cache, num_rows)
        check_cache(model, cache.cross_attention_cache, num_rows)
        return
    if not isinstance(cache, Cache):
        raise refuse(f"a cache of type {type(cache).__name__}", model, "only dynamic caches are")
    if getattr(cache, "offloading", False):
        raise refuse("an offloaded cache", model, "its layers leave the device between steps")
    for layer in cache.layers:
        if type(layer) not in _CACHE_LAYERS:
            raise refuse(f"the cache {type(cache).__name__} ({type(layer).__name__})", model, "only dynamic caches are")
    if not model.config.is_encoder_decoder:
        _check_fit(model, cache, num_rows)


def _check_fit(model: PreTrainedModel, cache: Cache, num_rows: int) -> None:
    """Raise Unsupported for a cache that another model, or another batch, has filled or prepared."""
    own = DynamicCache(config=model.config).layers
    for index, layer in enumerate(cache.layers[: len(own)]):
        window, expected = (getattr(one, "sliding_window", None) for one in (layer, own[index]))
        if window is not None and window != expected:
            given = f"a cache whose layer {index} keeps {window} tokens"
            raise refuse(given, model, f"the model's layer looks at {expected or 'all'}")
    filled = [layer for layer in cache.layers if layer.is_initialized]
    if not filled:
        return
    if len(filled) != len(own):
        raise refuse(f"a cache of {len(filled)} layers", model, f"the model has {len(own)}")
    for index, layer in enumerate(filled):
        reason = _misfit(model, layer.keys, num_rows)
        if reason is not None:
            raise refuse(f"a cache whose layer {index} has {reason[0]}", model, f"expected {reason[1]}")


def _misfit(model: PreTrainedModel, keys: torch.Tensor, num_rows: int) -> tuple[str, str] | None:
    """What is wrong with a layer's keys (B, heads, n, size), and what would be right; None: nothing."""
    config = model.config.get_text_config(decoder=True)
    if keys.shape[0] != num_rows:
        return f"{keys.shape[0]} rows", str(num_rows)
    if keys.dtype != model.dtype and not torch.is_autocast_enabled(keys.device.type):
        return f"dtype {keys.dtype}", str(model.dtype)
    if keys.device.type != model.device.type != "meta":  # weights kept elsewhere say nothing about the cache
        return f"device {keys.device}", str(model.device)
    heads = getattr(config, "num_key_value_heads", None)
    if config.model_type in _TESTED and heads is not None and keys.shape[1] != heads:
        return f"{keys.shape[1]} heads", str(heads)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if config.model_type in _TESTED and keys.shape[3] != size:
        return f"heads of {keys.shape[3]} dimensions", str(size)
    return None
