"""Tiny random models of every family that transformers can build: configurations shrunk by their fields' names."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.models.auto import modeling_auto

# Families whose configuration the names of its fields do not tell how to shrink: fields of its "own", of its "parts"
# (one with "keep" stays as large as it is), the number of "layers" where it is fixed.
ODD: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("families_odd.json").read_text(encoding="utf-8"))
# Families whose rotary embeddings have several axes, with default sections that do not fit a small head.
SECTIONED = frozenset(
    [
        "cohere_compass",
        "cosmos3_edge",
        "ernie4_5_vl_moe",
        "glm46v",
        "glm4v",
        "glm4v_moe",
        "glm_ocr",
        "glmga",
        "hunyuan_vl",
        "hy_v4_vl",
        "paddleocr_vl",
        "qwen2_5_omni",
        "qwen2_5_omni_thinker",
        "qwen2_5_vl",
        "qwen2_vl",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_omni_moe",
        "qwen3_omni_moe_thinker",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen4_exp",
        "qwen4_exp_text",
        "video_llama_3",
    ]
)
VOCAB = 128
WIDTH, HEADS, GROUPS, HEAD = 64, 4, 2, 16
WINDOW = 8
KINDS = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "SEQ_TO_SEQ_CAUSAL_LM", "MULTIMODAL_LM")
TEXT_PARTS = ("text_config", "decoder", "decoder_config", "thinker_config", "llm_config", "language_config")
TEXT_WORDS = ("text", "decoder", "thinker", "language", "llm")
DEPTHS = (2, 3, 4, 5, 6, 8, 10, 12)  # layers tried, until every kind of layer that the family has is there

# What a field of this name becomes: sizes of the text model, and of all other parts.
_TEXT_SIZES = {
    WIDTH: "hidden_size d_model n_embd dim_model emb_dim embedding_size embed_dim decoder_hidden_size hidden_dim "
    "word_embed_proj_dim lru_width text_hidden_size conv_dim cross_attention_hidden_size",
    HEADS: "num_attention_heads num_heads n_head n_heads attention_heads encoder_attention_heads linear_num_heads "
    "decoder_attention_heads num_decoder_attention_heads num_encoder_attention_heads linear_num_value_heads "
    "num_experts n_routed_experts num_local_experts moe_num_experts",
    96: "intermediate_size ffn_dim d_ff dim_ff dff encoder_ffn_dim decoder_ffn_dim n_inner d_inner ffn_hidden_size "
    "mlp_dim intermediate_size_mlp dense_intermediate_size",
    32: "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size expert_ffn_hidden_size "
    "moe_shared_expert_intermediate_size shared_experts_intermediate_size audio_hidden_size",
    HEAD: "head_dim d_kv kv_channels swa_head_dim global_head_dim dim_head attention_head_dim kv_lora_rank q_lora_rank "
    "o_lora_rank qk_nope_head_dim v_head_dim mamba_d_head mamba_headdim mamba_head_dim index_head_dim index_n_heads "
    "num_mel_bins hidden_size_per_layer_input",
    1024: "max_position_embeddings n_positions n_ctx max_seq_len seq_len max_target_positions "
    "max_decoder_position_embeddings max_encoder_position_embeddings",
    24: "qk_head_dim",
    8: "qk_rope_head_dim linear_key_head_dim linear_value_head_dim linear_head_dim mamba_d_state mamba_n_heads "
    "mamba_chunk_size mamba_num_heads ssm_state_size state_size mamba_dt_rank time_step_rank rotary_dim hc_lowrank "
    "index_topk",
    2: "num_experts_per_tok moe_topk moe_k top_k_experts linear_num_key_heads mamba_expand n_mamba_heads "
    "indexer_n_heads hc_mult hc_count type_vocab_size",
    1: "n_group topk_group n_groups mamba_n_groups mamba_ngroups n_shared_experts num_shared_experts "
    "moe_num_shared_experts first_k_dense_replace num_dense_layers",
    0: "num_nextn_predict_layers num_mtp_layers layerdrop decoder_layerdrop encoder_layerdrop",
    128: "mamba_d_ssm max_2d_position_embeddings vocab_size src_vocab_size tgt_vocab_size decoder_vocab_size "
    "unpadded_vocab_size vocab_size_per_layer_input",
    3: "hc_sinkhorn_iters",
}
_OTHER_SIZES = {
    32: "hidden_size d_model embed_dim projection_dim hidden_dim",
    4: "num_attention_heads num_heads encoder_attention_heads attention_heads num_key_value_heads",
    64: "intermediate_size encoder_ffn_dim mlp_dim ffn_dim",
    8: "head_dim",
    56: "image_size",
    14: "patch_size",
    16: "num_mel_bins",
    WIDTH + 0.0: "out_hidden_size output_dim",
    2: "depth",
    160: "input_dim",
}
_WINDOWS = "sliding_window sliding_window_size attention_window_size window_size_text attention_chunk_size index_topk"
_NEVER_MORE = [
    "first_k_dense_replace",
    "n_shared_experts",
    "num_shared_experts",
    "num_nextn_predict_layers",
    "num_mtp_layers",
    "type_vocab_size",
    "moe_num_shared_experts",
    "num_dense_layers",
]
_LAYERS = [
    "num_hidden_layers",
    "num_layers",
    "n_layer",
    "n_layers",
    "decoder_layers",
    "encoder_layers",
    "num_decoder_layers",
    "num_encoder_layers",
    "depth",
    "num_blocks",
    "resampler_depth",
    "layers",
]
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads", "num_global_key_value_heads")
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}


def _by_name(groups: dict[Any, str]) -> dict[str, Any]:
    return {name: int(value) for value, names in groups.items() for name in names.split()}


TEXT_SIZES, OTHER_SIZES = _by_name(_TEXT_SIZES), _by_name(_OTHER_SIZES)
_placeholders: dict[str, int] = {}


@dataclass(frozen=True, order=True)
class Family:
    """A class of models that generates text, as transformers' tables name it."""

    name: str
    cls: str
    kinds: str = ""


