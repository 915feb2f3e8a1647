"""A race as it is written by hand: a timeout, and no tags.

Each racer does what it wishes when it wishes, and is done; when both act at once, one ends with the data sent, the
other with a stop sent, and neither message is ever taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.protocols.sessions.machines import Machine, State, Transition
from wavetank.protocols.sessions.race import DATA_OR_STOP, RacePlan


@dataclass(frozen=True, kw_only=True)
class UntaggedTimeouts:
    """A race of two hand-written machines without tags: two messages at most, and no agreement."""

    def race(self) -> RacePlan:
        """Return the race, data against stop, without tags."""
        end = State(transitions=(), ends=True)
        sends_data = Transition(sends=True, partner="q", label="data", payload=("int",), target=1)
        takes_stop = Transition(sends=False, partner="q", label="stop", payload=(), target=1)
        takes_data = Transition(sends=False, partner="p", label="data", payload=("int",), target=1)
        sends_stop = Transition(sends=True, partner="p", label="stop", payload=(), target=1)
        return RacePlan(
            machines={
                "p": Machine(protocol="Race", role="p", states=(State(transitions=(sends_data, takes_stop)), end)),
                "q": Machine(protocol="Race", role="q", states=(State(transitions=(takes_data, sends_stop)), end)),
            },
            wishes={"p": ("q", "data"), "q": ("p", "stop")},
            branches=DATA_OR_STOP,
        )
