"""One checker in a process of its own: reads a question as JSON from standard input, prints the answer as JSON."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

from wavetank.check.deadline import Deadline, OutOfTimeError
from wavetank.protocols.threshold.answers import Answer
from wavetank.protocols.threshold.counterexample import AbstractRun, concretise
from wavetank.protocols.threshold.parser import parse_automaton
from wavetank.protocols.threshold.preprocess import counter_system
from wavetank.protocols.threshold.properties import safety_properties
from wavetank.protocols.threshold.race import write_answer

if TYPE_CHECKING:
    from wavetank.protocols.threshold.answers import Method


def method_named(name: str, parameters: dict[str, Any]) -> Method:
    """Return a checker by its short name.

    Parameters
    ----------
    name : str
        ``smt``, ``acs`` or ``zcs``.
    parameters : dict
    """
    if name == "acs":
        from wavetank.protocols.threshold.acs import IntervalBackward

        return IntervalBackward(**parameters)
    if name == "zcs":
        from wavetank.protocols.threshold.zero_counters import ZeroCounters

        return ZeroCounters(**parameters)
    from wavetank.protocols.threshold.smt import SmtReachability

    return SmtReachability(**parameters)


def limit_memory(memory_bytes: int) -> None:
    """Let the system refuse this process more memory than that, where the system can."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def answer_to(asked: dict[str, Any]) -> str:
    """Return the answer to a question, both as described in :mod:`wavetank.protocols.threshold.race`."""
    clock = Deadline(asked["seconds"])
    automaton = parse_automaton(asked["automaton"])
    queries = {item.name: item.queries for item in safety_properties(automaton)}
    try:
        system = counter_system(automaton, queries[asked["property"]][asked["query"]], clock)
        found = method_named(asked["method"], asked["parameters"]).decide(system, clock)
        if isinstance(found.run, AbstractRun):
            found = Answer(found.outcome, found.says, concretise(system, found.run), found.by)
    except OutOfTimeError as reason:
        found = Answer("undecided", str(reason), by=asked["method"])
    except MemoryError:
        found = Answer("undecided", "the memory is used up", by=asked["method"])
    return write_answer(automaton, found)


def main() -> None:
    """Answer the question on standard input."""
    asked = json.loads(sys.stdin.buffer.read())
    limit_memory(asked["memory_bytes"])
    sys.stdout.write(answer_to(asked))


if __name__ == "__main__":
    main()
