"""``wavetank launch watch``: asks Prometheus exporters again and again, and speaks only when it must."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Sequence
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
    askers = _Askers(min(_AT_ONCE, len(chosen)), timeout_s)
    spoken = 0
    number = 0
    try:
        while not rounds or number < rounds:
            begin_s = time.monotonic()
            said = watch.take(begin_s, dict(zip(names, askers.ask(chosen), strict=True)))
            for each in said:
                _say(each, as_json)
            spoken += sum(each.label != "too-few-nodes" for each in said)
            number += 1
            if not rounds or number < rounds:
                time.sleep(max(0.0, begin_s + every_s - time.monotonic()))
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        askers.end()
    return DOES_NOT_HOLD if spoken else 0


class _Askers:
    """Threads that ask exporters, and that nobody waits for at the end: an answer may take minutes."""

    def __init__(self, many: int, timeout_s: float) -> None:
        self._many, self._timeout_s = many, timeout_s
        self._jobs: queue.SimpleQueue[tuple[int, Target] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[int, list[Sample] | str | Exception]] = queue.SimpleQueue()
        for _ in range(many):
            threading.Thread(target=self._work, daemon=True).start()

    def ask(self, targets: Sequence[Target]) -> list[list[Sample] | str]:
        """Return what each exporter shows, or why it shows nothing, in their order."""
        for job in enumerate(targets):
            self._jobs.put(job)
        found: dict[int, list[Sample] | str] = {}
        for _ in targets:
            place, answer = self._answer()
            if isinstance(answer, Exception):
                raise answer
            found[place] = answer
        return [found[place] for place in range(len(targets))]

    def _answer(self) -> tuple[int, list[Sample] | str | Exception]:
        while True:
            # A Ctrl-C between two instructions, before the wait begins, does not end it: it is seen after the wait.
            with contextlib.suppress(queue.Empty):
                return self._answers.get(timeout=0.2)

    def end(self) -> None:
        """Let the threads end, each after the answer for which it waits."""
        for _ in range(self._many):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                answer: list[Sample] | str | Exception = _asked(job[1], self._timeout_s)
            except Exception as error:
                answer = error
            self._answers.put((job[0], answer))


def _asked(target: Target, timeout_s: float) -> list[Sample] | str:
    from wavetank.insight.cluster.scrape import scrape

    try:
        return scrape(target, timeout_s=timeout_s)
    except WavetankError as error:
        # Whatever it is that the exporter does: it shows no metrics, and why is said when that goes on.
        return error.problem + (f" ({error.given})" if error.given else "")


def _say(said: Said, as_json: bool) -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    if as_json:
        say(json.dumps({"time": stamp, "node": said.node, "label": said.label, "says": said.text}))
    else:
        say(f"{stamp}  {said.text}")