def families() -> list[Family]:
    """Every class that a table of generating models names, once."""
    found: dict[tuple[str, str], list[str]] = {}
    for kind in KINDS:
        for name, classes in getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES").items():
            for cls in classes if isinstance(classes, (tuple, list)) else (classes,):
                found.setdefault((name, cls), []).append(kind)
    return [Family(name, cls, "+".join(kinds)) for (name, cls), kinds in sorted(found.items())]


class _NoTower(torch.nn.Module):
    """Stands for a timm backbone, which is not installed and which texts do not use."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config


def _without_timm() -> None:
    real = transformers.AutoModel.from_config.__func__

    def from_config(cls: Any, config: Any, **options: Any) -> Any:
        is_timm = type(config).__name__ == "TimmWrapperConfig" or config.model_type == "gemma3n_vision"
        return _NoTower(config) if is_timm else real(cls, config, **options)

    transformers.AutoModel.from_config = classmethod(from_config)


_without_timm()
logging.getLogger("transformers").setLevel(logging.CRITICAL)
transformers.logging.set_verbosity(50)


def tiny_config(name: str, window: int = WINDOW, odd: dict[str, Any] | None = None) -> Any:
    """The family's smallest configuration that still has each kind of layer of its default one."""
    cls, odd = CONFIG_MAPPING[name], copy.deepcopy(ODD.get(name, {}) if odd is None else odd)
    try:
        wanted = _layer_types(cls())
    except Exception:
        wanted = set()
    first, failure = None, None
    for num_layers in (odd["layers"],) if "layers" in odd else DEPTHS:
        try:
            values = _shrunk(cls, True, num_layers, window, odd.get("own", {}), odd.get("parts", {}))
            config = _fit_sections(cls(**values), name)
        except Exception as error:
            failure = error
            continue
        first = first or config
        if wanted <= _layer_types(config):
            return config
    if first is None:
        assert failure is not None
        raise failure
    return first


def _layer_types(config: Any) -> set[str]:
    with contextlib.suppress(Exception):
        config = config.get_text_config(decoder=True)
    return set(getattr(config, "layer_types", None) or ())


def _shrunk(cls: Any, is_text: bool, num_layers: int, window: int, own: dict, parts: dict) -> dict[str, Any]:
    """Arguments for a configuration class; ``own`` and ``parts`` are what its names do not tell."""
    defaults = {field.name: _default(field) for field in fields(cls)}
    out = {}
    for name, default in defaults.items():
        value = _small(name, default, defaults, is_text, num_layers, window)
        if value is not None:
            out[name] = value
    for name, spec in (getattr(cls, "sub_configs_defaults", None) or {}).items():
        if name not in own and parts.get(name, {}) is not None:
            out[name] = _part(name, spec, num_layers, window, dict(parts.get(name, {})))
    return {**out, **own}


def _part(name: str, spec: Any, num_layers: int, window: int, odd: dict) -> dict[str, Any]:
    nested, keep = odd.pop("parts", {}), odd.pop("keep", False)
    is_fixed = isinstance(spec.config_class, type) and issubclass(spec.config_class, PreTrainedConfig)
    cls = spec.config_class if is_fixed else spec.get_config_class(spec.model_type)
    is_text = name in TEXT_PARTS or (any(word in name for word in TEXT_WORDS) and "vision" not in name)
    values = {} if keep and not is_text else _shrunk(cls, is_text, num_layers, window, odd, nested)
    return {**values, **odd, **({} if is_fixed else {"model_type": cls.model_type})}


def _default(field: Any) -> Any:
    if field.default is not MISSING:
        return field.default
    return None if field.default_factory is MISSING else field.default_factory()


