"""A small job for tests, its times in round numbers."""

from __future__ import annotations

from typing import Any

from wavetank.platforms.links import Link
from wavetank.training.reshaping.interface import Job

FREE = Link(bytes_per_s=1e30, latency_s=0.0)


def job(**more: Any) -> Job:
    """Two replicas of two stages of groups of two; a layer takes a group 6 s for a micro-batch."""
    facts: dict[str, Any] = {
        "tensor": 2, "stages": 2, "replicas": 2, "layers": 8, "heads": 4, "microbatches": 8,
        "layer_ps": 12 * 10**12, "activation_bytes": 0.0, "layer_bytes": 0.0, "link": FREE, "network": FREE,
        "room": 2.0, "regroup_s": 5.0,
    }  # fmt: skip
    return Job(**{**facts, **more})
