"""Partial recovery of expert-parallel serving: who takes part can be changed, and only what a fault took is mended.

Survivors agree on a new mask, map experts to live replicas, load those that none has from the cheapest source, and go
on in the same buffers with the same tables.  A replacement loads its weights beside them and is taken in between two
steps.  Its parts are :mod:`~wavetank.serving.rank_failures.agreement`, :mod:`~wavetank.serving.rank_failures.plan` and,
among real processes, :mod:`~wavetank.serving.rank_failures.rank_program`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wavetank.serving.rank_failures.modelled import Downtime, WideInstance
from wavetank.settings import setting


@dataclass(frozen=True, kw_only=True)
class PartialRecovery:
    """Repair of the mask and of missing experts alone."""

    repair: ClassVar[str] = "experts"
    build: ClassVar[str] = "table"

    replicas: int = setting(0, says="Replicas of each expert; 0: as many as the study gives everybody", low=0, high=16)
    host: bool = setting(True, says="Whether the hosts' memory has all weights, too")

    def downtime(self, instance: WideInstance) -> Downtime:
        """Return what a fault of a wide instance takes, by the model of its parts.

        Parameters
        ----------
        instance : WideInstance
        """
        took_s = instance.detect_s + instance.agree_s + instance.coverage_s(self.replicas, host=self.host)
        return instance.replaced(took_s, instance.refresh_s, ready_s=instance.replacement_s(host=self.host))
