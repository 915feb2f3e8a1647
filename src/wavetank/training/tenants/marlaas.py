"""All tenants share one base model: their answers are generated in one batch, and each task trains as soon as it can.

Two things that leave machines idle are taken away.  *Sharing*: an engine that waits for the tools of one tenant
generates for the others, and a batch of several adapters reads the base weights once.  *Asynchrony*: a tenant goes on
generating with an adapter that is at most ``s_max`` updates old while its trainer works, so that even one tenant alone
keeps both engines busy.  Neither waits for the slowest tenant.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.settings import check_ranges, setting
from wavetank.training.tenants.interface import Rules


@dataclass(frozen=True, kw_only=True)
class Marlaas:
    """Serves all tasks at once, mixed in batches, each at its own pace."""

    s_max: int = setting(1, unit="updates", says="How old an answer may be when it is trained on", low=0, high=64)
    adapters: int = setting(0, says="Distinct adapters that a batch may hold; 0: any number", low=0, high=100_000)

    def __post_init__(self) -> None:
        check_ranges(self)

    def rules(self) -> Rules:
        """Return who may generate and train when."""
        return Rules(s_max=self.s_max, adapters=self.adapters)
