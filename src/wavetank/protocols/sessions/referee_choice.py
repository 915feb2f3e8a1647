"""Directed choice with a referee: both racers send their wishes to a third role, which announces what happens.

What plain multiparty session types offer for a race: no role may wait for whichever of two comes first, so that the
referee hears both and then decides; it lets the one whose message reached it first win.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.protocols.sessions.global_types import global_type
from wavetank.protocols.sessions.parser import parse_protocols
from wavetank.protocols.sessions.projection import project_all
from wavetank.protocols.sessions.race import RacePlan

PROTOCOL = """\
global protocol RefereedRace(role p, role q, role referee) {
  data(int) from p to referee;
  stop() from q to referee;
  choice at referee {
    accepted() from referee to p;
    data(int) from referee to q;
  } or {
    refused() from referee to p;
    stopped() from referee to q;
  }
}
"""


@dataclass(frozen=True, kw_only=True)
class RefereeChoice:
    """A race decided by a third role, in directed choice alone: four messages, two delays."""

    def race(self) -> RacePlan:
        """Return the race, data against stop, with a referee."""
        return RacePlan(
            machines=project_all(global_type(parse_protocols(PROTOCOL))),
            wishes={"p": ("referee", "data"), "q": ("referee", "stop")},
            branches={
                ("p", "taken", "accepted"): "data",
                ("p", "taken", "refused"): "stop",
                ("q", "taken", "data"): "data",
                ("q", "taken", "stopped"): "stop",
            },
            verdict={
                "data": (("p", "accepted"), ("q", "data")),
                "stop": (("p", "refused"), ("q", "stopped")),
            },
        )