def _small(name: str, default: Any, defaults: dict, is_text: bool, num_layers: int, window: int) -> Any:
    """What a field becomes, None to leave it as it is."""
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    if name in _LAYERS and (default is None or isinstance(default, int)) and not isinstance(default, bool):
        return None if default is None else num_layers if is_text else min(2, default)
    if name.endswith(("token_id", "token_index")) and (isinstance(default, int) or name in _TOKENS):
        return _TOKENS.get(name, _placeholders.setdefault(name, 127 - len(_placeholders) % 27))
    if not is_text:
        return OTHER_SIZES[name] if name in OTHER_SIZES and is_number and isinstance(default, int) else None
    if name in _KEY_HEADS:
        heads = defaults.get("num_attention_heads", defaults.get("swa_num_attention_heads"))
        return None if default is None else HEADS if default == heads else min(default, GROUPS)
    if name in _WINDOWS.split() or name == "local_attention":
        return (2 * window if name == "local_attention" else window) if is_number else None
    if name not in TEXT_SIZES or not is_number:
        return None
    size = min(TEXT_SIZES[name], default) if name in _NEVER_MORE else TEXT_SIZES[name]
    return type(default)(size)


def _fit_sections(config: Any, name: str) -> Any:
    """Sections of rotary embeddings with several axes must sum to half of the rotary dimensions."""
    todo, done = [config], set()
    while todo:
        part = todo.pop()
        if id(part) in done:
            continue
        done.add(id(part))
        todo += [value for value in vars(part).values() if isinstance(value, PreTrainedConfig)]
        rope = getattr(part, "rope_parameters", None)
        if isinstance(rope, dict) and name != "ernie4_5_vl_moe":
            if name in SECTIONED and "rope_theta" in rope and hasattr(part, "vocab_size"):
                rope.setdefault("mrope_section", [1, 1, 1])
            _set_sections(rope, _rotary_half(part, rope))
    return config


def _rotary_half(part: Any, rope: dict) -> int:
    try:
        head = getattr(part, "head_dim", None)
    except Exception:  # one for each layer
        head = HEAD
    head = head or getattr(part, "hidden_size", WIDTH) // max(1, getattr(part, "num_attention_heads", HEADS) or 1)
    factor = rope.get("partial_rotary_factor", getattr(part, "partial_rotary_factor", 1.0)) or 1.0
    return int(head * factor) // 2


def _set_sections(rope: dict, half: int) -> None:
    for key, value in rope.items():
        if isinstance(value, dict):
            _set_sections(value, half)
        elif key == "mrope_section" and isinstance(value, list | tuple):
            count = len(value)
            sections = [half // count] * count
            sections[0] += half - sum(sections)
            if count == 3 and half >= 4:
                sections = [half // 2, half // 4, half - half // 2 - half // 4]
            rope[key] = type(value)(sections)


def tiny_model(family: Family, *, window: int = WINDOW, seed: int = 7, config: Any = None) -> Any:
    """A random model of the family in float32, its own generation defaults silenced."""
    config = tiny_config(family.name, window) if config is None else config
    cls = getattr(transformers, family.cls)
    wanted = getattr(cls, "config_class", None)
    if wanted is not None and not isinstance(config, wanted):  # as AutoModelForCausalLM does for composite ones
        text = config.get_text_config(decoder=True)
        parts = [value for value in vars(config).values() if isinstance(value, wanted)]
        config = text if isinstance(text, wanted) else parts[0] if parts else config
    is_decoder = ("Causal" in family.cls and hasattr(config, "is_decoder")) or family.cls.endswith("LMHeadModel")
    if is_decoder and not getattr(config, "is_encoder_decoder", False):
        with contextlib.suppress(Exception):
            config.is_decoder = True
    torch.manual_seed(seed)
    model = cls._from_config(config) if hasattr(cls, "_from_config") else cls(config)
    model = model.eval().float()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if not torch.isfinite(parameter).all():
            torch.nn.init.normal_(parameter, std=0.02)
    _silence(model)
    return model


def _silence(model: Any) -> None:
    defaults = model.generation_config
    for name in [
        "eos_token_id",
        "forced_eos_token_id",
        "forced_bos_token_id",
        "suppress_tokens",
        "begin_suppress_tokens",
        "max_length",
        "min_length",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "max_new_tokens",
    ]:
        if getattr(defaults, name, None) is not None:
            setattr(defaults, name, None)
    defaults.pad_token_id, defaults.bos_token_id = 0, 1
    defaults.num_beams, defaults.do_sample = 1, False
    defaults.use_cache = True if defaults.use_cache is False else defaults.use_cache
    if getattr(model.config, "is_encoder_decoder", False) and defaults.decoder_start_token_id is None:
        defaults.decoder_start_token_id = 2


@torch.no_grad()
def spread(model: Any, factor: float) -> Any:
    """Widen the logits, so that text is neither constant nor full of ties."""
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and "A_log" not in name and parameter.is_floating_point():
            parameter.mul_(factor)
    return model
