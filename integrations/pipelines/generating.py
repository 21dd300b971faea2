"""generate_text: a prompt in, text and statistics out; and the one call of ``generate`` that everything here shares."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from zerodraft.integrations.pipelines.text_ids import chat_ids, check_text, encode, text_ids
from zerodraft.lookup.checks import flag, instance_of, int_in, number_in, shown, with_methods
from zerodraft.lookup.drafter import check_call
from zerodraft.lookup.measure.stats import GenerationStats

if TYPE_CHECKING:
    import torch

    from zerodraft.integrations.pipelines.compare import Comparison

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
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: 0 for greedy decoding, which is the default.
        top_p: nucleus in (0, 1]; only with a temperature.
        seed: for sampling, in [0, 2**63); the process's own generators stay as they were. Only with a temperature.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        number_in("temperature", self.temperature, 0.0)
        number_in("top_p", self.top_p, 0.0, 1.0, above=True)
        if self.seed is not None:
            int_in("seed", self.seed, 0, 2**63 - 1)
        idle = [name for name, default in (("top_p", 1.0), ("seed", None)) if getattr(self, name) != default]
        if self.temperature == 0 and idle:
            warnings.warn(f"{' and '.join(idle)} without a temperature: nothing is sampled", stacklevel=3)

    def options(self) -> dict[str, Any]:
        """Keywords for ``generate``."""
        if self.temperature == 0.0:
            return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        return {"do_sample": True, "temperature": float(self.temperature), "top_p": float(self.top_p), "top_k": 0}

    @contextlib.contextmanager
    def seeded(self) -> Iterator[None]:
        """Run the body from ``seed``, and leave the process's generators as they were. Nothing without a seed."""
        if self.seed is None:
            yield
            return
        import torch

        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            yield


@dataclass(frozen=True)
class Drafting:
    """How much is drafted, and from where. None of it changes the text.

    Attributes:
        drafter: see ``zerodraft.attach``; a model that is attached keeps its own.
        draft: False switches all drafting off.
        max_draft_tokens: most drafted tokens per forward; None: as many as pay.
        namespace: whose remembered texts may be drafted from.
        remember: keep the text in the drafter's memory.
        trace: keep every step in ``stats.trace``; a model that is attached keeps its own setting.
    """

    drafter: Any = None
    draft: bool = True
    max_draft_tokens: int | None = None
    namespace: str | None = None
    remember: bool | str = False
    trace: bool = False

    def __post_init__(self) -> None:
        check_call(self.draft, self.max_draft_tokens, self.namespace, self.remember)
        flag("trace", self.trace)
        with_methods("drafter", self.drafter, "begin(prompt_ids, prediction_ids, namespace)")

    def options(self) -> dict[str, Any]:
        """Keywords for an accelerated ``generate``: those that were set."""
        default = Drafting()
        names = ("draft", "max_draft_tokens", "namespace", "remember")
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(default, name)}


def check_length(max_new_tokens: Any, *, name: str = "max_new_tokens") -> None:
    """Raise a ValueError unless this is a number of tokens to write, at least 1."""
    int_in(name, max_new_tokens, 1, None)


def check_door(model: Any, tokenizer: Any, sampling: Any, drafting: Any) -> None:
    """Raise a ValueError for what a pipeline cannot work with, before any work."""
    if isinstance(model, (str, type)) or not (hasattr(model, "generation_config") and hasattr(model, "config")):
        raise ValueError(f"model must be a loaded model of transformers that can generate, got {shown(model)}")
    if tokenizer is None:
        raise ValueError("tokenizer must be the model's loaded tokenizer, got None")
    with_methods("tokenizer", tokenizer, "encode(text)", "decode(token_ids)", hint="give the model's, loaded")
    instance_of("sampling", sampling, Sampling)
    instance_of("drafting", drafting, Drafting)


