"""Read the few figures a router needs from a vLLM server's metrics page.

The page is Prometheus text of a hundred kilobytes and more, read several times per second: the lines that matter are
found by a search for their names, the rest is never looked at.  Whatever does not parse is as if it were not there.

Source: vLLM's metrics (``vllm:num_requests_running``, ``vllm:num_requests_waiting``, ``vllm:kv_cache_usage_perc``,
before that ``vllm:gpu_cache_usage_perc``, ``vllm:cache_config_info``); the Prometheus text exposition format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

_LABEL = {name: re.compile(rb'[{,]\s*%s="(\d{1,15})"' % name) for name in (b"block_size", b"num_gpu_blocks")}
_MOST = 1e12


class EngineLoad(NamedTuple):
    """What a server says about itself, summed over its engines."""

    running: int  # requests in the batch
    waiting: int
    kv_usage: float  # share of the KV cache in use, mean over engines
    kv_capacity_tokens: float  # 0 where the page does not say


def read_load(page: bytes) -> EngineLoad | None:
    """Return the load that a metrics page reports; None where it is no page of vLLM's.

    Parameters
    ----------
    page : bytes
        Prometheus text; anything else gives None.
    """
    running = [value for _, value in _samples(page, b"vllm:num_requests_running")]
    waiting = [value for _, value in _samples(page, b"vllm:num_requests_waiting")]
    usage = [value for _, value in _samples(page, b"vllm:kv_cache_usage_perc")]
    if not usage:
        usage = [value for _, value in _samples(page, b"vllm:gpu_cache_usage_perc")]
    if not running or not waiting or not usage:
        return None
    capacity = 0.0
    for labels, _ in _samples(page, b"vllm:cache_config_info"):
        sizes = [pattern.search(labels) for pattern in _LABEL.values()]
        if sizes[0] is not None and sizes[1] is not None:
            capacity += float(sizes[0][1]) * float(sizes[1][1])
    return EngineLoad(
        running=round(sum(running)),
        waiting=round(sum(waiting)),
        kv_usage=min(sum(usage) / len(usage), 1.0),
        kv_capacity_tokens=capacity if capacity <= _MOST else 0.0,
    )


def _samples(page: bytes, name: bytes) -> Iterator[tuple[bytes, float]]:
    """Give the labels and the value of every sample of one metric; values that are no count are left out."""
    at = 0
    while True:
        at = page.find(name, at)
        if at < 0:
            return
        end = page.find(b"\n", at)
        line = page[at + len(name) : end if end >= 0 else len(page)]
        begins = at == 0 or page[at - 1] == 10
        at += len(name)
        if not begins or line[:1] not in (b"{", b" ", b"\t"):
            continue
        labels, brace, rest = line.rpartition(b"}")
        fields = (rest if brace else line).split()
        try:
            value = float(fields[0])
        except (IndexError, ValueError):
            continue
        if math.isfinite(value) and 0.0 <= value <= _MOST:
            yield labels, value
