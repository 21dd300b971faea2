"""The state of a model's own cache: kept before a forward, and put back where a draft was rejected."""

from __future__ import annotations

from typing import Any, Final

import torch
from transformers.cache_utils import (
    Cache,
    DummyLayer,
    DynamicCache,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
)

# What ``crop`` leaves no trace in, by exact type: subclasses inherit ``is_croppable`` and add state of their own.
_CROPPABLE_CACHES: Final = frozenset({Cache, DynamicCache, EncoderDecoderCache})
_CROPPABLE: Final = frozenset({DynamicLayer, DynamicSlidingWindowLayer, DynamicIndexedLayer, DummyLayer})
_GROWING: Final = ("keys", "values")  # made longer by concatenation, never written in place


def layers_of(cache: Cache) -> list[Any]:
    """All layers that hold state, those over an encoder's output too."""
    if isinstance(cache, EncoderDecoderCache):
        return [*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers]
    return list(cache.layers)


def may_crop(cache: Cache) -> bool:
    """Whether rejected positions can be cut off again; else only a snapshot brings the state back."""
    return type(cache) in _CROPPABLE_CACHES and {type(layer) for layer in layers_of(cache)} <= _CROPPABLE


def stop_recording(cache: Cache) -> None:
    """Let windows and convolutions drop old entries again as they do by themselves."""
    for layer in layers_of(cache):
        if hasattr(layer, "record_past"):
            layer.record_past = False


class Snapshot:
    """Everything a cache holds, at one moment. Cost: a copy of each recurrent or convolution state; keys are shared."""

    def __init__(self, cache: Cache) -> None:
        self._layers = [_copied(vars(layer)) for layer in layers_of(cache)]
        own = {name: value for name, value in vars(cache).items() if name != "layers" and _is_container(value)}
        self._own = _copied(own)  # some models keep states beside the layers

    def restore(self, cache: Cache) -> None:
        """Put the cache back as it was; the snapshot is used up."""
        vars(cache).update(self._own)
        for layer, state in zip(layers_of(cache), self._layers, strict=True):
            vars(layer).clear()
            vars(layer).update(state)


def _is_container(value: Any) -> bool:
    return isinstance(value, list | dict | torch.Tensor)


def _copied(value: Any, name: str = "") -> Any:
    if isinstance(value, torch.Tensor):
        return value if name in _GROWING else value.clone()
    if type(value) is dict:
        return {key: _copied(inner, str(key)) for key, inner in value.items()}
    if type(value) is list:
        return [_copied(inner, name) for inner in value]
    return value
