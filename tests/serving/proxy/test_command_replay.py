"""``wavetank launch replay``: one table, one file, and exit codes that a script can use."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from wavetank.live.processes import ChildProcess, free_port

Call = Callable[..., Any]
ENGINE = [sys.executable, "-m", "wavetank", "launch", "engine", "--step-time", "overhead_s=1ms"]


@contextlib.contextmanager
def engine(*words: str) -> Iterator[str]:
    with ChildProcess([*ENGINE, *words], name="engine") as process:
        yield process.first_line().strip()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with engine("--context-tokens", "1000") as address:
        yield address


@pytest.fixture
def trace(tmp_path: Path) -> str:
    rows = "\n".join(f"{i / 100},{20 + i},{3 + i}" for i in range(10))
    (tmp_path / "requests.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n")
    return str(tmp_path / "requests.csv")


def test_it_prints_the_figures_and_writes_the_records(call: Call, url: str, trace: str, tmp_path: Path) -> None:
    ended = call("launch", "replay", trace, "--url", url, "--out", str(tmp_path / "out.jsonl"))
    assert ended.code == 0
    # What was read comes first, beside the figures, so that a pipe gets these alone.
    assert ended.err.startswith("Read requests.csv: 10 requests over 90 ms, 100 requests/s\n")
    assert len(ended.err.splitlines()) == 3
    assert ended.out.startswith("10 of 10 requests got a whole answer, every token checked.\n")
    for words in ("time to first token", "time per output token", "end to end", "tokens/s", "requests/s", "p99"):
        assert words in ended.out
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 10
    assert max(map(len, ended.out.splitlines()[:9])) <= 80


def test_the_number_and_the_rate_of_requests_can_be_set(call: Call, url: str, trace: str) -> None:
    ended = call("launch", "replay", trace, "--url", url, "--requests", "4", "--rate", "200", "--as-text")
    assert (ended.code, ended.out.splitlines()[0][:7]) == (0, "4 of 4 ")


def test_failures_are_reported_by_kind_and_change_the_exit_code(call: Call, url: str, tmp_path: Path) -> None:
    file = tmp_path / "long.csv"
    file.write_text("t,in,out\n0,20,5\n0,2000,5\n0,2000,5\n")
    ended = call(
        "launch", "replay", str(file), "--url", url, "--columns", "arrival_s=t,prompt_tokens=in,output_tokens=out"
    )
    assert ended.code == 1
    assert ended.out.startswith("1 of 3 requests got a whole answer, every token checked.\n  2 x http-400: ")
    assert "context_length_exceeded" in " ".join(ended.out.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--url", "localhost"], "This is not the address of a server."),
        (["--url", "http://x", "--out", "x.csv"], "allowed: .jsonl, .parquet"),
        (["--url", "http://x", "--out", "no/where.jsonl"], "There is no such folder."),
        (["--url", "http://x", "--columns", "arrival_s"], "A column map is made of pairs."),
        (["--url", "http://x", "--columns", "arrival_s=ts,prompt_tokens=in"], "--columns arrival_s=COLUMN,"),
        (["--url", "http://x", "--time-unit", "tokens"], "time_unit"),
        (["--url", "http://x", "--bad-rows", "keep"], "--bad-rows"),
        (["--url", "http://x", "--time-scale", "-1"], "time_scale"),
        (["--url", "http://x", "--rate", "-1"], "requests_per_s"),
        (["--url", f"http://127.0.0.1:{free_port()}"], "The server does not answer"),
        ([], "--url"),
    ],
)
def test_wrong_options_are_reported(call: Call, trace: str, words: list[str], says: str) -> None:
    ended = call("launch", "replay", trace, *words)
    assert (ended.code, ended.out) == (3, "")
    assert says in ended.err


def test_a_trace_that_is_not_there_is_reported_with_the_nearest(call: Call) -> None:
    ended = call("launch", "replay", "azure-conv-2024", "--url", "http://x")
    assert ended.code == 3
    assert "nearest: azure-conv-2023" in ended.err


def test_ctrl_c_prints_what_finished(terminal: Call, tmp_path: Path, url: str) -> None:
    file = tmp_path / "slow.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,20,5\n600,20,5\n")
    words = ["launch", "replay", str(file), "--url", url, "--out", str(tmp_path / "out.jsonl")]
    screen = terminal(*words, until="1 of 2 sent, 1 done")
    assert screen.code == 130
    assert "1 of 2 requests got a whole answer, every token checked." in screen.text
    assert "1 x interrupted" in screen.text
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2


def test_a_log_with_failed_requests_is_replayed_without_them_or_refused(call: Call, url: str, tmp_path: Path) -> None:
    file = tmp_path / "log.tsv"
    file.write_text(
        "when\tin\tout\n03/04/2024 10:00:00\t20\t5\n03/04/2024 10:00:01\t20\t0\n03/05/2024 10:00:00\t9\t5\n"
    )
    words = ["launch", "replay", str(file), "--url", url, "--rate", "100"]
    ended = call(*words)
    assert (ended.code, ended.out) == (3, "")
    assert "--time-unit mdy for month first" in " ".join(ended.err.split())
    ended = call(*words, "--time-unit", "mdy", "--bad-rows", "stop")
    assert "--bad-rows drop leaves out and counts this row" in " ".join(ended.err.split())
    ended = call(*words, "--time-unit", "mdy")
    assert (ended.code, ended.out.splitlines()[0][:7]) == (0, "2 of 2 ")
    assert "dropped 1 row (1 with zero output length)" in ended.err


def test_answers_that_the_model_ended_are_counted(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "long.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,20,9000\n0,20,1\n")
    with engine("--lengths", "conv", "--seed", "1") as url:
        ended = call("launch", "replay", str(file), "--url", url, "--extensions", "off")
        assert ended.code == 0
        assert "  1 answers were ended by the model: " in ended.out
        assert " of 9001 output tokens of the trace were not" in " ".join(ended.out.split())
        ended = call("launch", "replay", str(file), "--url", url)
        assert "ended by the model" not in ended.out
