"""torchft as it is: replicas that form a quorum for every step, and leave out a step in which one of them dies."""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.settings import setting
from wavetank.training.failures.interface import SKIP_STEP, Loss


@dataclass(frozen=True, kw_only=True)
class Torchft:
    """Meta's library; the study starts its replicas and its lighthouse."""

    heartbeat_s: float = setting(
        5.0, unit="s", says="After which a replica that says nothing counts as dead; 5 s is torchft's default", low=0.1,
        high=3600,
    )  # fmt: skip

    def answer(self, loss: Loss) -> str:
        """Return that the step is thrown away.

        Parameters
        ----------
        loss : Loss
        """
        return SKIP_STEP
