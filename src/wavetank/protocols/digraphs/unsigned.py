"""What directed networks allow without signatures: the condition alone, to set the signed one against.

Source: D. Sakavalas, L. Tseng, N. Vaidya, "Asynchronous Byzantine Approximate Consensus in Directed Networks", PODC
2020; L. Tseng, N. Vaidya, "Fault-Tolerant Consensus in Directed Graphs", PODC 2015.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wavetank.settings import check_parameters, setting


@dataclass(frozen=True, kw_only=True)
class UnsignedCondition:
    """The 3-reach condition: necessary and sufficient for exact synchronous consensus without signatures.

    It is also the condition of asynchronous approximate consensus, with signatures or without.

    Parameters
    ----------
    faults : int
        Byzantine nodes that must be borne.
    """

    condition: ClassVar[str] = "reach-3"

    faults: int = setting(1, low=0, high=20, says="Byzantine nodes it must bear")

    def __post_init__(self) -> None:
        check_parameters(type(self), vars(self), where="system unsigned-condition")
