"""Mixed choice for asynchronous sessions: a role may, at one point, either send or receive.

Both sides of a race may commit at once, so that for a while the roles stand on different sides.  One of the two, the
arbiter, decides by what it does first; every message carries a tag that says on which side its sender stood; a message
from the side that lost is dropped, and whoever went on along that side switches when it hears of the other.

Source: L. Bocchi, R. Hu, A. L. Voinea, S. Thompson, "Mixed Choice in Asynchronous Multiparty Session Types",
arXiv 2602.23927, 2026.

Differs from the source:

1. The syntax, ``mix { .. } or interrupt by q { .. }``, and the tags are ours; the paper's could not be read in detail.
2. A mix is a race of two roles; its left side begins with a message to the arbiter, its right side with one from it.
3. Progress is not proved but checked, for each protocol, over all interleavings within a bound on queues.
4. Disjoint labels are asked for only where a label tells a role which side was taken; elsewhere the tag does.
5. Tags list every interrupt of a session (turns without one are counted), so they grow with the number of interrupts.
6. Irreversible steps are marked by an annotation, ``@"irreversible"``; whether one can be undone is the user's word.
7. No delegation; nested protocols (nuScr's extension) are checked one by one, calls counting as invitations.
8. A role that waits at a mix takes no message from beyond it, and drops one that another waiting message shows to be
   stale; without both, the checker finds runs in which a third role of a loop waits for ever.
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
from wavetank.protocols.sessions.wellformed import Rules
from wavetank.settings import setting


@dataclass(frozen=True, kw_only=True)
class MixedChoice:
    """Turns protocols with mixed choice into machines, and checks that they can always go on.

    Parameters
    ----------
    queue_bound : int
        Messages under way from one role to another while exploring.
    drop_stale : bool
        Whether messages of a side that was given up are dropped.
    reach_rule : bool
        Whether rule (a), everyone is told of an interrupt, is asked for.

    References
    ----------
    arXiv 2602.23927
    """

    queue_bound: int = setting(2, unit="messages", says="length of queues while exploring", low=1, high=16)
    drop_stale: bool = setting(True, says="drop messages of a side that was given up")
    reach_rule: bool = setting(True, says="ask that everyone on a side of a mix is told of the other")

    def rules(self) -> Rules:
        """Return the rules a protocol must keep."""
        return Rules(reach=self.reach_rule)

    def machines(self, protocol: GlobalType | str) -> dict[str, Machine]:
        """Return the machine of every role of a protocol, given as a global type or as the text of a file.

        Raises
        ------
        BadFileError
        """
        if isinstance(protocol, str):
            protocol = global_type(parse_protocols(protocol))
        return project_all(protocol, self.rules())

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
