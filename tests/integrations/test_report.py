"""The report and the colours: every token in its source's colour, texts escaped, and a browser that finds no fault."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from zerodraft.integrations import models
from zerodraft.integrations.commands import cli
from zerodraft.integrations.commands.terminal import print_spans
from zerodraft.integrations.report.colouring import LOOKS, spans
from zerodraft.lookup.draft import SOURCE_NAMES

pytest.importorskip("jinja2")

HOSTILE = "x = '<script>alert(1)</script>'\ny = x + \"&amp;</pre><img src=http://example.com/a.png>\"\n"
BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")


def zerodraft(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, list(map(str, arguments)))


@pytest.fixture
def run_file(scripted: Any, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What ``edit --json`` writes when a model changes one word of a hostile text."""
    new = HOSTILE.replace("y =", "naïve =")
    loaded = models.LoadedModel(scripted(f"{new}```"), tokenizer, "scripted", "a script")
    monkeypatch.setattr(models, "load_model", lambda *args, **options: loaded)
    file = tmp_path / "<b>hostile.py"
    file.write_text(HOSTILE)
    result = zerodraft("edit", file, "-i", "Rename y.", "--json", "--compare")
    assert result.exit_code == 0, result.output
    path = tmp_path / "run.json"
    path.write_text(result.stdout)
    return path


