"""Read the few figures a router needs from a model server's metrics page: vLLM's, SGLang's or llama.cpp's.

The page is Prometheus text of a hundred kilobytes and more, read several times per second: the lines that matter are
found by a search for their names, the rest is never looked at.  Whatever does not parse is as if it were not there.

==========  ================================  ================================  ================================
figure      vLLM                              SGLang                            llama.cpp
==========  ================================  ================================  ================================
running     ``vllm:num_requests_running``     ``sglang:num_running_reqs``       ``llamacpp:requests_processing``
waiting     ``vllm:num_requests_waiting``     ``sglang:num_queue_reqs``         ``llamacpp:requests_deferred``
KV usage    ``vllm:kv_cache_usage_perc`` or   ``sglang:token_usage``            ``llamacpp:kv_cache_usage_ratio``
            ``vllm:gpu_cache_usage_perc``                                       of older versions, else nothing
capacity    ``vllm:cache_config_info``        ``sglang:max_total_num_tokens``   nothing
==========  ================================  ================================  ================================

Sources: the metrics that the three servers document; the Prometheus text exposition format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

_LABEL = {name: re.compile(rb'[{,]\s*%s="(\d{1,15})"' % name) for name in (b"block_size", b"num_gpu_blocks")}
# Ranks of one engine that report the same requests again.
_OTHER_RANK = re.compile(rb'[{,]\s*(?:tp|pp)_rank="(?!0")')
_MOST = 1e12
# More than any server has of one metric, and longer than any line that is read here: a page must not hold up requests.
_MOST_SAMPLES = 4096
_MOST_LINE_BYTES = 8192


class EngineLoad(NamedTuple):
    """What a server says about itself, summed over its engines."""

    running: int  # requests in the batch
    waiting: int
    kv_usage: float  # share of the KV cache in use, mean over engines; NaN where the page does not say
    kv_capacity_tokens: float  # 0 where the page does not say


class _Names(NamedTuple):
    """What a server calls its figures, the usage by newer names first."""

    running: bytes
    waiting: bytes
    usage: tuple[bytes, ...]
    usage_needed: bool = True


_SERVERS = (
    _Names(
        b"vllm:num_requests_running",
        b"vllm:num_requests_waiting",
        (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
    ),
    _Names(b"sglang:num_running_reqs", b"sglang:num_queue_reqs", (b"sglang:token_usage",)),
    _Names(
        b"llamacpp:requests_processing",
        b"llamacpp:requests_deferred",
        (b"llamacpp:kv_cache_usage_ratio",),
        usage_needed=False,
    ),
)


def read_load(page: bytes) -> EngineLoad | None:
    """Return the load that a metrics page reports; None where it is the page of no server that is known here.

    Parameters
    ----------
    page : bytes
        Prometheus text; anything else gives None.
    """
    for names in _SERVERS:
        running = _values(page, names.running)
        waiting = _values(page, names.waiting)
        usage = next(filter(None, (_values(page, name) for name in names.usage)), [])
        if running and waiting and (usage or not names.usage_needed):
            return EngineLoad(
                running=round(sum(running)),
                waiting=round(sum(waiting)),
                kv_usage=min(sum(usage) / len(usage), 1.0) if usage else math.nan,
                kv_capacity_tokens=_capacity_tokens(page),
            )
    return None


def _values(page: bytes, name: bytes) -> list[float]:
    return [value for labels, value in _samples(page, name) if not _OTHER_RANK.search(labels)]


def _capacity_tokens(page: bytes) -> float:
    """Return how many tokens the KV caches of a page's engines hold; 0 where it does not say."""
    capacity = sum(_values(page, b"sglang:max_total_num_tokens"))
    for labels, _ in _samples(page, b"vllm:cache_config_info"):
        sizes = [pattern.search(labels) for pattern in _LABEL.values()]
        if sizes[0] is not None and sizes[1] is not None:
            capacity += float(sizes[0][1]) * float(sizes[1][1])
    return capacity if capacity <= _MOST else 0.0


def _samples(page: bytes, name: bytes) -> Iterator[tuple[bytes, float]]:
    """Give the labels and the value of every sample of one metric; values that are no count are left out."""
    for line in islice(_lines(page, name), _MOST_SAMPLES):
        if line[:1] not in (b"{", b" ", b"\t"):
            continue
        labels, brace, rest = line.rpartition(b"}")
        fields = (rest if brace else line).split()
        try:
            value = float(fields[0])
        except (IndexError, ValueError):
            continue
        if math.isfinite(value) and 0.0 <= value <= _MOST:
            yield labels, value


def _lines(page: bytes, name: bytes) -> Iterator[bytes]:
    """Give what stands behind a name at the begin of a line, up to the line's end."""
    # Sought with the line end before it: what stands within a line, however often, is passed over at the speed of find.
    marked = b"\n" + name
    at = 0 if page.startswith(name) else page.find(marked) + 1 or -1
    while at >= 0:
        begin = at + len(name)
        line, end, _ = page[begin : begin + _MOST_LINE_BYTES].partition(b"\n")
        if end or begin + len(line) == len(page):
            yield line
        at = page.find(marked, begin) + 1 or -1
