"""The one call of ``generate`` that all pipelines share, and what it lets a checkpoint's own settings say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from zerodraft.integrations.pipelines.settings import Drafting, Sampling
from zerodraft.lookup.measure.stats import GenerationStats

if TYPE_CHECKING:
    import torch

_KEPT: Final = frozenset(
    {
        "eos_token_id", "pad_token_id", "bos_token_id", "decoder_start_token_id",
        "transformers_version", "disable_compile", "compile_config", "use_cache",
    }
)  # fmt: skip
"""What a checkpoint's generation configuration says about its tokens, and what changes no text."""
_ONE_IS_NEUTRAL: Final = frozenset(
    {
        "temperature", "top_p", "typical_p", "repetition_penalty", "encoder_repetition_penalty", "length_penalty",
        "guidance_scale", "num_beams", "num_return_sequences", "num_beam_groups",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Written:
    """Tokens after the prompt, and why they end where they do."""

    token_ids: tuple[int, ...]
    hit_limit: bool
    stats: GenerationStats


@dataclass(frozen=True)
class Call:
    """One request that can be decoded in several ways: the arguments of ``generate`` without the way.

    ``criteria`` makes fresh stopping criteria for each run, given the prompt's length; they may keep state.
    """

    model: Any
    prompt_ids: list[int]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    prediction_ids: list[int] | None = None
    drafting: Drafting = field(default_factory=Drafting)
    criteria: Any = None

    def run(self, *, streamer: Any = None) -> Written:
        """Decode with zerodraft. The model is not changed; one that is attached is used as it is."""
        extra = self.drafting.options()
        if self.prediction_ids is not None:
            extra["prediction_ids"] = self.prediction_ids
        if is_attached(self.model):
            generate = self.model.generate
            ids = self.generate(streamer=streamer, attached=True, **extra)
            stats = generate.stats
        else:
            from zerodraft.integrations.hf.speculation import speculate

            decode = speculate(self.drafting.drafter, streamer=streamer, trace=self.drafting.trace)
            ids = self.generate(custom_generate=decode, **extra)
            stats = decode.stats
        return self.written(ids, stats if stats is not None else GenerationStats())

    def generate(self, *, attached: bool = False, **extra: Any) -> torch.Tensor:
        """Call ``generate`` and return the new ids (n,). The class's own, unless an attached one is asked for."""
        import torch

        model = self.model
        ids = torch.tensor([self.prompt_ids], device=model.device)
        options = generate_options(model, self.sampling, self.max_new_tokens) | extra
        if self.criteria is not None:
            options["stopping_criteria"] = self.criteria(len(self.prompt_ids))
        generate = model.generate if attached else type(model).generate.__get__(model)
        with self.sampling.seeded():
            output: torch.Tensor = generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
        return output[0, len(self.prompt_ids) :]

    def written(self, ids: torch.Tensor, stats: GenerationStats) -> Written:
        """Say whether the length limit ended the text."""
        tokens = tuple(int(i) for i in ids.tolist())
        full = len(tokens) >= self.max_new_tokens
        return Written(tokens, full and tokens[-1] not in end_ids(self.model), stats)


def generate_options(model: Any, sampling: Sampling, max_new_tokens: int) -> dict[str, Any]:
    """All keywords for ``generate`` that decide the text: no other setting of the checkpoint has a say."""
    options: dict[str, Any] = dict.fromkeys(_settings(model))
    options |= {"repetition_penalty": 1.0, "num_beams": 1, "num_return_sequences": 1, "use_cache": True}
    options |= {"max_new_tokens": max_new_tokens} | sampling.options()
    if getattr(model.generation_config, "pad_token_id", None) is None:
        options["pad_token_id"] = 0  # rows that are filled up are masked; without one transformers prints a line
    return options


def settings_left_out(model: Any) -> list[str]:
    """The checkpoint's own settings that have no say, as "name=value"; those of the sampling are not among them."""
    ours = {"repetition_penalty", "num_beams", "max_new_tokens", "max_length", *Sampling().options()}
    return [f"{name}={value!r}" for name, value in _settings(model).items() if name not in ours]


def _settings(model: Any) -> dict[str, Any]:
    """What the checkpoint's generation configuration sets that would change a text."""
    return {
        name: value
        for name, value in vars(model.generation_config).items()
        if not (name.startswith("_") or name in _KEPT or value is None or value in (False, 0, [], {}))
        and not (name in _ONE_IS_NEUTRAL and value == 1)
    }


def is_attached(model: Any) -> bool:
    """True if ``zerodraft.attach`` has taken over this model's ``generate``."""
    return hasattr(vars(model).get("generate"), "stats")


def end_ids(model: Any) -> set[int]:
    """The model's end-of-text ids, none, one or several."""
    ids = model.generation_config.eos_token_id
    return set() if ids is None else {ids} if isinstance(ids, int) else set(ids)


def context_size(model: Any) -> int:
    """Positions the model was made for; a very large number where its configuration does not say."""
    size = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(size) if size else 1 << 30
