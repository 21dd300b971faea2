"""generate_text: a prompt in, text and statistics out; and the one call of ``generate`` that everything here shares."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zerodraft.lookup.stats import GenerationStats

if TYPE_CHECKING:
    import torch

    from zerodraft.integrations.compare import Comparison


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen and how many at most. A temperature of 0 is greedy decoding."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if not self.temperature >= 0.0 or self.temperature == float("inf"):
            raise ValueError(f"temperature must be 0 or more, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")

    def options(self) -> dict[str, Any]:
        """Keywords for ``generate``. Every knob is set, so no default of the model's own configuration has a say."""
        neutral = {"repetition_penalty": 1.0, "num_beams": 1, "max_new_tokens": self.max_new_tokens}
        if self.temperature == 0.0:
            return neutral | {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        return neutral | {"do_sample": True, "temperature": self.temperature, "top_p": self.top_p, "top_k": 0}

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
class GenerateResult:
    """What ``generate_text`` wrote.

    Attributes:
        text: the new text, without the prompt and special tokens.
        token_ids: its tokens, an end-of-text token included.
        num_prompt_tokens: tokens of the prompt, chat template included.
        hit_limit: True if ``max_new_tokens`` ended the text.
        stats: what the call did and cost.
        comparison: the other ways of decoding beside it, where asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    hit_limit: bool
    stats: GenerationStats
    comparison: Comparison | None = None


def generate_text(
    model: Any,
    tokenizer: Any,
    prompt: str,
    *,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | None = None,
    prediction: str | None = None,
    raw: bool = False,
    drafter: Any = None,
    streamer: Any = None,
    compare: bool = False,
    trace: bool = False,
) -> GenerateResult:
    """Write what ``model`` would write after ``prompt``, in fewer forwards.

    Args:
        model: a causal language model, attached or not; an attached one keeps its own drafter.
        tokenizer: the model's tokenizer.
        prompt: a message for the chat template where the tokenizer has one, else the beginning of the text.
        max_new_tokens: at least 1.
        temperature: 0 for greedy decoding.
        top_p: nucleus in (0, 1]; only with a temperature.
        seed: for sampling; the process's own generators stay as they were.
        prediction: a guess at the whole output, to draft from.
        raw: continue ``prompt`` as it is, chat template or not.
        drafter: see ``zerodraft.attach``.
        streamer: a transformers streamer or ``TextStream``.
        compare: also decode plainly and with transformers' prompt lookup.
        trace: keep every step in ``stats.trace``; an attached model keeps its own setting.

    Raises:
        ValueError: an argument outside its range, an empty prompt, or a prompt that leaves no room in the context.
    """
    sampling = Sampling(max_new_tokens, temperature, top_p, seed)
    if not prompt:
        raise ValueError("the prompt is empty")
    prompt_ids = encode(tokenizer, prompt, special=True) if raw else chat_ids(tokenizer, prompt)
    if len(prompt_ids) >= context_size(model):
        context = context_size(model)
        raise ValueError(f"the prompt must leave room in the context of {context} tokens, got {len(prompt_ids)}")
    prediction_ids = None if prediction is None else encode(tokenizer, prediction)
    call = Call(model, prompt_ids, sampling, prediction_ids, drafter, trace=trace)
    comparison = None
    if compare:
        from zerodraft.integrations.compare import compare_ways

        comparison = compare_ways(call, streamer=streamer)
        written = comparison.zerodraft.written
    else:
        written = call.run(streamer=streamer)
    return GenerateResult(
        text=tokenizer.decode(written.token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
        token_ids=written.token_ids,
        num_prompt_tokens=len(prompt_ids),
        hit_limit=written.hit_limit,
        stats=written.stats,
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
    sampling: Sampling
    prediction_ids: list[int] | None = None
    drafter: Any = None
    criteria: Any = None
    trace: bool = False

    def run(self, *, streamer: Any = None) -> Written:
        """Decode with zerodraft. The model is not changed; one that is attached is used as it is."""
        extra: dict[str, Any] = {} if self.prediction_ids is None else {"prediction_ids": self.prediction_ids}
        if is_attached(self.model):
            generate = self.model.generate
            ids = self.generate(streamer=streamer, attached=True, **extra)
            stats = generate.stats
        else:
            from zerodraft.integrations.hf.attach import speculate

            decode = speculate(self.drafter, streamer=streamer, trace=self.trace)
            ids = self.generate(custom_generate=decode, **extra)
            stats = decode.stats
        return self.written(ids, stats if stats is not None else GenerationStats())

    def generate(self, *, attached: bool = False, **extra: Any) -> torch.Tensor:
        """Call ``generate`` and return the new ids (n,). The class's own, unless an attached one is asked for."""
        import torch

        model = self.model
        ids = torch.tensor([self.prompt_ids], device=model.device)
        options = self.sampling.options() | extra
        if self.criteria is not None:
            options["stopping_criteria"] = self.criteria(len(self.prompt_ids))
        if getattr(model.generation_config, "pad_token_id", None) is None:
            options["pad_token_id"] = 0  # never used at batch 1; without one transformers prints a line
        generate = model.generate if attached else type(model).generate.__get__(model)
        with self.sampling.seeded():
            output: torch.Tensor = generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
        return output[0, len(self.prompt_ids) :]

    def written(self, ids: torch.Tensor, stats: GenerationStats) -> Written:
        """Say whether the length limit ended the text."""
        tokens = tuple(int(i) for i in ids.tolist())
        full = len(tokens) >= self.sampling.max_new_tokens
        return Written(tokens, full and tokens[-1] not in end_ids(self.model), stats)


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


def chat_ids(tokenizer: Any, message: str, *, answer: str = "") -> list[int]:
    """Token ids of a message in the chat template, up to where the answer goes on after ``answer``.

    A tokenizer without a template gets the message as it is.
    """
    if not getattr(tokenizer, "chat_template", None):
        return encode(tokenizer, f"{message}\n{answer}" if answer else message, special=True)
    messages = [{"role": "user", "content": message}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return encode(tokenizer, f"{text}{answer}")


def encode(tokenizer: Any, text: str, *, special: bool = False) -> list[int]:
    """Token ids of a text; ``special`` adds what the tokenizer puts around one (a chat template brings its own)."""
    return [int(i) for i in tokenizer.encode(text, add_special_tokens=special)]
