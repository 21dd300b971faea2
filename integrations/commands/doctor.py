"""``zerodraft doctor``: what is installed, whether the compiled kernels are kept, what drafting could bring here."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from zerodraft.integrations.commands.options import Device, Dtype, Json
from zerodraft.integrations.commands.terminal import load, one_line_errors, talk, write_out

if TYPE_CHECKING:
    from zerodraft.lookup.cost import CostCurve

_PACKAGES: Final = (
    "zerodraft",
    "numpy",
    "numba",
    "torch",
    "transformers",
    "tokenizers",
    "triton",
    "typer",
    "rich",
    "jinja2",
    "pyahocorasick",
)
_ALPHAS: Final = (0.5, 0.7, 0.8, 0.9, 0.95)


def doctor(
    model: Annotated[
        str | None, typer.Option(help="Time this model's forwards, too.", show_default="the default cost curve")
    ] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Say what is installed here and what speculation would give."""
    with one_line_errors():
        found: dict[str, Any] = {"versions": versions(), "kernels": kernels(), "user_cache": user_cache()}
        found["device"] = devices()
        curve, about = _curve(model, dtype, device)
        found |= {"cost_curve": {"about": about, **curve.as_dict()}, "prospects": prospects(curve)}
        write_out(json.dumps(found, indent=2) + "\n" if as_json else _text(found))


def versions() -> dict[str, str | None]:
    """Python and the packages that matter, None where one is not installed."""
    from importlib import metadata  # 15 ms that no other command should wait for

    found: dict[str, str | None] = {
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    }
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def kernels() -> dict[str, Any]:
    """Seconds to load the lookup kernels, how many had to be compiled, and where the machine code is kept."""
    from zerodraft.lookup.runtime.user_cache import is_writable
    from zerodraft.lookup.runtime.warm_up import num_compiled, warm_up

    seconds = warm_up()
    core = sys.modules["zerodraft.lookup.copy._text"]
    cache = next((value._cache for value in vars(core).values() if hasattr(value, "_cache")), None)
    place = getattr(cache, "cache_path", None)
    return {
        "seconds": seconds,
        "num_compiled": num_compiled(),
        "cache": place,
        "is_kept": place is not None and (num_compiled() == 0 or is_writable(Path(place))),
        "num_files": 0 if place is None else len(list(Path(place).glob("*.nbc"))),
    }


def user_cache() -> dict[str, Any]:
    """The folder of measured cost curves and fetched models, and whether anything can be kept there."""
    from zerodraft.lookup.runtime.user_cache import is_writable, user_cache

    place = user_cache()
    return {"path": None if place is None else str(place), "is_writable": place is not None and is_writable(place)}


def devices() -> dict[str, Any]:
    """What torch computes on, None of it where torch is not installed."""
    try:
        import torch
    except ModuleNotFoundError:
        return {"torch": None}
    found: dict[str, Any] = {"cpus": os.cpu_count(), "threads": torch.get_num_threads()}
    found["cuda"] = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    return found


def prospects(curve: CostCurve) -> list[dict[str, float]]:
    """For some acceptance rates, the draft length that pays best under the curve, and the speed-up it brings.

    A chain of gamma tokens costs a forward of gamma + 1 positions and brings E[N] tokens (``theory.expected_tokens``).
    """
    from zerodraft.lookup.measure.theory import expected_tokens

    found = []
    for alpha in _ALPHAS:
        gains = [expected_tokens(alpha, gamma) / curve.cost(gamma + 1) for gamma in range(65)]
        best = max(range(len(gains)), key=gains.__getitem__)
        found.append({"alpha": alpha, "gamma": best, "speedup": gains[best]})
    return found


def _curve(model: str | None, dtype: str, device: str) -> tuple[CostCurve, str]:
    if model is None:
        from zerodraft.lookup.cost import DEFAULT_CURVE

        return DEFAULT_CURVE, "the default curve; --model measures one"
    loaded = load(model, dtype, device)
    from zerodraft.integrations.hf.cost_measure import measured_curve

    talk("timing forwards, unless that was done before")
    return measured_curve(loaded.model), f"measured: {loaded.origin}, {loaded.model.dtype}, {loaded.model.device}"


def _text(found: dict[str, Any]) -> str:
    kernels, cache, device, curve = (found[part] for part in ("kernels", "user_cache", "device", "cost_curve"))
    lines = [(name, version or "not installed") for name, version in found["versions"].items()]
    kept = "kept" if kernels["is_kept"] else "NOT kept: every process compiles anew"
    what = f"{kernels['num_compiled']} compiled" if kernels["num_compiled"] else "loaded"
    lines.append(("kernels", f"{what} in {kernels['seconds']:.1f} s; {kept}, in {kernels['cache'] or 'no folder'}"))
    kept = "writable" if cache["is_writable"] else "NOT writable: every process times forwards and fetches models anew"
    lines.append(("user cache", f"{cache['path'] or 'no folder'}; {kept}"))
    if "cpus" in device:
        lines.append(("device", ", ".join(device["cuda"]) or f"CPU, {device['threads']} of {device['cpus']} threads"))
    lines.append(("cost curve", curve["about"]))
    one = curve["points"][0][1]
    lines += [(f"  {n} positions", f"{cost / one:.2f} forwards") for n, cost in curve["points"]]
    lines.append(("prospects", "by acceptance rate, the best length of a chain and its speed-up"))
    for row in found["prospects"]:
        what = f"{row['gamma']} tokens, {row['speedup']:.2f}x" if row["gamma"] else "do not draft"
        lines.append((f"  alpha {row['alpha']:g}", what))
    return "".join(f"{name:16} {value}\n" for name, value in lines)
