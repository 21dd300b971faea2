"""``zerodraft replay``: its numbers on a scripted file, and every way a line or a file can be bad."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from zerodraft.integrations.commands import cli
from zerodraft.integrations.pipelines.replaying import BadLine, replay_traces
from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.policy import DraftPolicy

COPY = {"prompt": [*range(100, 200)], "output": [*range(100, 180)], "note": "ignored"}
FREE = DraftPolicy(cost=CostCurve([(1, 1.0), (1001, 2.0)]))


@pytest.fixture
def tokenizer(tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
    tool = Tokenizer(BPE(alphabet, []))
    tool.pre_tokenizer = ByteLevel(add_prefix_space=False)
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    tool.save(str(folder / "tokenizer.json"))
    return folder


def write(tmp_path, *lines):
    file = tmp_path / "traces.jsonl"
    file.write_bytes(
        b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    )
    return file


def run(*arguments):
    return CliRunner().invoke(cli.app, ["replay", *map(str, arguments)])


def test_counts_add_up(tmp_path):
    report = replay_traces(write(tmp_path, COPY, b"", COPY), policy=FREE)
    found = report.as_dict()
    assert report.num_traces == 2
    assert found["num_decode_tokens"] == 2 * 79
    stats = report.replay.stats
    assert sum(report.replay.forwards.values()) == stats.num_decode_forwards
    assert found["tokens_per_forward"] == 158 / stats.num_decode_forwards > 10
    table = FREE.curve.table(256)
    cost = sum(count * table[n] for n, count in report.replay.forwards.items())
    assert found["speedup"] == pytest.approx(158 / cost)
    assert stats.num_emitted_tokens == stats.num_accepted_tokens + stats.num_row_steps + 2
    json.dumps(found)


def test_texts_and_ids_give_the_same(tmp_path, tokenizer):
    from tokenizers import Tokenizer

    encode = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).encode
    texts = {"prompt": "def f(x):\n    return x\n" * 3, "output": "def f(y):\n    return y\n", "prediction": "def f(y)"}
    ids = {key: encode(text).ids for key, text in texts.items()}
    for source in (tokenizer, tokenizer / "tokenizer.json"):
        by_text = replay_traces(write(tmp_path, texts), tokenizer=source).as_dict()
        by_ids = replay_traces(write(tmp_path, ids)).as_dict()
        for found in (by_text, by_ids):
            del found["lookup_us_per_token"]
        assert by_text == by_ids
        assert by_ids["acceptance_by_source"]["prediction"] > 0


BAD = [
    (b"{", "not JSON"),
    (b"\xff\xfe", "not UTF-8"),
    ([1, 2], "JSON object, got list"),
    ({"prompt": [1]}, "no output"),
    ({}, "no prompt and no output"),
    ({"prompt": [1], "output": []}, "output must not be empty"),
    ({"prompt": [1, -1], "output": [1]}, "prompt must be in"),
    ({"prompt": [1], "output": [2**31]}, "output must be in"),
    ({"prompt": [1], "output": [1.5]}, "output must be integers"),
    ({"prompt": [True], "output": [1]}, "bool"),
    ({"prompt": [[1], [2]], "output": [1]}, "prompt must be"),
    ({"prompt": [1, [2]], "output": [1]}, "prompt must be"),
    ({"prompt": ["a"], "output": [1]}, "prompt must be"),
    ({"prompt": 7, "output": [1]}, "prompt must be a text or a list"),
    ({"prompt": [1], "output": [1], "prediction": {}}, "prediction must be a text or a list"),
    ({"prompt": "text", "output": [1]}, "need a tokenizer"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_a_bad_line_is_named_by_its_number_or_left_out(tmp_path, line, message):
    file = write(tmp_path, COPY, b"  ", line, COPY)
    with pytest.raises(BadLine, match=f"^line 3: .*{message}"):
        replay_traces(file)
    report = replay_traces(file, skip_bad=True)
    assert report.num_traces == 2
    assert [bad[:7] for bad in report.bad_lines] == ["line 3:"]


@pytest.mark.parametrize("lines", [[], [b"", b" "]])
def test_a_file_without_traces_is_refused(tmp_path, lines):
    with pytest.raises(ValueError, match="at least one trace"):
        replay_traces(write(tmp_path, *lines))


def test_a_bad_tokenizer_is_one_error(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="no tokenizer at"):
        replay_traces(write(tmp_path, {"prompt": "a", "output": "b"}), tokenizer=tmp_path)


def test_the_command_prints_a_report_and_json(tmp_path):
    file = write(tmp_path, COPY)
    text = run(file)
    assert text.exit_code == 0
    assert "tokens per forward" in text.stdout
    assert "context: 1" in text.stdout
    found = json.loads(run(file, "--json").stdout)
    assert found["num_traces"] == 1
    assert found["curve"]["points"] == [[1, 1.0], [28, 2.0]]


def test_options_have_an_effect(tmp_path):
    file = write(tmp_path, COPY)
    curves = tmp_path / "curves.json"
    steep = CostCurve([(1, 1.0), (2, 2.0)])
    curves.write_text(json.dumps({"steep": steep.as_dict(), "free": FREE.curve.as_dict()}))
    free = json.loads(run(file, "--json", "--curve", f"{curves}:free").stdout)
    steep = json.loads(run(file, "--json", "--curve", f"{curves}:steep").stdout)
    capped = json.loads(run(file, "--json", "--curve", f"{curves}:free", "--max-draft-tokens", 3).stdout)
    assert free["tokens_per_forward"] > steep["tokens_per_forward"]
    assert max(map(int, capped["forwards_by_positions"])) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--curve", "x"], "FILE:NAME"),
        (["--curve", "absent.json:x"], "absent.json"),
        (["--curve", "a:b", "--measure", "demo"], "not both"),
        (["--max-draft-tokens", "0"], "max_draft_tokens"),
        (["--max-branches", "99"], "max_branches"),
    ],
)
def test_bad_options_are_one_line(tmp_path, arguments, message):
    result = run(write(tmp_path, COPY), *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    result = run(tmp_path / "absent.jsonl")
    assert result.exit_code == 1
    assert "absent.jsonl" in result.stderr


def test_skipped_lines_are_told(tmp_path):
    result = run(write(tmp_path, COPY, b"{"), "--skip-bad")
    assert result.exit_code == 0
    assert "left out line 2" in result.stderr
    assert "(1 left out)" in result.stdout
