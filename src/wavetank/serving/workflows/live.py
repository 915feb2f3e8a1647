"""Applications on real processes, one per device, driven by the same book-keeping and schedulers as the simulator.

A process keeps real least-recently-used caches and takes real time; what it reports is held against what the
book-keeping expects, so that a scheduler never decides on a state that is not there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.processes import ChildProcess, python_module
from wavetank.serving.workflows.dispatcher import Begun, Dispatcher
from wavetank.serving.workflows.interface import Application, Platform, StageKey
from wavetank.serving.workflows.simulate import Executed, Run

_PATIENCE_S = 30.0
# 65 GB of weights are 650 kB here.
_MEMORY_SCALE = 1e-5


class _Process:
    """A worker process with a thread that reads its answers."""

    def __init__(self, number: int, platform: Platform, speed: float, answers: queue.Queue[tuple[int, Any]]) -> None:
        device = platform.devices[number]
        self.name = device.name
        self._child = ChildProcess(
            python_module("wavetank.serving.workflows.worker"), name=f"the process of {device.name}", pipes=True
        )
        self._thread = threading.Thread(target=self._read, args=(number, answers), daemon=True)
        self._thread.start()
        self.send(
            {
                "device": {**dataclasses.asdict(device)}, "model_bytes": dict(platform.model_bytes),
                "token_bytes": dict(platform.token_bytes), "memory_scale": _MEMORY_SCALE, "speed": speed,
            }
        )  # fmt: skip

    def send(self, message: dict[str, Any]) -> None:
        try:
            self._child.stdin.write(json.dumps(message).encode() + b"\n")
            self._child.stdin.flush()
        except OSError as error:
            raise WavetankError(f"The process of {self.name} has ended.", given=self._child.output()[-2000:]) from error

    def said(self) -> str:
        return self._child.output()[-2000:].strip()

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._child.stop()

    def _read(self, number: int, answers: queue.Queue[tuple[int, Any]]) -> None:
        try:
            for line in self._child.stdout:
                answers.put((number, json.loads(line)))
        except (OSError, ValueError):
            pass
        answers.put((number, None))


def run_live(applications: Sequence[Application], dispatcher: Dispatcher, *, speed: float = 10.0) -> Run:
    """Run applications on processes to their end.

    Parameters
    ----------
    applications : sequence of Application
        In order of arrival.
    dispatcher : Dispatcher
        With the platform, whose devices become processes, and the scheduler.
    speed : float
        Seconds of the applications per second of this machine.

    Returns
    -------
    Run
        Times in seconds of the applications.

    Raises
    ------
    BadValueError
        If there is no application, arrivals are out of order or the speed is not above 0.
    WavetankError
        If a process ends or takes far too long, or keeps something else than the book-keeping expects.
    """
    arrivals = [each.arrival_s for each in applications]
    if not arrivals or arrivals != sorted(arrivals) or not 0 < speed < float("inf"):
        raise BadValueError("Applications are needed, in order of arrival, and a speed above 0.",
                            given=(len(arrivals), speed))  # fmt: skip
    answers: queue.Queue[tuple[int, Any]] = queue.Queue()
    processes: list[_Process] = []
    try:
        for number in range(len(dispatcher.platform.devices)):
            processes.append(_Process(number, dispatcher.platform, speed, answers))
        for _ in processes:
            _answer(answers, processes, time.monotonic() + 2 * _PATIENCE_S)
        return _drive(applications, dispatcher, speed, processes, answers)
    finally:
        for each in processes:
            each.stop()


def _drive(
    applications: Sequence[Application], books: Dispatcher, speed: float, processes: Sequence[_Process],
    answers: queue.Queue[tuple[int, Any]],
) -> Run:  # fmt: skip
    began = time.monotonic()
    arrivals = [each.arrival_s for each in applications]
    missing: dict[StageKey, int] = {}
    at_work: dict[int, tuple[Begun, int]] = {}
    started: dict[StageKey, float] = {}
    done: list[Executed] = []
    finish = [0.0] * len(arrivals)
    arrived, loading = 0, 0.0
    while arrived < len(arrivals) or at_work or books.waiting:
        now = (time.monotonic() - began) * speed
        while arrived < len(arrivals) and arrivals[arrived] <= now:
            books.arrive(applications[arrived])
            arrived += 1
        for begun in books.decide(now) if books.waiting else ():
            started[begun.key], missing[begun.key] = now, len(begun.devices)
            for place, device in enumerate(begun.devices):
                at_work[device] = begun, place
                processes[device].send(_task(books, begun, place))
        latest = max((each.expected_end_s for each, _ in at_work.values()), default=now)
        stop = began + 10 * max(latest, now) / speed + _PATIENCE_S
        if arrived < len(arrivals):
            stop = min(stop, began + arrivals[arrived] / speed)
        found = _answer(answers, processes, stop, late=arrived == len(arrivals))
        while found is not None:
            device, answer = found
            begun, place = at_work.pop(device)
            _compare(books, begun, place, answer)
            loading += answer["load_s"]
            missing[begun.key] -= 1
            if not missing[begun.key]:
                end = (time.monotonic() - began) * speed
                books.finish(begun.key)
                finish[begun.key[0]] = end
                done.append(Executed.of(begun, started[begun.key], end))
            # What ended meanwhile is taken in before the next decision.
            found = _answer(answers, processes, 0.0, late=False)
    return Run(
        stages=tuple(sorted(done, key=lambda each: each.start_s)), finish_s=tuple(finish), arrival_s=tuple(arrivals),
        decision_s=tuple(books.decision_s), load_s=loading,
    )  # fmt: skip


def _task(books: Dispatcher, begun: Begun, place: int) -> dict[str, Any]:
    stage = books.times(begun.key[0]).application.stages[begun.key[1]]
    return {
        "stage": {**dataclasses.asdict(stage), "devices": sorted(stage.devices)},
        "transfer_s": begun.transfer_s[place], "share": begun.shares[place],
        "merge_s": books.platform.merge_s * (len(begun.devices) - 1),
    }  # fmt: skip


def _compare(books: Dispatcher, begun: Begun, place: int, answer: dict[str, Any]) -> None:
    """Raise where a process found or keeps something else than the book-keeping expects of it."""
    device, used = begun.devices[place], begun.used[place]
    shown = books.caches[device].view(0.0, True)
    expected = (
        used.loaded, used.reused_tokens, list(used.evicted), list(shown.models), [list(each) for each in shown.prefixes]
    )  # fmt: skip
    found = tuple(answer[name] for name in ("loaded", "reused_tokens", "evicted", "models", "prefixes"))
    if found != expected:
        raise WavetankError("A process keeps something else than the book-keeping expects.", given=found,
                            allowed=str(expected), where=books.platform.devices[device].name)  # fmt: skip


def _answer(
    answers: queue.Queue[tuple[int, Any]], processes: Sequence[_Process], stop: float, *, late: bool = True
) -> tuple[int, Any] | None:
    """Return the next answer, None when there is none until a time that is not too late."""
    try:
        wait = stop - time.monotonic()
        number, answer = answers.get(timeout=wait) if wait > 0 else answers.get_nowait()
    except queue.Empty:
        if late:
            names = ", ".join(each.name for each in processes)
            raise WavetankError("The processes do not answer in time.", given=names) from None
        return None
    if answer is None:
        ended = processes[number]
        raise WavetankError(f"The process of {ended.name} has ended.", given=ended.said() or None)
    return number, answer
