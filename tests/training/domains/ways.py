"""A step of any way on given cuts, beside that of one process."""

from __future__ import annotations

from typing import Any

from wavetank.live.ranks import run_ranks
from wavetank.training.domains.fields import CHANNELS, sample
from wavetank.training.domains.run import described, run_ways
from wavetank.training.domains.study import error, reference

SHAPE = {"fields": CHANNELS, "channels": 4, "heads": 2, "seed": 5}


def found(way: Any, sizes: tuple[int, ...], seed: int = 2) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What one process computes, and what each of several found."""
    given, aim = sample("waves", seed, sum(sizes), 12, 4)
    arguments = {
        "systems": {"way": described(way)}, "network": SHAPE, "sample": given, "target": aim,
        "cuts": {str(len(sizes)): list(sizes)}, "turns": 1, "memory_rows": 8,
    }  # fmt: skip
    ranks = run_ranks(run_ways, len(sizes), arguments=arguments, timeout_s=300.0)
    return reference(SHAPE, given, aim), [rank[str(len(sizes))]["way"] for rank in ranks]


def outcome(way: Any, sizes: tuple[int, ...]) -> tuple[float, list[dict[str, Any]]]:
    """The largest difference from one process, and what each process found."""
    wanted, parts = found(way, sizes)
    return error(parts, wanted), parts
