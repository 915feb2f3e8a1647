"""The cluster file of a recorded run: how its devices are joined, and how the model is shared out among them.

``cluster_config.json`` lies beside the requests where a run was made for LLMServingSim.  What a link reaches is known
there alone: ``link_bw`` in GiB/s and ``link_latency`` in ns, which every hop of a ring takes.

Source: J. Cho et al., "LLMServingSim 2.0", ISPASS 2026, reference of the cluster configuration.

Differs from the source:

1. Every instance must be like every other, and none may compute prompts or tokens alone: only such runs are simulated.
2. Of several link figures, one for each dimension of the network, the slowest counts.
3. ``collective_links``, which gives single collectives a link of their own, is not read; the run says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavetank.errors import BadFileError, BadValueError
from wavetank.platforms.links import Link

FILE = "cluster_config.json"
_LARGEST_FILE_BYTES = 16 * 2**20
_LARGEST_DEGREE = 100_000
# Beyond these a figure is in another unit: bytes or bits a second, seconds or microseconds.
_FASTEST_GIB_PER_S, _SHORTEST_NS, _LONGEST_NS = 100_000, 1, 10**9
_ALIKE = ("model_name", "hardware", "num_npus", "tp_size", "pp_size", "ep_size", "dp_group")


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """What a cluster file says.

    Attributes
    ----------
    workers : int
        Engines that share the requests.
    tensor_parallel, pipeline_parallel : int
        Of each engine.
    expert_parallel : int
        Engines that share the experts; 1 when each holds all.
    link : Link or None
        None where the file does not say.
    memory_share : float or None
        Share of a device's memory that an engine may use; None where the file does not say.
    unread : tuple of str
        Keys that change the figures and are not read.
    """

    workers: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    link: Link | None = None
    memory_share: float | None = None
    unread: tuple[str, ...] = ()


def read_cluster_config(file: str | Path) -> ClusterConfig:
    """Read a cluster file.

    Parameters
    ----------
    file : str or Path
        ``cluster_config.json``.

    Raises
    ------
    BadFileError
        If the file is damaged, or describes what is not simulated; the error names the key.
    """
    file = Path(file)
    config = _loaded(file)
    instances = [instance for node in _objects(config, "nodes", file) for instance in _objects(node, "instances", file)]
    first = instances[0]
    for each in instances:
        other = next((key for key in _ALIKE if each.get(key) != first.get(key)), None)
        if other is not None:
            raise BadFileError(
                "The instances of a recorded run must be alike.", given=f"{other}: {first.get(other)}, "
                f"{each.get(other)}", where=str(file),
            )  # fmt: skip
        if each.get("pd_type") is not None:
            raise BadFileError(
                "Prompts and tokens on devices of their own are not simulated for recorded runs.",
                given=f"pd_type {each['pd_type']!r}", allowed="null", where=str(file),
            )  # fmt: skip
    pipeline_parallel = _degree(first, "pp_size", 1, file)
    devices = _degree(first, "num_npus", 0, file)
    tensor_parallel = _degree(first, "tp_size", max(devices // pipeline_parallel, 1), file)
    memory = first.get("npu_mem")
    return ClusterConfig(
        workers=len(instances),
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        # Of the whole group; each engine's own devices hold a part of its experts anyway.
        expert_parallel=max(_degree(first, "ep_size", 1, file) // tensor_parallel, 1),
        link=_link(config, file),
        memory_share=_share(memory if isinstance(memory, dict) else {}, file),
        unread=tuple(key for key in ("collective_links",) if config.get(key)),
    )


def _loaded(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            content = stream.read(_LARGEST_FILE_BYTES + 1)
        if len(content) > _LARGEST_FILE_BYTES:
            raise BadFileError(
                "The cluster file is too large.", given=str(file), allowed=f"{_LARGEST_FILE_BYTES} bytes"
            )
        config = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise BadFileError(f"{FILE} cannot be read: {error}.", given=str(file)) from error
    if not isinstance(config, dict):
        raise BadFileError(f"{FILE} is an object.", given=type(config).__name__, where=str(file))
    return config


def _objects(table: Mapping[str, Any], name: str, file: Path) -> list[dict[str, Any]]:
    values = table.get(name)
    if not isinstance(values, list) or not values or not all(isinstance(value, dict) for value in values):
        raise BadFileError(
            f"{name} is a list of objects.", given=type(values).__name__ if values else values,
            allowed="one object or more", where=str(file),
        )  # fmt: skip
    return values


def _degree(instance: Mapping[str, Any], name: str, default: int, file: Path) -> int:
    value = instance.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST_DEGREE:
        raise BadFileError(
            f"{name} is a whole number of devices.", given=value, allowed=f"1 to {_LARGEST_DEGREE:,}", where=str(file)
        )
    return value


def _numbers(table: Mapping[str, Any], name: str, file: Path) -> list[float]:
    """Numbers of a key that holds one or a list of them; none where it is absent."""
    value = table.get(name)
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    for each in values:
        if isinstance(each, bool) or not isinstance(each, int | float) or not 0 <= each < math.inf:
            raise BadFileError(f"{name} is a number, not negative.", given=each, where=str(file))
    return [float(each) for each in values]


def _link(config: Mapping[str, Any], file: Path) -> Link | None:
    speeds, delays = _numbers(config, "link_bw", file), _numbers(config, "link_latency", file)
    if speeds and max(speeds) > _FASTEST_GIB_PER_S:
        raise BadFileError(
            "link_bw is in GiB/s.", given=max(speeds), allowed=f"at most {_FASTEST_GIB_PER_S:,}", where=str(file)
        )
    if any(0 < delay < _SHORTEST_NS or delay > _LONGEST_NS for delay in delays):
        raise BadFileError(
            "link_latency is in ns.", given=delays, allowed=f"0, or {_SHORTEST_NS} to {_LONGEST_NS:,}", where=str(file)
        )
    if not speeds or not delays:
        return None
    try:
        return Link(bytes_per_s=min(speeds) * 2**30, latency_s=max(delays) / 1e9, per_hop=True)
    except BadValueError as error:
        raise BadFileError("link_bw is a bandwidth in GiB/s.", given=min(speeds), allowed="more than 0",
                           where=str(file)) from error  # fmt: skip


def _share(memory: Mapping[str, Any], file: Path) -> float | None:
    (share, *more) = [*_numbers(memory, "mem_util", file), None]
    if share is not None and (len(more) != 1 or not 0 < share <= 1):
        raise BadFileError(
            "mem_util is a share of a device's memory.", given=memory["mem_util"], allowed="more than 0, at most 1",
            where=str(file),
        )  # fmt: skip
    return share
