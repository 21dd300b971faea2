"""What the commands share: the result goes to stdout, talk to stderr, what a user can mend is one line.

Only typer is imported here; torch, transformers and rich come with the first command that needs them.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from zerodraft.integrations.models import LoadedModel
    from zerodraft.integrations.pipelines.compare import Comparison
    from zerodraft.integrations.pipelines.editing import EditResult
    from zerodraft.integrations.pipelines.generating import GenerateResult
    from zerodraft.lookup.measure.stats import GenerationStats

_EXTRA_OF: Final = {"torch": "hf", "transformers": "hf", "tokenizers": "hf", "platformdirs": "demo", "gguf": "demo"}
"""Packages that a command may find missing, and the extra that brings them."""


def load(name: str, dtype: str, device: str) -> LoadedModel:
    """Load the model, and the lookup kernels with it; they are compiled once per machine."""
    from zerodraft.integrations.models import load_model
    from zerodraft.integrations.weights import progress_bar
    from zerodraft.lookup.runtime.warm_up import num_compiled, warm_up

    with progress_bar() as progress:
        loaded = load_model(name, dtype=dtype, device=device, say=talk, progress=progress)
    before = num_compiled()
    if (seconds := warm_up()) > 2.0 and num_compiled() > before:
        talk(f"compiled the lookup kernels in {seconds:.0f} s (once per machine)")
    return loaded


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn what the user can do something about into one line on stderr and exit status 1."""
    try:
        yield
    except typer.Exit:  # a RuntimeError, too
        raise
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA_OF:
            raise
        talk(f"this needs {error.name}: pip install 'zerodraft[{_EXTRA_OF[error.name]}]'")
        raise typer.Exit(1) from error
    except (ValueError, OSError, RuntimeError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        from zerodraft.lookup.checks import first_line

        line = first_line(error)
        if isinstance(error, OSError) and error.strerror:  # without the system's number for it
            line = error.strerror if error.filename is None else f"{os.fspath(error.filename)!s}: {error.strerror}"
        talk(line)
        raise typer.Exit(1) from error


@contextlib.contextmanager
def status(what: str) -> Iterator[Any]:
    """Show a count of tokens on a terminal while they come in; yield the streamer that counts them."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with console.status(what) as shown:
        yield _Counter(lambda count: shown.update(f"{what}: {count} tokens"))


class _Counter:
    """A streamer that only counts."""

    def __init__(self, tell: Any) -> None:
        self._tell, self._count = tell, -1  # the first put is the prompt

    def put(self, ids: Any) -> None:
        self._count = 0 if self._count < 0 else self._count + int(ids.numel())
        self._tell(self._count)

    def end(self) -> None:
        """Nothing was held back."""


def summary(stats: GenerationStats, comparison: Comparison | None, first: str) -> None:
    if comparison is not None:
        print_table(comparison)
    pace = stats.num_emitted_tokens / stats.total_seconds if stats.total_seconds else 0.0
    talk(
        f"{first}{stats.num_emitted_tokens} tokens in {stats.total_seconds:.1f} s ({pace:.1f} per second), "
        f"{stats.tokens_per_forward:.1f} tokens per forward"
        + (f"; {stats.stand_down_reason}" if stats.stand_down_reason else "")
    )


def print_table(comparison: Comparison) -> None:
    """Print the ways of decoding side by side on stderr."""
    from rich.console import Console
    from rich.table import Table

    def maybe(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    table = Table()
    for head in ("decoding", "tokens/s", "speed-up", "forwards", "tokens/forward", "acceptance", "lookup µs/token"):
        table.add_column(head, justify="left" if head == "decoding" else "right")
    table.add_column("text")
    for way in comparison.ways:
        table.add_row(
            way.name,
            f"{way.tokens_per_second:.1f}",
            f"{comparison.speedup(way.name):.2f}x",
            str(way.num_forwards),
            f"{way.tokens_per_forward:.2f}",
            maybe(way.acceptance, ".0%"),
            maybe(way.lookup_us_per_token, ".1f"),
            comparison.verdict(way.name),
        )
    console = Console(stderr=True)
    console.print(table) if console.is_terminal else Console(stderr=True, width=140).print(table)


def json_values(loaded: LoadedModel, result: EditResult | GenerateResult, **values: Any) -> dict[str, Any]:
    """Text and statistics of a run that kept its trace, JSON-ready."""
    stats, comparison = result.stats, result.comparison
    return values | {
        "spans": spans_of(loaded, result),
        "left_out": list(result.left_out),
        "model": loaded.origin,
        "stats": stats.as_dict(),
        "compare": None if comparison is None else comparison.as_dict(),
        "trace": None if stats.trace is None else stats.trace.as_dict(),
    }


def print_json(document: dict[str, Any]) -> None:
    """Print one object. What UTF-8 cannot carry, such as an odd file name, is escaped."""
    write_out(json.dumps(document, ensure_ascii=False, indent=2) + "\n", errors="backslashreplace")


def spans_of(loaded: LoadedModel, result: EditResult | GenerateResult) -> list[tuple[str, str]]:
    """The answer in runs of tokens of one source."""
    from zerodraft.integrations.report.colouring import spans

    trace = result.stats.trace
    assert trace is not None
    return spans(loaded.tokenizer, result.token_ids, trace.sources())


def print_spans(found: Sequence[tuple[str, str]], *, stderr: bool = False) -> None:
    """Print the text, coloured where this is a terminal, and on stderr what the colours mean."""
    from rich.console import Console
    from rich.text import Text

    from zerodraft.integrations.report.colouring import LOOKS
    from zerodraft.lookup.measure.trace import PLAIN

    def style_of(source: str) -> str:
        return "" if source == PLAIN else f"black on {LOOKS[source].terminal}"

    console = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if console.is_terminal:
        shown = Text()
        for source, text in found:
            shown.append(_visible(text), style=style_of(source))
        console.print(shown)
    else:  # byte for byte
        plain = "".join(text for _, text in found) + "\n"
        console.file.write(plain) if stderr else write_out(plain)
    legend = Text("colours: ")
    for source in dict.fromkeys(source for source, _ in found):
        legend.append(f"{source}", style=style_of(source))
        legend.append(f" {LOOKS[source].meaning}; ")
    Console(stderr=True, highlight=False, soft_wrap=True).print(legend[:-2])


def _visible(text: str) -> str:
    """Show what could steer a terminal as what it is; line breaks and tabs stay."""
    return "".join(char if char in "\n\t" or char.isprintable() else f"\\x{ord(char):02x}" for char in text)


def print_diff(diff: str, *, stderr: bool = False) -> None:
    """Print a diff, in colours where this is a terminal."""
    colours = {"+": typer.colors.GREEN, "-": typer.colors.RED, "@": typer.colors.CYAN}
    if (sys.stderr if stderr else sys.stdout).isatty():
        lines = diff.split("\n")
        diff = "\n".join(typer.style(line, fg=colours[line[0]]) if line[:1] in colours else line for line in lines)
    if stderr:
        typer.echo(diff, err=True, nl=False)
    else:
        write_out(diff)


def write_out(text: str, *, errors: str = "surrogateescape") -> None:
    """Write to stdout byte for byte: line ends are not translated, and names are the bytes they were."""
    sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(text)
    else:
        buffer.write(text.encode("utf-8", errors))
    sys.stdout.flush()


def talk(line: str) -> None:
    typer.echo(f"zerodraft: {line}", err=True)
