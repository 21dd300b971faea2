"""``zerodraft theory``: what the published formulas promise for an acceptance rate and a cost."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from zerodraft.integrations.commands.options import Json
from zerodraft.integrations.commands.terminal import one_line_errors, write_out


def theory(
    alpha: Annotated[float, typer.Option(help="Acceptance rate per drafted token: the overlap sum(min(p, q)).")] = 0.8,
    gamma: Annotated[
        int | None, typer.Option(help="Tokens drafted per forward.", show_default="the best one, at most 256")
    ] = None,
    cost: Annotated[float, typer.Option(help="Cost of drafting a token, in forwards; a lookup's is about 0.")] = 0.0,
    operations: Annotated[float, typer.Option(help="Operations of drafting a token over the target's.")] = 0.0,
    weight_gb: Annotated[float | None, typer.Option(help="Bytes of the weights, in 1e9.", show_default="none")] = None,
    bandwidth: Annotated[float | None, typer.Option(help="Memory bandwidth, in 1e9 B/s.", show_default="none")] = None,
    tflops: Annotated[float | None, typer.Option(help="Arithmetic, in 1e12 FLOP/s.", show_default="none")] = None,
    gflop: Annotated[
        float | None, typer.Option(help="1e9 FLOP per position, about twice the parameters.", show_default="none")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Rows that share a forward; with the hardware's figures.", show_default="1")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what the published formulas promise. No model is loaded, nothing is measured."""
    from zerodraft.lookup.measure import theory as formulas

    with one_line_errors():
        if batch is not None and batch < 1:
            raise ValueError(f"--batch must be at least 1, got {batch}")
        best = formulas.best_gamma(alpha, cost)
        drafted = best if gamma is None else gamma
        found: dict[str, Any] = {
            "alpha": alpha,
            "gamma": drafted,
            "cost": cost,
            "expected_tokens": formulas.expected_tokens(alpha, drafted),
            "speedup": formulas.speedup(alpha, drafted, cost),
            "can_gain": formulas.can_gain(alpha, cost),
            "least_gain": formulas.least_gain(alpha, cost),
            "best_gamma": best,
            "best_speedup": formulas.speedup(alpha, best, cost),
            "operations_increase": formulas.operations_increase(alpha, drafted, operations),
        }
        hardware = [weight_gb, bandwidth, tflops, gflop]
        if None not in hardware:
            seconds = (weight_gb or 0.0) / (bandwidth or float("nan"))
            found |= _free(formulas, seconds, tflops, gflop, batch or 1)
        elif any(value is not None for value in hardware):
            raise ValueError("--weight-gb, --bandwidth, --tflops and --gflop go together: give all four or none")
        elif batch is not None:
            raise ValueError("--batch has no effect without --weight-gb, --bandwidth, --tflops and --gflop")
        write_out(json.dumps(found, indent=2) + "\n" if as_json else _text(found))


def _free(formulas: Any, seconds: float, tflops: Any, gflop: Any, batch: int) -> dict[str, Any]:
    positions = formulas.free_positions(seconds, 1e12 * tflops, 1e9 * gflop)
    return {
        "seconds_per_forward": seconds,
        "free_positions": positions,
        "batch": batch,
        "free_gamma": formulas.free_gamma(positions, batch),
    }


def _text(found: dict[str, Any]) -> str:
    gain = "yes, α > c" if found["can_gain"] else "no, α ≤ c: do not draft"
    at_most = " (the bound: without a cost, more is never worse)" if found["best_gamma"] == 256 else ""
    lines = [
        ("tokens per forward", f"{found['expected_tokens']:.2f} at α {found['alpha']:g}, γ {found['gamma']}"),
        ("speed-up", f"{found['speedup']:.2f}x at c {found['cost']:g} (Theorem 3.8)"),
        ("can it gain", f"{gain}; at least {found['least_gain']:.2f}x (Corollary 3.9)"),
        ("best γ", f"{found['best_gamma']}{at_most}: {found['best_speedup']:.2f}x"),
        ("operations", f"{found['operations_increase']:.2f}x per token (Theorem 3.11)"),
    ]
    if "free_positions" in found:
        free = (
            f"{found['free_positions']:.0f} positions in the {1e3 * found['seconds_per_forward']:.2f} ms of a forward"
        )
        lines.append(("nearly free", f"{free}: γ {found['free_gamma']} at batch {found['batch']}"))
    return "".join(f"{name:20} {value}\n" for name, value in lines)
