"""The doors into Hugging Face: ``attach`` makes ``model.generate`` itself faster, ``speculate`` is explicit."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from transformers import PreTrainedModel
from transformers.generation.stopping_criteria import StoppingCriteriaList, StopStringCriteria

from zerodraft.integrations.hf.decode import SessionMaker, decode
from zerodraft.integrations.hf.request import OWN_ARGUMENTS, Request, check_streamer, warn_without_effect
from zerodraft.integrations.hf.shapes import COMPILE_OPTIONS
from zerodraft.integrations.hf.support import check_is_model, check_model, refuse
from zerodraft.lookup.checks import flag, instance_of, one_of, shown, with_methods
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.lookahead.beside import Beside
from zerodraft.lookup.measure.stats import GenerationStats
from zerodraft.lookup.measure.trace import Trace
from zerodraft.lookup.policy import DraftPolicy
from zerodraft.lookup.runtime.at_fork import NEVER, held_at_fork

if TYPE_CHECKING:
    from zerodraft.lookup.cost import CostCurve
    from zerodraft.lookup.lookahead.lookahead import Lookahead

Model = TypeVar("Model", bound=PreTrainedModel)

_TIE_GUARDS = ("off", "report")
_MIN_PARAMETERS_TO_MEASURE = 20_000_000  # below, a forward's time is Python's and says little about its width


def attach(
    model: Model,
    drafter: SessionMaker | None = None,
    *,
    policy: DraftPolicy | None = None,
    lookahead: Lookahead | None = None,
    tie_guard: str = "off",
    compile: str = "off",
    trace: bool = False,
) -> Model:
    """Make ``model.generate`` write the same text in fewer forwards; pipelines and agents need no change.

    ``generate`` then also takes ``prediction_ids`` (a predicted output, 1-D, or one per row), ``namespace`` (whose
    remembered text may be drafted from), ``seeds`` (one per row), ``remember`` (keep this text for later calls),
    ``draft=False`` (draft nothing in this call) and ``max_draft_tokens`` (draft at most so many nodes per row and
    forward, whatever they come from). ``model.generate.stats`` are the calling thread's last call's statistics. Calls
    with ``assistant_model``, ``prompt_lookup_num_tokens`` or ``custom_generate`` go to the model's own path, untouched;
    these arguments then do nothing, and a warning says so. Attaching again replaces the settings.

    Args:
        model: one that generates text (``docs/models.md``); not changed but for its ``generate`` attribute.
        drafter: where drafts come from; by default a ``Drafter`` over prompt, prediction and output.
        policy: how much that default drafter drafts; not together with ``drafter``. Where a policy's cost is "auto" the
            model's forwards are timed here once (seconds) and kept in the user's cache; small models are not timed.
        lookahead: a ``Lookahead`` beside the drafter: its guesses join the drafts, its window where none is sure. A
            ``Lookahead`` as ``drafter`` works alone.
        tie_guard: "off"; "report" counts the near-ties whose choice could turn with a forward's width, in
            ``stats.num_near_ties``.
        compile: "off"; "auto" compiles forwards of a few fixed widths where the model is on CUDA; "buckets" only fills
            them up to these widths, for a model that is compiled already (see ``docs/gpu.md``).
        trace: keep every step in ``stats.trace``, to look at it.

    Returns:
        The model.

    Raises:
        Unsupported: (a ValueError) a model that cannot be decoded exactly, named by its class.
        ValueError: an argument of another type, or what wraps a model (a pipeline, a PEFT or compiled model).
    """
    check_model(model)
    settings = _Settings(drafter, policy, tie_guard, compile, lookahead, trace)
    settings.price(model)
    detach(model)
    inner = vars(model).get("generate")
    model.generate = types.MethodType(_AttachedGenerate(type(model).generate, inner, settings), model)
    return model


def detach(model: Model) -> Model:
    """Undo ``attach``: the model's ``generate`` is again what it was. Does nothing on a model without it.

    Raises:
        ValueError: what is no model.
    """
    check_is_model(model)
    attached = getattr(vars(model).get("generate"), "__func__", None)
    if isinstance(attached, _AttachedGenerate):
        if attached.inner is None:
            del model.generate
        else:
            model.generate = attached.inner
    return model


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
    criteria = [] if stop_strings is None else [_stop_criterion(tokenizer, stop_strings)]
    check_streamer(streamer)
    if on_finish is not None and not callable(on_finish):
        raise ValueError(f"on_finish must be callable, got {shown(on_finish)}")
    settings = _Settings(drafter, policy, tie_guard, compile, lookahead, trace)
    return Speculation(settings, streamer, criteria, on_finish)


class _Settings:
    """What attach and speculate share: the drafter, whether near-ties are counted, how forwards are compiled."""

    def __init__(
        self,
        drafter: SessionMaker | None,
        policy: DraftPolicy | None,
        tie_guard: str,
        compile: str = "off",
        lookahead: Lookahead | None = None,
        trace: bool = False,
    ) -> None:
        one_of("tie_guard", tie_guard, _TIE_GUARDS)
        one_of("compile", compile, COMPILE_OPTIONS)
        flag("trace", trace)
        _check_drafter(drafter)
        instance_of("policy", policy, DraftPolicy)
        if drafter is not None and policy is not None:
            raise ValueError("give a drafter or a policy, not both: Drafter(policy=...) takes the policy")
        if drafter is None:
            drafter = Drafter() if policy is None else Drafter(policy=policy)
        if isinstance(drafter, Beside) and lookahead is None:
            lookahead, drafter = drafter.lookahead, drafter.drafter
        if lookahead is not None:
            Beside(drafter, lookahead)  # refuses what is none, before the model is touched
        self.drafter, self._lookahead = drafter, lookahead
        self.tie_guard, self.compile, self.trace = tie_guard, compile, trace
        self._lock = held_at_fork(threading.Lock(), NEVER)
        self._is_priced = False

    @property
    def maker(self) -> SessionMaker:
        """Where sessions come from: the drafter, with the lookahead beside it if there is one."""
        return self.drafter if self._lookahead is None else Beside(self.drafter, self._lookahead)

    @property
    def curve(self) -> CostCurve | None:
        """What the drafter takes forwards to cost, None for drafters without a policy."""
        return self.drafter.policy.curve if isinstance(self.drafter, Drafter) else None

    def price(self, model: PreTrainedModel) -> None:
        """Replace a policy's cost "auto" by this model's measured curve, once, where the model is worth measuring."""
        with self._lock:
            drafter = self.drafter
            if self._is_priced or not isinstance(drafter, Drafter) or drafter.policy.cost != "auto":
                return
            try:
                if model.num_parameters() >= _MIN_PARAMETERS_TO_MEASURE:
                    from zerodraft.integrations.hf.cost_measure import measured_curve

                    policy = dataclasses.replace(drafter.policy, cost=measured_curve(model))
                    policy.tables()  # milliseconds, which the first request need not wait for
                    self.drafter = drafter.with_policy(policy)
            finally:
                self._is_priced = True  # last: a fork on the way prices again


def _check_drafter(drafter: Any) -> None:
    place = _PLACES.get(type(drafter).__name__)
    hint = f"give it as {place}" if place else ""
    with_methods("drafter", drafter, "begin(prompt_ids, prediction_ids, namespace)", hint=hint)


_PLACES = {
    "DraftPolicy": "policy=...",
    "CostCurve": "policy=DraftPolicy(cost=...)",
    "DraftMemory": "Drafter(memory=...)",
}


class Speculation:
    """The callable that ``generate(custom_generate=...)`` runs in place of its own loop."""

    def __init__(
        self,
        settings: _Settings,
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
        model_kwargs["inputs_tensor"] = inputs_tensor
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
        output = decode(
            model,
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            self._settings.maker,
            request,
            stats,
            model_kwargs,
        )
        if self._on_finish is not None:
            self._on_finish(stats)
        return output


class _AttachedGenerate:
    """``model.generate`` of an attached model, bound to it by MethodType so that copies of the model rebind it."""

    def __init__(self, original: Callable[..., Any], inner: Any, settings: _Settings) -> None:
        functools.update_wrapper(self, original)
        self.inner = inner  # an instance attribute that stood in the class's way before, or None
        self._original, self._settings = original, settings
        self._signature = inspect.signature(original)
        self._local = threading.local()

    @property
    def stats(self) -> GenerationStats | None:
        """The calling thread's last accelerated call, None if its last call went another way."""
        return getattr(self._local, "stats", None)

    def __call__(self, model: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        self._local.stats = None
        bound = self._signature.bind(model, *args, **kwargs).arguments
        call = {**bound.pop("kwargs", {}), **bound}
        del call[next(iter(self._signature.parameters))]
        first = [model] if self.inner is None else []
        original: Callable[..., Any] = functools.partial(self.inner or self._original, *first, *call.pop("args", ()))
        if isinstance(call.get("custom_generate"), Speculation):  # one of ours, explicitly: it takes what we take
            return original(**call)
        other = self._other_way(model, call)
        own = {name: call.pop(name) for name in OWN_ARGUMENTS if name in call}
        if other is not None:
            given = [name for name, value in own.items() if value is not getattr(Request, name)]
            if given:
                warn_without_effect(", ".join(given), f"beside {other}: the call goes to the model's own path")
            return original(**call)
        Request(**own, streamer=call.get("streamer"))  # wrong arguments are said before generate does anything
        if call.get("synced_gpus"):
            raise refuse("synced_gpus=True", model, "processes would wait for each other's forwards")
        criteria = _take_stop_strings(model, call)
        run = Speculation(self._settings, call.get("streamer"), criteria, None, streams_prompt=False)

        def custom_generate(
            model: Any,
            input_ids: Any,
            logits_processor: Any,
            stopping_criteria: Any,
            generation_config: Any,
            inputs_tensor: Any = None,
            **rest: Any,
        ) -> Any:
            rest["inputs_tensor"] = inputs_tensor
            return run(model, input_ids, logits_processor, stopping_criteria, generation_config, **own, **rest)

        try:
            return original(**call, custom_generate=custom_generate)
        finally:
            self._local.stats = run.stats

    @staticmethod
    def _other_way(model: PreTrainedModel, call: dict[str, Any]) -> str | None:
        """The option by which a call asks for another way of decoding, None if it does not."""
        for name in ("custom_generate", "assistant_model"):
            if call.get(name) is not None:
                return name
        given = call.get("generation_config")
        if getattr(given, "is_assistant", False):  # transformers' own loop drafts with this model
            return "is_assistant"
        names = ("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")
        asked = [vars(config) for config in (given, model.generation_config) if config is not None] + [call]
        return next((name for name in names for place in asked if bool(place.get(name))), None)


def _take_stop_strings(model: PreTrainedModel, call: dict[str, Any]) -> list[StopStringCriteria]:
    """Turn stop strings, wherever they were set, into a criterion: ``generate`` gives a callable no tokenizer for them.

    ``stop_strings=None`` in the call is the only way to silence a default of the model's own configuration.
    """
    given = call.get("generation_config")
    strings = (given and given.stop_strings) or model.generation_config.stop_strings
    strings = call.get("stop_strings", strings)
    tokenizer = call.get("tokenizer")
    if not strings:
        return []
    if tokenizer is None:
        raise ValueError(f"stop_strings={strings!r} need the tokenizer: generate(..., tokenizer=tokenizer)")
    criterion = _stop_criterion(tokenizer, strings)
    if given is not None:
        call["generation_config"] = copy.deepcopy(given)
        call["generation_config"].stop_strings = None
    if call.get("stop_strings") is not None or model.generation_config.stop_strings:
        call["stop_strings"] = None
    return [criterion]


def _stop_criterion(tokenizer: Any, strings: Any) -> StopStringCriteria:
    listed = [strings] if isinstance(strings, str) else strings
    if not isinstance(listed, (list, tuple)) or not listed or not all(isinstance(s, str) and s for s in listed):
        raise ValueError(
            f"stop_strings must be a string or a list of strings, none of them empty, got {shown(strings)}"
        )
    if not callable(getattr(tokenizer, "get_vocab", None)):
        raise ValueError(f"tokenizer must be a transformers tokenizer, got {shown(tokenizer)}")
    return StopStringCriteria(tokenizer, list(listed))
