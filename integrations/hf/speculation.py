"""Speculation: the callable that ``generate(custom_generate=...)`` runs in place of its own loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel
from transformers.generation.stopping_criteria import StoppingCriteriaList, StopStringCriteria

from zerodraft.integrations.hf.handed import Handed
from zerodraft.integrations.hf.request import Request, check_streamer
from zerodraft.integrations.hf.run import run
from zerodraft.integrations.hf.sessions import SessionMaker
from zerodraft.integrations.hf.settings import Settings
from zerodraft.integrations.hf.stop_strings import stop_criterion
from zerodraft.integrations.hf.support import check_model
from zerodraft.lookup.checks import shown
from zerodraft.lookup.measure.stats import GenerationStats
from zerodraft.lookup.measure.trace import Trace
from zerodraft.lookup.policy import DraftPolicy

if TYPE_CHECKING:
    from zerodraft.lookup.lookahead.lookahead import Lookahead


def speculate(
    drafter: SessionMaker | None = None,
    *,
    policy: DraftPolicy | None = None,
    lookahead: Lookahead | None = None,
    tie_guard: str = "off",
    compile: str = "off",
    trace: bool = False,
    streamer: Any = None,
    tokenizer: Any = None,
    stop_strings: str | list[str] | None = None,
    on_finish: Callable[[GenerationStats], None] | None = None,
) -> Speculation:
    """Return a callable for ``generate(custom_generate=...)``.

    ``generate`` does not hand its own ``streamer``, ``tokenizer`` and ``stop_strings`` to such a callable, so they are
    given here. After a call ``.stats`` are the calling thread's; ``on_finish`` gets them too.

    Args:
        drafter, policy, lookahead, tie_guard, compile, trace: as in ``attach``.
        streamer: gets the prompt, every token, and the end.
        tokenizer, stop_strings: end the text where one of the strings is complete; they need each other.
        on_finish: called with the statistics when a call is done.

    Raises:
        ValueError: an argument of another type.
    """
    if (stop_strings is None) != (tokenizer is None):
        raise ValueError("stop_strings and tokenizer need each other: give both or neither")
    criteria = [] if stop_strings is None else [stop_criterion(tokenizer, stop_strings)]
    check_streamer(streamer)
    if on_finish is not None and not callable(on_finish):
        raise ValueError(f"on_finish must be callable, got {shown(on_finish)}")
    settings = Settings(drafter, policy, tie_guard, compile, lookahead, trace)
    return Speculation(settings, streamer, criteria, on_finish)


class Speculation:
    """The callable that ``generate(custom_generate=...)`` runs in place of its own loop."""

    def __init__(
        self,
        settings: Settings,
        streamer: Any,
        criteria: list[StopStringCriteria],
        on_finish: Callable[[GenerationStats], None] | None,
        *,
        streams_prompt: bool = True,
    ) -> None:
        self._settings, self._streamer, self._criteria, self._on_finish = settings, streamer, criteria, on_finish
        self._streams_prompt = streams_prompt
        self._local = threading.local()

    @property
    def stats(self) -> GenerationStats | None:
        """The calling thread's last call, None before it."""
        return getattr(self._local, "stats", None)

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Any,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        prediction_ids: Any = None,
        namespace: Any = None,
        seeds: Any = None,
        remember: Any = False,
        draft: Any = True,
        max_draft_tokens: Any = None,
        inputs_tensor: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """As ``GenerationMixin._sample``; the named extras are passed through ``generate``."""
        settings = self._settings
        stats = self._local.stats = GenerationStats(trace=Trace() if settings.trace else None)
        request = Request(
            prediction_ids,
            namespace,
            seeds,
            remember,
            draft,
            max_draft_tokens,
            settings.tie_guard,
            self._streamer,
            settings.compile,
        )
        check_model(model)
        if request.max_nodes:
            settings.price(model)
        if stats.trace is not None:
            stats.trace.curve = settings.curve
        if self._criteria:
            stopping_criteria = StoppingCriteriaList([*stopping_criteria, *self._criteria])
        if self._streamer is not None and self._streams_prompt:
            self._streamer.put(input_ids.cpu())
        cache = model_kwargs.pop("cache", model_kwargs.pop("past_key_values", None))
        call = Handed(
            model,
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            model_kwargs,
            cache,
            inputs_tensor,
        )
        output = run(call, settings.maker, request, stats)
        if self._on_finish is not None:
            self._on_finish(stats)
        return output
