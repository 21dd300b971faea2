"""``zerodraft theory``: the formulas' figures on stdout, one line where an option is wrong."""

from __future__ import annotations

import json

from typer.testing import CliRunner, Result

from zerodraft.integrations.commands import cli


def theory(*options: str) -> Result:
    return CliRunner().invoke(cli.app, ["theory", *options])


def test_the_published_figures() -> None:
    result = theory("--alpha", "0.8", "--gamma", "4", "--cost", "0.05")
    assert result.exit_code == 0, result.output
    assert "3.36 at α 0.8, γ 4" in result.stdout
    assert "2.80x" in result.stdout
    assert json.loads(theory("--alpha", "0.9", "--cost", "0.05", "--json").stdout)["gamma"] == 13
    assert "do not draft" in theory("--alpha", "0.05", "--cost", "0.05").stdout


def test_the_batch_threshold() -> None:
    card = ["--weight-gb", "16.0465", "--bandwidth", "3350", "--tflops", "990", "--gflop", "15"]
    found = json.loads(theory(*card, "--batch", "64", "--json").stdout)
    assert round(found["free_positions"]) == 316
    assert found["free_gamma"] == 3


def test_errors_are_one_line() -> None:
    for options, message in [
        (["--alpha", "2"], "alpha must be in [0, 1], got 2.0"),
        (["--tflops", "1"], "all four or none"),
        (["--gamma", "-1"], "gamma"),
        (["--weight-gb", "1", "--bandwidth", "0", "--tflops", "1", "--gflop", "1"], "seconds_per_forward"),
    ]:
        result = theory(*options)
        assert (result.exit_code, result.stdout) == (1, "")
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_batch_is_a_number_of_rows_and_needs_the_hardware() -> None:
    """Case 48: an option that would do nothing is an error."""
    for options, message in (
        (["--batch", "0"], "--batch must be at least 1, got 0"),
        (["--batch", "-3"], "--batch must be at least 1, got -3"),
        (["--batch", "8"], "--batch has no effect without --weight-gb, --bandwidth, --tflops and --gflop"),
    ):
        result = theory(*options)
        assert (result.exit_code, result.stdout) == (1, "")
        assert message in result.stderr
