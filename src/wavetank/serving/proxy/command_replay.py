"""``wavetank launch replay``: send a request trace to a server, and measure what comes back."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wavetank import units
from wavetank.errors import BadValueError
from wavetank.exits import DOES_NOT_HOLD, INTERRUPTED
from wavetank.serving.proxy.configuration import ReplayOptions
from wavetank.settings import options
from wavetank.terminal import is_terminal, say, say_heading, say_wrapped

if TYPE_CHECKING:
    from wavetank.serving.proxy.replay import Replay

_FIGURES = ("mean", "p50", "p95", "p99")
_TIMES = (("ttft", "time to first token"), ("tpot", "time per output token"), ("e2e", "end to end"))


@click.command()
@click.argument("trace")
@click.option("--url", required=True, help="URL of the server, as in http://127.0.0.1:8000.")
@click.option("--requests", type=click.IntRange(1), help="Most requests; all by default.")
@options(ReplayOptions, "time_scale")
@click.option("--rate", "rate_per_s", type=float, help="Requests per second; the trace's own by default.")
@click.option("--columns", metavar="FIELD=COLUMN,...", default="", help="A file's column map.")
@click.option("--time-unit", metavar="UNIT", help="Unit of a file's arrivals (s, ms, us, ns), or mdy or dmy for dates.")
@click.option(
    "--bad-rows",
    type=click.Choice(("drop", "stop")),
    default="drop",
    show_default=True,
    help="Rows with missing, zero, negative or non-numeric values.",
)
@options(ReplayOptions, "model", "as_text", "extensions", "prompt_seed", "timeout_s")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write one row per request to this file, .jsonl or .parquet.",
)
def command(
    trace: str,
    url: str,
    requests: int | None,
    time_scale: float,
    rate_per_s: float | None,
    columns: str,
    time_unit: str | None,
    bad_rows: str,
    model: str,
    as_text: bool,
    extensions: str,
    prompt_seed: int,
    timeout_s: float,
    out: Path | None,
) -> int:
    """Send TRACE (a name as in `compare --set trace=`, or a file) to an OpenAI server, and measure the answers.

    Requests leave at the trace's times, however slow the server is.  Figures are defined as in a simulation; with a
    time scale they are converted back to the trace's clock.  Ctrl-C prints the figures of the finished requests.
    """
    from wavetank.live.loops import fastest_loop
    from wavetank.serving.proxy.replay import replay
    from wavetank.workloads.load import read_column_map, read_trace_and_facts

    if out is not None and not out.name.lower().endswith((".jsonl", ".parquet")):
        raise BadValueError("Records are not written in this format.", given=out.name, allowed=".jsonl, .parquet")
    if out is not None and not out.parent.is_dir():
        raise BadValueError("There is no such folder.", given=str(out.parent), where="--out")
    asked = ReplayOptions(
        url=url,
        time_scale=time_scale,
        as_text=as_text,
        model=model,
        extensions=extensions,
        prompt_seed=prompt_seed,
        timeout_s=timeout_s,
    )
    found, facts = read_trace_and_facts(
        trace,
        columns=read_column_map(columns, where="--columns"),
        time_unit=time_unit,
        bad_rows=bad_rows,
        asked_in="options",
    )
    for line in (*facts.lines(), *facts.notes):
        say_wrapped(line, rest="  ", err=True)
    if requests is not None:
        found = found.head(requests)
    if rate_per_s is not None:
        found = found.at_rate(rate_per_s)
    with asyncio.Runner(loop_factory=fastest_loop) as runner:
        result = runner.run(replay(found, asked, progress=_progress(len(found))))
    if out is not None:
        result.write(out)
    _say(result)
    if out is not None:
        say()
        say(f"records  {out}")
    if result.interrupted:
        return INTERRUPTED
    return DOES_NOT_HOLD if result.failures else 0


def _progress(total: int) -> Callable[[int, int], None] | None:
    """Return what rewrites one line on a terminal; nothing where there is none."""
    if not is_terminal(sys.stderr):
        return None

    def report(sent: int, done: int) -> None:
        click.echo(f"\r{sent} of {total} sent, {done} done ", nl=done == total, err=True)

    return report


def _say(result: Replay) -> None:
    total, done = len(result.outcomes), len(result.finished)
    say(f"{done} of {total} requests got a whole answer{', every token checked' if result.checked and done else ''}.")
    for kind, count in result.failures.most_common():
        detail = next(outcome.detail for outcome in result.outcomes if outcome.failure == kind)
        say_wrapped(f"{count} x {kind}{': ' if detail else ''}{detail}", first="  ", rest="    ")
        if result.lengths_asked and kind in ("http-400", "http-422"):
            say_wrapped(
                "--extensions off leaves out min_tokens and ignore_eos, which OpenAI does not know.", first="    "
            )
    if not done:
        return
    _say_lengths(result)
    figures = result.run().metrics()
    say_heading(f"{'':24}" + "".join(f"{name:>12}" for name in _FIGURES))
    for name, words in _TIMES:
        values = (units.show(figures[f"{name}_{figure}_s"], "s") for figure in _FIGURES)
        say(f"{words:24}" + "".join(f"{value:>12}" for value in values))
    say()
    say(f"{'throughput':24}{units.show(figures['throughput_tokens_per_s'], 'tokens/s'):>24}")
    say(f"{'':24}{units.show(figures['requests_per_s'], 'requests/s'):>24}")
    say(f"{'sent late, on average':24}{units.show(result.sending_late_s, 's'):>24}")


def _say_lengths(result: Replay) -> None:
    """Say where lengths are not the trace's, and what came from prefix caches."""
    short = result.short
    if short:
        missing = sum(outcome.asked_tokens - outcome.output_tokens for outcome in short)
        asked = sum(outcome.asked_tokens for outcome in result.finished)
        say_wrapped(
            f"{len(short)} answers were ended by the model: {missing} of {asked} output tokens of the trace were not "
            "generated.",
            first="  ",
        )
    cached = sum(outcome.cached_tokens for outcome in result.finished)
    if cached:
        share = cached / max(sum(outcome.prompt_tokens for outcome in result.finished), 1)
        say(f"  {share:.1%} of the prompt tokens came from prefix caches.")
