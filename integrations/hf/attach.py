"""The door into Hugging Face: ``attach`` makes ``model.generate`` itself faster, ``detach`` undoes it."""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from transformers import PreTrainedModel

from zerodraft.integrations.hf.request import OWN_ARGUMENTS, Request, warn_without_effect
from zerodraft.integrations.hf.sessions import SessionMaker
from zerodraft.integrations.hf.settings import Settings
from zerodraft.integrations.hf.speculation import Speculation
from zerodraft.integrations.hf.stop_strings import take_stop_strings
from zerodraft.integrations.hf.support import check_is_model, check_model, refuse
from zerodraft.lookup.measure.stats import GenerationStats
from zerodraft.lookup.policy import DraftPolicy

if TYPE_CHECKING:
    from zerodraft.lookup.lookahead.lookahead import Lookahead

Model = TypeVar("Model", bound=PreTrainedModel)


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
    settings = Settings(drafter, policy, tie_guard, compile, lookahead, trace)
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


class _AttachedGenerate:
    """``model.generate`` of an attached model, bound to it by MethodType so that copies of the model rebind it."""

    def __init__(self, original: Callable[..., Any], inner: Any, settings: Settings) -> None:
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
        criteria = take_stop_strings(model, call)
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
