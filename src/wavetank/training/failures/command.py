"""``wavetank launch trainer``: a small model trained by processes that may be killed and stopped while it learns."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from wavetank.errors import BadValueError, missing_extra
from wavetank.exits import DOES_NOT_HOLD, INTERRUPTED
from wavetank.terminal import say, say_heading, say_json, say_wrapped, style
from wavetank.units import show

if TYPE_CHECKING:
    from wavetank.live.ranks import Event, Fault, Ranks

_STRIKE = re.compile(r"(\d+)@(\d+)")
_START_TIMEOUT_S = 120.0
# Above what sums in another order differ by in double precision, far below what a lost gradient changes.
_EQUAL = 1e-10
_ENDING = (signal.SIGTERM, signal.SIGHUP)


@click.command()
@click.option("--replicas", type=click.IntRange(1, 8), default=3, show_default=True, help="Processes that train.")
@click.option("--steps", type=click.IntRange(1, 100_000), default=40, show_default=True, help="Steps of the run.")
@click.option(
    "--microbatches",
    type=click.IntRange(1, 4096),
    default=12,
    show_default=True,
    help="Microbatches of every step, however many replicas are left.",
)
@click.option(
    "--step-s",
    type=click.FloatRange(0, 3600),
    default=0.25,
    show_default=True,
    help="Least seconds of a step, so that there is time to kill something.",
)
@click.option(
    "--quota",
    type=click.Choice(["balanced", "majors"]),
    default="balanced",
    show_default=True,
    help="How microbatches are divided.",
)
@click.option(
    "--kill",
    "kills",
    metavar="REPLICA@STEP",
    multiple=True,
    help="Kill a replica with SIGKILL while gradients are summed; repeatable.",
)
@click.option(
    "--stop",
    "stops",
    metavar="REPLICA@STEP",
    multiple=True,
    help="Stop a replica with SIGSTOP while gradients are summed; repeatable.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1, 3600),
    default=5.0,
    show_default=True,
    help="Seconds that replicas wait for one that stands still, before it is ended.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    replicas: int, steps: int, microbatches: int, step_s: float, quota: str, kills: tuple[str, ...],
    stops: tuple[str, ...], timeout_s: float, as_json: bool,
) -> int:  # fmt: skip
    """Train a small model in processes that you may kill or stop, and compare it with a run without failures.

    Prints the ids of the processes; from another terminal, `kill -9 ID` or `kill -STOP ID` one of them.  Survivors
    compute what was lost within the step.  At the end the parameters are held against those of the same steps in one
    process without any failure.  Ctrl-C ends all processes and prints the results so far.
    """
    from wavetank.live.ranks import Ranks
    from wavetank.training.failures.tiny_model import train

    faults = [*_faults("kill", kills, replicas, steps), *_faults("stop", stops, replicas, steps)]
    try:
        import torch  # noqa: F401  (named here, and not by every process)
    except ImportError as error:
        raise missing_extra("torch", "torch", needed_for="Training") from error
    arguments = {"steps": steps, "microbatches": microbatches, "step_s": step_s, "quota": quota}
    watched = _Watched(steps, quiet=as_json)
    interrupted = False
    started = Ranks(
        train, replicas, arguments=arguments, faults=faults, timeout_s=timeout_s, patience_s=timeout_s,
        start_timeout_s=_START_TIMEOUT_S,
    )  # fmt: skip
    with _ended_like_ctrl_c(), started as ranks:
        try:
            watched.begin(ranks)
            for event in ranks.events(float("inf")):
                watched.take(event)
        except KeyboardInterrupt:
            interrupted = True
    found = watched.result(microbatches, compared=not interrupted)
    if as_json:
        say_json(found)
    else:
        _say(found)
    if interrupted:
        return INTERRUPTED
    return 0 if found["equal"] else DOES_NOT_HOLD


def _faults(kind: str, texts: tuple[str, ...], replicas: int, steps: int) -> list[Fault]:
    from wavetank.live.ranks import Fault

    found = []
    for text in texts:
        match = _STRIKE.fullmatch(text.strip())
        if match is None or int(match[1]) >= replicas or int(match[2]) >= steps:
            raise BadValueError(
                "This names no replica and step.",
                given=text,
                allowed=f"REPLICA@STEP, replicas 0 to {replicas - 1}, steps 0 to {steps - 1}",
                where=f"--{kind}",
            )
        # In the second bucket: the first is summed by then, and the last is not.
        at = {"step": int(match[2]), "bucket": 1}
        found.append(Fault(rank=int(match[1]), point="in flight", at=at, kind=kind))
    return found


@contextlib.contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    def end(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Watched:
    """What the replicas have said so far."""

    def __init__(self, steps: int, *, quiet: bool) -> None:
        self.steps, self.quiet = steps, quiet
        self.done: dict[int, dict[str, Any]] = {}
        self.ends: list[Event] = []

    def begin(self, ranks: Ranks) -> None:
        if not self.quiet:
            for rank in range(ranks.size):
                say(f"replica {rank} is process {ranks.pid(rank)}")

    def take(self, event: Event) -> None:
        if event.kind == "reported":
            first = event.value["step"] not in self.done
            known = self.done.setdefault(event.value["step"], event.value)
            known["recovery_s"] = max(known["recovery_s"], event.value["recovery_s"])
            if first:
                self._say(_step_line(event.value, self.steps))
            return
        self.ends.append(event)
        if event.kind != "returned":
            self._say(style(f"replica {event.rank} {event.kind}: {_end_in_words(event)}", fg="yellow"))

    def _say(self, text: str) -> None:
        if not self.quiet:
            say(text)

    def result(self, microbatches: int, *, compared: bool) -> dict[str, Any]:
        """Return the figures of the run; without a comparison where it was interrupted, or nobody is left."""
        import numpy as np

        from wavetank.training.failures.tiny_model import trained_alone

        parameters = [event.value for event in self.ends if event.kind == "returned"]
        recoveries = [each["recovery_s"] for each in self.done.values() if each["attempts"] > 1]
        found: dict[str, Any] = {
            "steps": len(self.done),
            "replicas_left": len(parameters),
            "ended": [{"replica": event.rank, "how": event.kind, "why": _end_in_words(event)}
                      for event in self.ends if event.kind != "returned"],
            "first_loss": self.done[min(self.done)]["loss"] if self.done else None,
            "last_loss": self.done[max(self.done)]["loss"] if self.done else None,
            "recovery_s": recoveries,
            "difference": None,
            "equal": None,
        }  # fmt: skip
        if compared:
            found["equal"] = False
        if compared and parameters:
            alone = trained_alone(self.steps, microbatches)
            found["difference"] = max(float(np.abs(each - alone).max()) for each in parameters)
            found["equal"] = found["difference"] <= _EQUAL
        return found


def _step_line(report: dict[str, Any], steps: int) -> str:
    members = report["members"]
    text = f"step {report['step'] + 1:>{len(str(steps))}}/{steps}  loss {report['loss']:.4f}  replicas {members}"
    if report["attempts"] > 1:
        text += f"  recovered in {show(report['recovery_s'], 's')}, summed {report['attempts']} times"
    return text


def _end_in_words(event: Event) -> str:
    if event.kind == "raised":
        return str(event.value)
    with contextlib.suppress(ValueError, TypeError):
        return signal.Signals(-event.value).name
    return f"code {event.value}"


def _say(found: dict[str, Any]) -> None:
    say_heading(f"{found['steps']} steps, {found['replicas_left']} replicas left")
    if found["first_loss"] is not None:
        say(f"loss        {found['first_loss']:.4f} at first, {found['last_loss']:.4f} at last")
    if found["recovery_s"]:
        say("recoveries  " + ", ".join(show(each, "s") for each in found["recovery_s"]))
    if found["equal"] is None:
        say_wrapped("Interrupted: nothing is compared.")
    elif found["difference"] is None:
        say_wrapped("No replica has finished: nothing is left to compare.")
    else:
        verdict = "the same" if found["equal"] else "NOT the same"
        say_wrapped(
            f"The parameters are {verdict} as after a run without failures: they differ by {found['difference']:.1e} "
            "at most."
        )
