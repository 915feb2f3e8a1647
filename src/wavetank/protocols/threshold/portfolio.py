"""Decides a counter system by whichever checker is first: no single method wins on all models.

The segment formula decides most questions within a second, so it is tried alone first.  What resists goes to two
processes, one for each core of a small machine: the formula goes on in one, the zero-counter and the interval checker
take turns in the other.  The first answer ends the race.

Source: Eichler, Baumeister, Sakr, Kalateh Dowlati, Voelp, Jacobs, "TACO: A Toolsuite for the Verification of Threshold
Automata" (CAV 2026, arXiv 2605.06118): three checkers that complement one another.

Differs from the source:

1. The source lets its user choose a checker; here two processes race.
2. Questions are made much smaller first (see :mod:`wavetank.protocols.threshold.preprocess`), for all checkers alike.
3. Every counterexample is replayed in the explicit counter system of the file before it is shown.
4. z3 is the only solver.
5. Division is that of integers, rounded down, as in the programs that models are translated from.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.protocols.threshold.answers import Answer
from wavetank.protocols.threshold.clock import Deadline
from wavetank.protocols.threshold.preprocess import CounterSystem
from wavetank.protocols.threshold.race import race
from wavetank.protocols.threshold.smt import SmtReachability
from wavetank.settings import setting


@dataclass(frozen=True, kw_only=True)
class Portfolio:
    """The segment formula alone for a moment, then three checkers in two processes.

    Parameters
    ----------
    head_start_s : float
        Time for the segment formula alone.
    memory_bytes : float
        Memory of each of the two processes.
    """

    head_start_s: float = setting(3.0, unit="s", says="time for the segment formula alone", low=0, high=86400)
    memory_bytes: float = setting(2.0 * 2**30, unit="bytes", says="memory of each of the two processes", low=2.0**27)

    def decide(self, system: CounterSystem, deadline: Deadline) -> Answer:
        """Return whether the system's stages can be met.

        Parameters
        ----------
        system : CounterSystem
        deadline : Deadline
        """
        quick = SmtReachability().decide(system, deadline.at_most(self.head_start_s))
        if quick.outcome != "undecided" or deadline.left_s <= 0:
            return quick
        lanes: list[list[tuple[str, dict[str, float]]]] = [[("smt", {})], [("zcs", {}), ("acs", {})]]
        return race(system, lanes, deadline, int(self.memory_bytes))
