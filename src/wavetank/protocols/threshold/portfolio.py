"""Decides a counter system by whichever checker is first: no single method wins on all models.

The segment formula decides most questions within a second, so it is tried alone first.  What resists goes to two
processes, one for each core of a small machine: the formula goes on in one, the zero-counter and the interval checker
take turns in the other.  The first answer ends the race.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.check.deadline import Deadline
from wavetank.protocols.threshold.answers import Answer
from wavetank.protocols.threshold.preprocess import CounterSystem
from wavetank.protocols.threshold.race import race
from wavetank.protocols.threshold.smt import SmtReachability
from wavetank.settings import setting


@dataclass(frozen=True, kw_only=True)
class Portfolio:
    """The segment formula alone for a moment, then three checkers in two processes."""

    head_start_s: float = setting(
        3.0, unit="s", says="Time for which the segment formula runs alone", low=0, high=86400
    )
    memory_bytes: float = setting(2.0 * 2**30, unit="bytes", says="Memory of each of the two processes", low=2.0**27)

    def decide(self, system: CounterSystem, deadline: Deadline) -> Answer:
        """Return whether the system's stages can be met."""
        quick = SmtReachability().decide(system, deadline.at_most(self.head_start_s))
        if quick.outcome != "undecided" or deadline.left_s <= 0:
            return quick
        lanes: list[list[tuple[str, dict[str, float]]]] = [[("smt", {})], [("zcs", {}), ("acs", {})]]
        return race(system, lanes, deadline, int(self.memory_bytes))