def check_ways(streamer: Any, **flags: Any) -> None:
    """Raise a ValueError for what is no streamer, and for flags that are neither True nor False."""
    with_methods("streamer", streamer, "put(token_ids)", "end()")
    for name, value in flags.items():
        flag(name, value)


@dataclass(frozen=True)
class GenerateResult:
    """What ``generate_text`` wrote.

    Attributes:
        text: the new text, without the prompt and special tokens.
        token_ids: its tokens, an end-of-text token included.
        num_prompt_tokens: tokens of the prompt, chat template included.
        finish_reason: "eos", "length" (``max_new_tokens``) or "context" (the model's context was full).
        stats: what the call did and cost.
        left_out: settings of the checkpoint that had no say, as "name=value".
        comparison: the other ways of decoding beside it, where asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    finish_reason: str
    stats: GenerationStats
    left_out: tuple[str, ...] = ()
    comparison: Comparison | None = None

    @property
    def hit_limit(self) -> bool:
        """True if the text was cut off."""
        return self.finish_reason != "eos"


def generate_text(
    model: Any,
    tokenizer: Any,
    prompt: str,
    *,
    max_new_tokens: int = 256,
    sampling: Sampling | None = None,
    prediction: str | None = None,
    raw: bool = False,
    drafting: Drafting | None = None,
    streamer: Any = None,
    compare: bool = False,
) -> GenerateResult:
    """Write what ``model`` would write after ``prompt``, in fewer forwards.

    Control tokens that the prompt spells are text, except in a raw one.

    Args:
        model: a causal language model, attached or not; an attached one keeps its own drafter.
        tokenizer: the model's tokenizer.
        prompt: a message for the chat template where the tokenizer has one, else the beginning of the text.
        max_new_tokens: at least 1; the text also ends where the model's context is full.
        sampling: how tokens are chosen; greedily by default.
        prediction: a guess at the whole output, to draft from.
        raw: continue ``prompt`` as it is, chat template or not.
        drafting: how much is drafted, and from where.
        streamer: a transformers streamer or ``TextStream``.
        compare: also decode plainly and with transformers' prompt lookup.

    Raises:
        ValueError: an argument outside its range, an empty prompt, or a prompt that leaves no room in the context.
    """
    check_ways(streamer, raw=raw, compare=compare)
    check_door(model, tokenizer, sampling, drafting)
    check_length(max_new_tokens)
    if not check_text("the prompt", prompt):
        raise ValueError("the prompt is empty")
    if prediction is not None:
        check_text("the prediction", prediction)
    prompt_ids = encode(tokenizer, prompt, special=True) if raw else chat_ids(tokenizer, prompt)
    context = context_size(model)
    if len(prompt_ids) >= context:
        raise ValueError(f"the prompt must leave room in the context of {context} tokens, got {len(prompt_ids)}")
    prediction_ids = None if prediction is None else text_ids(tokenizer, prediction)
    limit = min(max_new_tokens, context - len(prompt_ids))
    call = Call(model, prompt_ids, limit, sampling or Sampling(), prediction_ids, drafting or Drafting())
    written, comparison = call.run_or_compare(streamer, compare)
    cut_off = "length" if limit == max_new_tokens else "context"
    return GenerateResult(
        text=tokenizer.decode(written.token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
        token_ids=written.token_ids,
        num_prompt_tokens=len(prompt_ids),
        finish_reason=cut_off if written.hit_limit else "eos",
        stats=written.stats,
        left_out=tuple(settings_left_out(model)),
        comparison=comparison,
    )


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

    def run_or_compare(self, streamer: Any, compare: bool) -> tuple[Written, Comparison | None]:
        """Decode with zerodraft, beside the other ways if asked for."""
        if not compare:
            return self.run(streamer=streamer), None
        from zerodraft.integrations.pipelines.compare import compare_ways

        comparison = compare_ways(self, streamer=streamer)
        return comparison.zerodraft.written, comparison

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
            from zerodraft.integrations.hf.attach import speculate

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
