"""Which way a model is decoded: drafts as trees in the ragged cache, or chains in the model's own cache."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import torch
from transformers import PreTrainedModel

Way = Literal["trees", "chains"]

# Families that the tests compare with plain generation. A model of one of them goes its way without a trial as long as
# nothing foreign stands in it; every other model is tried out before it is trusted.
TESTED: Final[dict[Way, frozenset[str]]] = {
    "trees": frozenset(
        {
            *("falcon", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "gpt_oss", "gptj", "llama"),
            *("mistral", "mixtral", "opt", "phi", "phi3", "qwen2", "qwen3"),
        }
    ),
    "chains": frozenset({"bart", "t5"}),
}
# Families whose wide forwards forget their state. A trial finds that out in float32; in half precision, where rounding
# hides it, this list does.
FORGETFUL: Final = frozenset({"falcon_mamba", "jamba", "mamba", "recurrent_gemma", "rwkv", "xlstm"})
_MOST_TO_COPY: Final = 200_000_000  # parameters of a model that is tried out as a copy in float32
_LAYER_TYPES: Final = frozenset({"full_attention", "sliding_attention"})
_TREE_ATTENTION: Final = ("eager", "sdpa")
# Ids that stand for what is no text: the name of a field of the configuration ends in one of these.
_PLACEHOLDERS: Final = tuple(
    f"{kind}_{end}" for kind in ("image", "video", "audio", "img", "vision") for end in ("token_id", "token_index")
)

_GIVEN_AS: Final = {"image": "pixel_values", "video": "pixel_values_videos"}

# The table: what a model has that the ragged cache with explicit positions does not reproduce. The first that holds
# sends it the way of chains, where a trial on the model itself has the last word.
OWN_CACHE: Final[tuple[tuple[str, Callable[[PreTrainedModel, Any], bool]], ...]] = (
    ("an encoder", lambda model, text: bool(model.config.is_encoder_decoder)),
    ("a recurrent state", lambda model, text: bool(getattr(model, "_is_stateful", False))),
    ("layers that keep more than keys and values", lambda model, text: bool(_layer_types(text) - _LAYER_TYPES)),
    ("positions given by the model itself", lambda model, text: not _takes_positions(model) or _has_alibi(text)),
    ("layers that run more than once", lambda model, text: hasattr(text, "recurrent_kv_cache_mode")),
    ("an attention without tree masks", lambda model, text: text._attn_implementation not in _TREE_ATTENTION),
    ("weights that are fetched as they are needed", lambda model, text: is_offloaded(model)),
)


def why_own_cache(model: PreTrainedModel) -> str | None:
    """What about this model needs its own cache, by the table; None where trees in the ragged cache may do."""
    text = model.config.get_text_config(decoder=True)
    return next((what for what, holds in OWN_CACHE if holds(model, text)), None)


def is_tested(model: PreTrainedModel, way: Way) -> bool:
    """Whether the tests vouch for this model: its family is theirs, and it is made as transformers makes it."""
    return model.config.get_text_config(decoder=True).model_type in TESTED[way] and foreign_part(model) is None


def foreign_part(model: PreTrainedModel) -> str | None:
    """What stands in the model that transformers did not put there, so that its family says little about it; or None.

    Quantized weights, modules that wrap or replace others, hooks. Cost: one pass over modules and parameters, below a
    millisecond for most models.
    """
    if getattr(model, "is_quantized", False):
        return "quantized weights"
    parts = _parts(model)
    for kind in {type(part) for part in parts}:
        if not kind.__module__.startswith(("torch.nn.modules.", "transformers.")):
            return f"modules of another make ({kind.__module__}.{kind.__qualname__})"
    for part in parts:
        if part._forward_hooks or part._forward_pre_hooks or "parametrizations" in part._modules:
            return f"hooks on its {type(part).__name__}"
        if "forward" in vars(part):
            return f"another forward in its {type(part).__name__}"
    tensors = list(model.parameters())
    other = next((type(p.data).__name__ for p in tensors if type(p.data) is not torch.Tensor), None)
    if other is not None:
        return f"weights of another kind ({other})"
    if hasattr(model, "_hf_hook") or len({p.dtype for p in tensors}) > 1:
        return "weights kept in more than one way"
    return None


def in_full_precision(model: PreTrainedModel) -> PreTrainedModel:
    """A copy in float32 to try out, of a model whose rounding would hide faults; itself where that is not to be had."""
    is_half = model.dtype.itemsize < 4 and foreign_part(model) is None and not is_offloaded(model)
    if not is_half or model.num_parameters() > _MOST_TO_COPY:
        return model
    return copy.deepcopy(model).float()


def fingerprint(model: PreTrainedModel) -> int:
    """What a trial's result depends on beside the weights: kinds of modules, dtypes, devices, attention, hooks."""
    text = model.config.get_text_config(decoder=True)
    parts = tuple((type(module), len(module._forward_hooks), len(vars(module))) for module in _parts(model))
    tensors = tuple((type(p.data), p.dtype, p.device) for p in model.parameters())
    return hash((parts, tensors, getattr(text, "_attn_implementation", None)))


def _parts(model: PreTrainedModel) -> list[torch.nn.Module]:
    """All modules but the model itself, on which people hang hooks of their own that change nothing."""
    return [module for module in model.modules() if module is not model]


def is_offloaded(model: PreTrainedModel) -> bool:
    """Whether some weights are elsewhere until a module runs (accelerate's CPU and disk offload)."""
    return any(parameter.device.type == "meta" for parameter in model.parameters())


def device_of(model: PreTrainedModel) -> torch.device:
    """Where the model takes its inputs; an offloaded one moves them itself."""
    return torch.device("cpu") if model.device.type == "meta" else model.device


def placeholder_ids(model: PreTrainedModel) -> frozenset[int]:
    """Ids that stand for pictures, films or sound in a prompt: a draft never holds them."""
    config = model.config
    found = set()
    for place in {id(part): part for part in (config, config.get_text_config(decoder=True))}.values():
        for name, value in vars(place).items():
            if name.endswith(_PLACEHOLDERS) and isinstance(value, int) and not isinstance(value, bool):
                found.add(value)
    return frozenset(value for value in found if value >= 0)


def foreign_arguments(model_kwargs: Mapping[str, Any]) -> list[str]:
    """Names of the model arguments beside ids, embeddings, mask and positions that say anything.

    Types of tokens that are all 0 say "text" and nothing else.
    """
    known = ("attention_mask", "inputs_embeds", "position_ids", "logits_to_keep", "use_cache", "cache")
    types = ("token_type_ids", "mm_token_type_ids")
    names: set[str] = set()
    for name, value in model_kwargs.items():
        if name in known or _is_empty(value) or (name in types and not bool(value.any())):
            continue
        is_encoded = name == "mm_encoder_outputs"  # generate has read pictures already: named as the caller gave them
        names.update((_GIVEN_AS.get(kind, kind) for kind in value) if is_encoded else [name])
    return sorted(names)


def _layer_types(text: Any) -> set[str]:
    return set(getattr(text, "layer_types", None) or ())


def _takes_positions(model: PreTrainedModel) -> bool:
    return "position_ids" in inspect.signature(model.forward).parameters


def _has_alibi(text: Any) -> bool:
    return bool(getattr(text, "alibi", False))


def _is_empty(value: Any) -> bool:
    """Whether a model argument says nothing: None, or an empty container as generate itself hands along."""
    return value is None or (isinstance(value, Mapping | list | tuple) and not len(value))