class _Texts(HTMLParser):
    """The spans of the page as (class, text), and every tag's name."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[tuple[str, str]] = []
        self.tags: list[str] = []
        self._class: str | None = None
        self._inside = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self._inside = self._inside or tag == "pre"
        self._class = dict(attrs).get("class") if tag == "span" and self._inside else None

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "pre"
        self._class = None

    def handle_data(self, data: str) -> None:
        if self._class is not None:
            self.spans.append((self._class, data))


def page(file: Path, *options: str | Path) -> str:
    output = file.with_name("report.html")
    result = zerodraft("report", file, "-o", output, *options)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    return output.read_text("utf-8")


def test_json_holds_what_a_report_needs(run_file: Path) -> None:
    document = json.loads(run_file.read_text())
    assert "".join(text for _, text in document["spans"]).startswith(document["text"].rstrip("\n"))
    sources = {source for source, _ in document["spans"]}
    assert "plain" in sources
    assert sources & {"context", "prediction"}
    trace, stats = document["trace"], document["stats"]
    assert sum(trace["num_emitted"]) == stats["num_emitted_tokens"]
    assert sum(map(len, trace["sources"])) == stats["num_accepted_tokens"]
    assert trace["curve"]["points"][0] == [1, 1.0]


def test_the_page_shows_the_text_and_nothing_of_it_is_markup(run_file: Path) -> None:
    html = page(run_file)
    parser = _Texts()
    parser.feed(html)
    document = json.loads(run_file.read_text())
    assert parser.spans == [tuple(span) for span in document["spans"]]
    assert "script" not in parser.tags
    assert "img" not in parser.tags
    assert "&lt;b&gt;hostile.py" in html
    assert parser.tags.count("b") == html.count('class="tile"'), "only those of the page itself"
    assert parser.tags.count("svg") == 7
    assert "prefers-color-scheme: dark" in html


def test_every_plot_has_its_numbers(run_file: Path) -> None:
    from zerodraft.integrations.report.page import plots, read_run

    run = read_run(run_file)
    assert run is not None
    found = {plot.title: plot for plot in plots(run)}
    stats = json.loads(run_file.read_text())["stats"]
    depth = found["Acceptance by depth"]
    assert sum(int(row[1]) for row in depth.rows) == stats["num_draft_tokens"]
    assert sum(int(row[2]) for row in depth.rows) == stats["num_accepted_tokens"]
    assert sum(int(row[1]) for row in found["Tokens per forward against budget"].rows) == stats["num_decode_forwards"]
    assert len(found["Accepted length over time"].rows) == stats["num_decode_forwards"]
    assert sum(int(row[2]) for row in found["Calibration"].rows) == stats["num_draft_tokens"]
    assert sum(float(row[1]) for row in found["Time by phase"].rows) == pytest.approx(stats["total_seconds"], abs=1e-3)
    assert all(plot.svg.count("<title>") >= min(64, len(plot.rows)) for plot in found.values())


def test_traces_are_replayed(tmp_path: Path, tokenizer: Any, tiny_folder: Path) -> None:
    lines = [{"prompt": HOSTILE, "output": HOSTILE + str(number), "prediction": HOSTILE} for number in range(22)]
    file = tmp_path / "traces.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    parser = _Texts()
    html = page(file, "--tokenizer", tiny_folder)
    parser.feed(html)
    assert "".join(text for _, text in parser.spans) == "".join(line["output"] for line in lines[:20])
    assert "2 more texts" in html
    ids = [{"prompt": [1, 2, 3, 4, 5], "output": [9, 1, 2, 3, 4, 5]}]
    file.write_text(json.dumps(ids[0]))
    parser = _Texts()
    parser.feed(page(file))
    assert "".join(text for _, text in parser.spans) == "9 1 2 3 4 5 "


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trace": None}, "got no trace"),
        ({"spans": [["plain"]]}, "spans must be pairs"),
        ({"stats": {}}, "stats must be"),
        ({"trace": {"num_drafted": "x"}}, "lists of numbers"),
        ({"trace": 3}, "trace must be an object"),
    ],
)
def test_a_file_that_is_no_run_is_one_line(run_file: Path, change: dict[str, Any], message: str) -> None:
    run_file.write_text(json.dumps(json.loads(run_file.read_text()) | change))
    output = run_file.with_name("never.html")
    result = zerodraft("report", run_file, "-o", output)
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not output.exists()


def test_unknown_sources_and_lone_surrogates_are_shown(run_file: Path) -> None:
    document = json.loads(run_file.read_text())
    document["spans"] = [["made-up", "a\ud800b"], ["plain", "\nc"]]
    run_file.write_text(json.dumps(document))
    parser = _Texts()
    parser.feed(page(run_file))
    assert parser.spans == [("custom", "a?b"), ("plain", "\nc")]


def test_every_source_has_a_look() -> None:
    assert set(LOOKS) == {"plain", *SOURCE_NAMES}
    assert len({look.terminal for look in LOOKS.values()}) == len(LOOKS)


def test_spans_join_to_the_text(tokenizer: Any) -> None:
    text = "naïve 👩‍👩‍👧 ok"
    ids = tokenizer.encode(text, add_special_tokens=False)
    sources = [("plain", "context")[at % 2] for at in range(len(ids))]
    found = spans(tokenizer, [*ids, 2], [*sources, "plain"])
    assert "".join(piece for _, piece in found) == text
    assert not any("\ufffd" in piece for _, piece in found)
    assert all(one[0] != two[0] for one, two in itertools.pairwise(found))
    with pytest.raises(ValueError, match="one source per token, got 1 for 2"):
        spans(tokenizer, [1, 2], ["plain"])


def test_show_drafts_colours_on_a_terminal_only(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["hello hello hello", "--model", tiny_folder, "--max-new-tokens", "40"]
    plain = zerodraft("generate", *options)
    piped = zerodraft("generate", *options, "--show-drafts")
    assert piped.stdout == plain.stdout
    assert "copied from the prompt" in piped.stderr
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = zerodraft("generate", *options, "--show-drafts")
    assert "\x1b[" in coloured.stdout


def test_show_drafts_leaves_the_diff_alone(
    scripted: Any, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = HOSTILE.replace("y =", "z =")
    loaded = models.LoadedModel(scripted(f"{new}```"), tokenizer, "scripted", "a script")
    monkeypatch.setattr(models, "load_model", lambda *args, **options: loaded)
    file = tmp_path / "a.py"
    file.write_text(HOSTILE)
    without = zerodraft("edit", file, "-i", "Rename y.")
    shown = zerodraft("edit", file, "-i", "Rename y.", "--show-drafts")
    assert shown.stdout == without.stdout != ""
    assert f"{new}```" in shown.stderr
    assert f"{new}```" not in without.stderr


def test_a_text_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_spans([("plain", "a\x1b]0;title\x07[red]b"), ("context", "c")])
    out = capsys.readouterr().out
    assert "\\x1b]0;title\\x07[red]b" in out
    assert "\x1b]" not in out


def _browse(html: Path, tmp_path: Path, *options: str) -> str:
    """What a browser says about a page; its own chatter is left out."""
    command = [
        BROWSER,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'profile'}",
        *options,
        html.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=os.environ | {})
    if done.returncode:
        pytest.skip(f"the browser does not run here: {done.stderr[-200:]}")
    return "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.skipif(not BROWSER, reason="no chromium installed")
@pytest.mark.slow
def test_a_browser_finds_no_fault(run_file: Path, tmp_path: Path) -> None:
    """No console line: the page's own policy forbids every request, so one that is tried would be a line, too."""
    html = page(run_file)
    target = run_file.with_name("report.html")
    shot = tmp_path / "shot.png"
    assert _browse(target, tmp_path, f"--screenshot={shot}", "--window-size=1100,2600") == ""
    assert shot.stat().st_size > 20_000
    target.write_text(html.replace("</body>", '<img src="http://example.com/a.png"><script>1</script></body>'))
    complaints = _browse(target, tmp_path, f"--screenshot={shot}")
    assert "Content Security Policy" in complaints
    assert len(re.findall("CONSOLE", complaints)) >= 2
