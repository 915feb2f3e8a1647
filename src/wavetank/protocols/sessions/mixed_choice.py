"""Mixed choice for asynchronous sessions: a role may, at one point, either send or receive.

Both sides of a race may commit at once, so that for a while the roles stand on different sides.  One of the two, the
arbiter, decides by what it does first; every message carries a tag that says on which side its sender stood; a message
from the side that lost is dropped, and a role that went on along that side switches when it hears of the other.

Without the rules for a role that waits at a mix, the checker finds runs in which a third role of a loop waits for ever.
Whether an irreversible step can be undone is the user's word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wavetank.protocols.sessions.examples import example
from wavetank.protocols.sessions.global_types import GlobalType, global_type
from wavetank.protocols.sessions.machines import Machine
from wavetank.protocols.sessions.parser import parse_protocols
from wavetank.protocols.sessions.product import Exploration, explore
from wavetank.protocols.sessions.projection import project_all
from wavetank.protocols.sessions.race import DATA_OR_STOP, RacePlan
from wavetank.settings import setting


@dataclass(frozen=True, kw_only=True)
class MixedChoice:
    """Turns protocols with mixed choice into machines, and checks that they can always go on.

    References
    ----------
    arXiv 2602.23927
    """

    queue_bound: int = setting(2, unit="messages", says="Longest queue during the exploration", low=1, high=16)
    drop_stale: bool = setting(True, says="Whether messages of a side that was given up are dropped")
    reach_rule: bool = setting(True, says="Whether each role on a side of a mix must be informed of the other side")

    def machines(self, protocol: GlobalType | str) -> dict[str, Machine]:
        """Return the machine of every role of a protocol, given as a global type or as the text of a file.

        Raises
        ------
        BadFileError
        """
        if isinstance(protocol, str):
            protocol = global_type(parse_protocols(protocol))
        return project_all(protocol, reach=self.reach_rule)

    def explore(
        self,
        machines: Mapping[str, Machine],
        *,
        most_configurations: int = 5_000_000,
        out_of_budget: Callable[[int], str] | None = None,
    ) -> Exploration:
        """Explore all interleavings of a protocol's machines.

        See :func:`~wavetank.protocols.sessions.product.explore`.
        """
        return explore(
            machines,
            queue_bound=self.queue_bound,
            drop_stale=self.drop_stale,
            most_configurations=most_configurations,
            out_of_budget=out_of_budget,
        )

    def race(self) -> RacePlan:
        """Return the smallest race, data against stop, as roles that act when they wish to."""
        return RacePlan(
            machines=self.machines(example("race")),
            wishes={"p": ("q", "data"), "q": ("p", "stop")},
            branches=DATA_OR_STOP,
            drop_stale=self.drop_stale,
        )
