"""What is done otherwise about a rank that dies: everything anew, nothing, or the group of ranks anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wavetank.serving.rank_failures.modelled import Downtime, WideInstance
from wavetank.settings import setting


@dataclass(frozen=True, kw_only=True)
class FullRestart:
    """All processes end, and all are started again from the disk."""

    repair: ClassVar[str] = "restart"
    # Who takes part is fixed when it starts, and nobody looks for faults.
    build: ClassVar[str] = "fixed"
    host: ClassVar[bool] = False

    replicas: int = setting(0, says="Replicas of each expert; 0: as many as the study gives everybody", low=0, high=16)

    def downtime(self, instance: WideInstance) -> Downtime:
        """Return what a fault of a wide instance takes, by the model of its parts.

        Parameters
        ----------
        instance : WideInstance
        """
        took_s = instance.detect_s + instance.start_s + instance.load_all_s + instance.group_s + instance.capture_s
        return Downtime(took_s, 0.0, took_s)


@dataclass(frozen=True, kw_only=True)
class MaskOnly:
    """Survivors leave out who is dead; tokens of experts that nobody has any more do without them."""

    repair: ClassVar[str] = "nothing"
    build: ClassVar[str] = "table"
    host: ClassVar[bool] = True

    replicas: int = setting(0, says="Replicas of each expert; 0: as many as the study gives everybody", low=0, high=16)

    def downtime(self, instance: WideInstance) -> Downtime:
        """Return what a fault of a wide instance takes, by the model of its parts.

        Parameters
        ----------
        instance : WideInstance
        """
        took_s = instance.detect_s + instance.agree_s
        return instance.replaced(took_s, instance.refresh_s, ready_s=instance.replacement_s(host=True))


@dataclass(frozen=True, kw_only=True)
class GroupRestart:
    """Survivors keep their processes and weights, wait for a replacement, and make the group of all ranks anew."""

    repair: ClassVar[str] = "group"
    build: ClassVar[str] = "constant"
    host: ClassVar[bool] = True

    replicas: int = setting(0, says="Replicas of each expert; 0: as many as the study gives everybody", low=0, high=16)

    def downtime(self, instance: WideInstance) -> Downtime:
        """Return what a fault of a wide instance takes, by the model of its parts.

        Parameters
        ----------
        instance : WideInstance
        """
        # All graphs hold the old group; the replacement captures its own at the same time.
        took_s = (instance.detect_s + instance.start_s + instance.load_one_s(host=True) + instance.group_s
                  + instance.capture_s)  # fmt: skip
        return Downtime(took_s, 0.0, took_s)
