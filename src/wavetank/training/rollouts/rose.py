"""ROSE: rollouts use what serving GPUs leave over, as long as every request keeps its slack.

A serving GPU has long been paid for, and answers its users many times faster than they were promised: between two
tokens of a request there is time for several steps of another model.  How much is known for every request, since it
was promised a time to the first token and one for each further token.  A step of rollouts is let in only while the
least of these slacks is longer than the step; when a burst of users comes, the slack is gone and rollouts wait, or go
to other GPUs after two seconds.

Three parts decide, and each has rivals of its own: the governor (when), the router (which turn where), and the form in
which new weights travel (how soon the GPUs take part).
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.settings import setting
from wavetank.training.rollouts.delta import COO, SIZED
from wavetank.training.rollouts.interface import GOVERNORS, ROUTERS, Arrangement, View


@dataclass(frozen=True, kw_only=True)
class Rose:
    """Rollouts on dedicated GPUs and, as the governor lets them, on those that serve users."""

    governor: str = setting("slack", says="When a serving GPU computes rollouts", choices=tuple(GOVERNORS))
    router: str = setting("affinity", says="Where a turn goes", choices=tuple(ROUTERS))
    margin: float = setting(0.1, says="Share of the service level that is kept free", low=0.0, high=0.99)
    format: str = setting(COO, says="Form in which new weights reach serving GPUs", choices=SIZED)

    def arrange(self, view: View) -> Arrangement:
        """Return the arrangement: no GPUs of its own beside those that everybody has."""
        return Arrangement(governor=self.governor, router=self.router, margin=self.margin, format=self.format)
