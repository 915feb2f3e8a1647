"""Links between devices that share a model, and what the collectives of one step take on them.

Three patterns, as vLLM has them.  With tensor parallelism every layer sums its activations twice, and the embedding
once; the logits of the rows that get a token are gathered from the shards of the vocabulary.  Data-parallel workers
that share experts gather the tokens of all before every layer with experts, and sum and scatter the results after it.

Sources: the ring algorithms of R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
Operations in MPICH", 2005; vLLM 0.19, ``VocabParallelEmbedding``, ``LogitsProcessor`` and ``allgather_reducescatter``.

Differs from the sources:

1. Every collective is a ring, whatever the library would choose for its size.
2. Nothing overlaps: a step waits for each.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import Device, Model

_BYTES_PER_ELEMENT = 2  # activations and logits are bf16


@dataclass(frozen=True, kw_only=True)
class Link:
    """What connects each device to its neighbours, one direction.

    Parameters
    ----------
    bytes_per_s : float
        What a collective reaches, not the peak.
    latency_s : float
        Start-up time, s.
    per_hop : bool, default False
        Whether every hop of a ring takes the latency (as a link's own latency does), or a whole collective takes it
        once (as a library's measured start-up does).

    Examples
    --------
    >>> link = Link(bytes_per_s=16e9, latency_s=2e-5, per_hop=True)
    >>> f"{link.all_reduce_s(2, 1e6) * 1e6:.1f} us"
    '102.5 us'
    """

    bytes_per_s: float
    latency_s: float
    per_hop: bool = False

    def __post_init__(self) -> None:
        for name, low in (("bytes_per_s", 1.0), ("latency_s", 0.0)):
            value = getattr(self, name)
            # Written so that nan fails too.
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < float("inf"):
                raise BadValueError("This is no figure of a link.", given=value, allowed=f"{low:g} or more, finite",
                                    where=name)  # fmt: skip

    def all_reduce_s(self, devices: int, sent_bytes: float) -> float:
        """Return how long ``devices`` take to sum ``sent_bytes`` that each of them holds."""
        hops = 2 * (devices - 1)
        return self._start_s(hops) + hops / devices * sent_bytes / self.bytes_per_s

    def all_gather_s(self, devices: int, sent_bytes: float) -> float:
        """Return how long ``devices`` take to give each other the ``sent_bytes`` of every one.

        To sum and scatter results of as many bytes takes the same time.
        """
        hops = devices - 1
        return self._start_s(hops) + hops * sent_bytes / self.bytes_per_s

    def _start_s(self, hops: int) -> float:
        return self.latency_s * (hops if self.per_hop else 1)


def device_link(device: Device, efficiency: float, latency_s: float | None = None) -> Link:
    """Return the link of a device's data sheet.

    Parameters
    ----------
    device : Device
    efficiency : float
        Share of the peak bandwidth that a collective reaches.
    latency_s : float, optional
        Start-up time of one collective, s; the device's ``link_latency_s`` when left out.
    """
    return Link(
        bytes_per_s=device.link_bytes_per_s * efficiency,
        latency_s=device.link_latency_s if latency_s is None else latency_s,
    )


def _line(count: int, start_s: float, one_s: float) -> tuple[float, float]:
    return count * start_s, count * (one_s - start_s)


def all_reduce_s(link: Link, model: Model, tensor_parallel: int) -> tuple[float, float]:
    """Return the time of a step's all-reduces as a fixed part, s, and a part per token, s.

    Parameters
    ----------
    link : Link
    model : Model
    tensor_parallel : int
        Devices that share every layer.
    """
    start_s, one_s = (link.all_reduce_s(tensor_parallel, n * _BYTES_PER_ELEMENT * model.hidden) for n in (0, 1))
    return _line(2 * model.layers + 1, start_s, one_s)


def gather_logits_s(link: Link, model: Model, tensor_parallel: int) -> tuple[float, float]:
    """Return the time in which the shards of the logits come together: a fixed part, s, and a part per row, s.

    Parameters
    ----------
    link : Link
    model : Model
    tensor_parallel : int
        Devices that share the vocabulary.
    """
    shard_bytes = _BYTES_PER_ELEMENT * model.vocab / tensor_parallel
    start_s, one_s = (link.all_gather_s(tensor_parallel, n * shard_bytes) for n in (0, 1))
    return _line(1, start_s, one_s)


def exchange_experts_s(link: Link, model: Model, expert_parallel: int) -> tuple[float, float]:
    """Return the time of a step's exchanges between workers that share experts: a fixed part and one per token, s.

    Parameters
    ----------
    link : Link
    model : Model
    expert_parallel : int
        Data-parallel workers that share the experts, each with as many tokens.
    """
    start_s, one_s = (link.all_gather_s(expert_parallel, n * _BYTES_PER_ELEMENT * model.hidden) for n in (0, 1))
    return _line(2 * model.moe_layers, start_s, one_s)
