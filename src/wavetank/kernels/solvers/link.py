"""The link between two devices' memories, which counts every byte and can take the time of a slower one.

Differs from the source:

1. Modelled links are ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wavetank.errors import BadValueError


@dataclass(frozen=True, kw_only=True)
class LinkModel:
    """A link slower than this machine's memory: every copy takes at least ``latency_s + bytes / bytes_per_s``."""

    bytes_per_s: float = 16e9
    latency_s: float = 10e-6

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0 or not self.latency_s >= 0:
            raise BadValueError(
                "A link must have a positive bandwidth and a latency of at least 0.",
                given=f"{self.bytes_per_s} bytes/s, {self.latency_s} s",
                where="link",
            )

    def seconds(self, moved_bytes: float) -> float:
        """Return the least time of one copy."""
        return self.latency_s + moved_bytes / self.bytes_per_s


@dataclass
class Link:
    """Copies between the devices' memories, and counts.

    Attributes
    ----------
    moved_bytes, copies : dict
        By purpose: ``rows`` (the border moves), ``diagonal``, ``column``, ``direction``, ``product``, ``vectors``.
    """

    model: LinkModel | None = None
    moved_bytes: dict[str, int] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)

    def copy(self, target: Any, source: Any, purpose: str, receive: Callable[[Any, Any], None] | None = None) -> None:
        """Copy one array into another of the same shape; either may be numpy's or torch's.

        Parameters
        ----------
        target, source : arrays
        purpose : str
        receive : callable, optional
            Does the copy instead: that of the device that ``target`` belongs to, :meth:`Device.receive`.
        """
        start = time.perf_counter()
        if receive is not None:
            receive(target, source)
        elif isinstance(target, np.ndarray) and isinstance(source, np.ndarray):
            np.copyto(target, source)
        else:
            import torch

            to, of = (torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in (target, source))
            to.copy_(of)
        moved = int(source.nbytes)
        self.moved_bytes[purpose] = self.moved_bytes.get(purpose, 0) + moved
        self.copies[purpose] = self.copies.get(purpose, 0) + 1
        if self.model is not None:
            left = self.model.seconds(moved) - (time.perf_counter() - start)
            if left > 0:
                time.sleep(left)
