"""What else gives rollouts more throughput: nothing, more GPUs, GPUs that come and go, old weights, or fewer GPUs that
serve."""

from __future__ import annotations

import math
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


@dataclass(frozen=True, kw_only=True)
class PackedUsers:
    """Dedicated GPUs, and all serving GPUs but the fewest that users need on average: no two models share one."""

    share: float = setting(0.3, says="Most load of a GPU that serves, of saturation", low=0.001, high=1.0)
    router: str = setting("affinity", says="Where a turn goes", choices=tuple(ROUTERS))
    format: str = setting(COO, says="Form in which new weights reach GPUs that served", choices=SIZED)

    def arrange(self, view: View) -> Arrangement:
        """Return the arrangement; one GPU serves at least."""
        serve = max(1, math.ceil(view.load * view.serving_gpus / self.share))
        return Arrangement(taken_gpus=max(0, view.serving_gpus - serve), router=self.router, format=self.format)
