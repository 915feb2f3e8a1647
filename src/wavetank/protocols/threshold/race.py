"""Runs checkers of one question side by side in processes of their own; the first that decides wins.

A process can be killed at any moment and its memory limited by the system, whatever the solver inside is doing.  The
question travels as the text of the automaton, the answer as JSON: processes share nothing else.
"""

from __future__ import annotations

import contextlib
import json
import selectors
from collections.abc import Mapping, Sequence
from typing import IO, Any

from wavetank.check.deadline import Deadline
from wavetank.live.processes import ChildProcess, python_module
from wavetank.protocols.threshold.answers import Answer
from wavetank.protocols.threshold.automaton import ThresholdAutomaton
from wavetank.protocols.threshold.counterexample import Counterexample, Step
from wavetank.protocols.threshold.preprocess import CounterSystem
from wavetank.protocols.threshold.properties import safety_properties
from wavetank.protocols.threshold.writer import write_automaton

_GRACE_S = 0.5


def race(
    system: CounterSystem,
    lanes: Sequence[Sequence[tuple[str, Mapping[str, Any]]]],
    deadline: Deadline,
    memory_bytes: int,
) -> Answer:
    """Return the first answer that decides.

    Parameters
    ----------
    system : CounterSystem
        Its automaton must hold the specification that its query comes from.
    lanes : sequence of sequences of (str, mapping)
        Each lane is a process at a time: methods (``smt``, ``acs``, ``zcs``) with their parameters, one after the
        other.
    deadline : Deadline
    memory_bytes : int
        Of each process.
    """
    place = _place_of(system)
    if place is None:
        return Answer("undecided", "the question belongs to no specification of its automaton")
    text = write_automaton(system.automaton)
    waiting = [list(lane) for lane in lanes]
    running: dict[IO[bytes], tuple[ChildProcess, int, str]] = {}
    reasons: list[str] = []
    with selectors.DefaultSelector() as ready:

        def start(lane: int) -> None:
            if not waiting[lane] or deadline.left_s <= 0:
                return
            method, parameters = waiting[lane].pop(0)
            # What is left of a lane's time is shared by the methods still to come.
            share = deadline.left_s / (1 + len(waiting[lane]))
            asked = {
                "automaton": text,
                "property": place[0],
                "query": place[1],
                "method": method,
                "parameters": dict(parameters),
                "seconds": share,
                "memory_bytes": memory_bytes,
            }
            process = ChildProcess(python_module("wavetank.protocols.threshold.worker"), name=method, pipes=True)
            running[process.stdout] = (process, lane, method)
            # A process that dies at once prints nothing: that is noticed below.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(asked).encode())
                process.stdin.close()
            ready.register(process.stdout, selectors.EVENT_READ)

        try:
            for lane in range(len(waiting)):
                start(lane)
            while running and deadline.left_s > -_GRACE_S:
                for key, _ in ready.select(timeout=max(0.0, deadline.left_s + _GRACE_S)):
                    stream: Any = key.fileobj
                    printed = stream.read()
                    ready.unregister(stream)
                    process, lane, method = running.pop(stream)
                    process.stop()
                    answer = read_answer(system.automaton, printed, method)
                    if answer.outcome != "undecided":
                        return answer
                    reasons.append(f"{method}: {answer.says}")
                    start(lane)
        finally:
            for process, _, _ in running.values():
                process.stop(0)
    reasons += [f"{method}: the time is up" for _, _, method in running.values()]
    return Answer("undecided", "; ".join(reasons) or "the time is up")


def _place_of(system: CounterSystem) -> tuple[str, int] | None:
    for item in safety_properties(system.automaton):
        if system.query in item.queries:
            return item.name, item.queries.index(system.query)
    return None


def write_answer(automaton: ThresholdAutomaton, answer: Answer) -> str:
    """Return an answer as JSON; its run must be a counterexample."""
    run = None
    if isinstance(answer.run, Counterexample):
        number = {id(rule): index for index, rule in enumerate(automaton.rules)}
        run = {
            "parameters": dict(answer.run.parameters),
            "initial": dict(answer.run.initial),
            "steps": [[number[id(step.rule)], step.times] for step in answer.run.steps],
        }
    return json.dumps({"outcome": answer.outcome, "says": answer.says, "by": answer.by, "run": run})


def read_answer(automaton: ThresholdAutomaton, printed: bytes, method: str) -> Answer:
    """Return the answer that a process printed; "undecided" when it died before it could."""
    if not printed.strip():
        return Answer("undecided", "it ended without an answer, most likely out of memory", by=method)
    found = json.loads(printed)
    run = found["run"]
    counterexample = None
    if run is not None:
        steps = tuple(Step(automaton.rules[index], times) for index, times in run["steps"])
        counterexample = Counterexample(run["parameters"], run["initial"], steps)
    return Answer(found["outcome"], found["says"], counterexample, found["by"])
