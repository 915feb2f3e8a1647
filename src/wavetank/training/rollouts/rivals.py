"""What else gives rollouts more throughput: nothing, more GPUs, GPUs that come and go, or old weights."""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.settings import setting
from wavetank.training.rollouts.delta import COO, SIZED
from wavetank.training.rollouts.interface import ROUTERS, Arrangement, View


@dataclass(frozen=True, kw_only=True)
class FixedPool:
    """Dedicated GPUs alone: what everybody has, more of them, or weights that are old.

    Studies call ``arrange(view) -> Arrangement`` once a run, which says whose GPUs compute rollouts.
    """

    matched: bool = setting(False, says="Whether it has as much more GPU time as ROSE takes from serving")
    staleness: int = setting(0, unit="versions", says="How old weights may be that rollouts begin with", low=0, high=64)
    router: str = setting("affinity", says="Where a turn goes", choices=tuple(ROUTERS))

    def arrange(self, view: View) -> Arrangement:
        """Return the arrangement."""
        more = view.matched_gpus if self.matched else 0
        return Arrangement(more_gpus=more, staleness=self.staleness, router=self.router)


@dataclass(frozen=True, kw_only=True)
class SpotGpus:
    """Dedicated GPUs and cheap ones that start slowly and are taken away: as many as have ROSE's GPU time."""

    router: str = setting("affinity", says="Where a turn goes", choices=tuple(ROUTERS))
    format: str = setting(COO, says="Form in which new weights reach spot GPUs", choices=SIZED)

    def arrange(self, view: View) -> Arrangement:
        """Return the arrangement."""
        return Arrangement(spot_gpus=view.matched_gpus, router=self.router, format=self.format)
