"""``wavetank launch watch``: asks Prometheus exporters again and again, and speaks only when it must."""

from __future__ import annotations

import concurrent.futures
import json
import time
from typing import TYPE_CHECKING

import click

from wavetank.errors import BadValueError, WavetankError
from wavetank.exits import DOES_NOT_HOLD, INTERRUPTED
from wavetank.settings import check_parameters
from wavetank.terminal import say, say_wrapped

if TYPE_CHECKING:
    from wavetank.insight.cluster.fleet_watch import Said
    from wavetank.insight.cluster.scrape import Target
    from wavetank.workloads.prometheus import Sample

_MOST_TARGETS = 512
_AT_ONCE = 32


@click.command()
@click.option(
    "--target", "targets", metavar="[NODE=]URL", multiple=True, default=("http://127.0.0.1:9100/metrics",),
    show_default=True, help="An exporter; repeatable. Nodes are compared from four on.",
)  # fmt: skip
@click.option(
    "--every-s", type=click.FloatRange(0.05, 3600), default=30.0, show_default=True, help="Seconds between scrapes."
)
@click.option(
    "--timeout-s", type=click.FloatRange(0.01, 600), default=5.0, show_default=True, help="Seconds for one answer."
)
@click.option(
    "--rounds", type=click.IntRange(0, 10**9), default=0, show_default=True, help="Scrapes until the end; 0: none."
)
@click.option("--learn", default="20", show_default=True, help="Scrapes that count as usual.")
@click.option("--threshold", default="15", show_default=True, help="Sum over layers above which a node is odd.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document a line.")
def command(
    targets: tuple[str, ...], every_s: float, timeout_s: float, rounds: int, learn: str, threshold: str, as_json: bool
) -> int:
    """Watch Prometheus exporters, and say when a node is silent, was started again, or is far from its peers.

    The first scrapes are taken as usual.  Exit code with --rounds: 0 if nothing had to be said, 1 otherwise.
    """
    from wavetank.insight.cluster.fleet_watch import FleetSettings, FleetWatch
    from wavetank.insight.cluster.scrape import target_of

    options = {"learn": learn, "threshold": threshold}
    given = check_parameters(FleetSettings, options, where="launch watch", what="option")
    chosen = [target_of(each) for each in targets]
    names = [each.node for each in chosen]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadValueError("Two exporters have one name.", given=twice, hint="--target NODE=URL names them")
    if len(chosen) > _MOST_TARGETS:
        raise BadValueError("These are too many exporters.", given=len(chosen), allowed=f"at most {_MOST_TARGETS}")
    watch = FleetWatch(names, FleetSettings(**given))
    if not as_json:
        say_wrapped(f"Watching {len(names)} exporters every {every_s:g} s; silence means that nothing is wrong.")
    spoken = 0
    number = 0
    try:
        with concurrent.futures.ThreadPoolExecutor(min(_AT_ONCE, len(chosen))) as pool:
            while not rounds or number < rounds:
                begin_s = time.monotonic()
                answers = pool.map(lambda each: _asked(each, timeout_s), chosen)
                said = watch.take(begin_s, dict(zip(names, answers, strict=True)))
                for each in said:
                    _say(each, as_json)
                spoken += sum(each.label != "too-few-nodes" for each in said)
                number += 1
                if not rounds or number < rounds:
                    time.sleep(max(0.0, begin_s + every_s - time.monotonic()))
    except KeyboardInterrupt:
        return INTERRUPTED
    return DOES_NOT_HOLD if spoken else 0


def _asked(target: Target, timeout_s: float) -> list[Sample] | None:
    from wavetank.insight.cluster.scrape import scrape

    try:
        return scrape(target, timeout_s=timeout_s)
    except WavetankError:
        # Whatever it is that the exporter does: it shows no metrics, and silence is what is reported.
        return None


def _say(said: Said, as_json: bool) -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    if as_json:
        say(json.dumps({"time": stamp, "node": said.node, "label": said.label, "says": said.text}))
    else:
        say(f"{stamp}  {said.text}")
