"""Traces of a made-up job whose kinds, sizes and names are known: what generated traces are held against."""

from __future__ import annotations

from wavetank.sim.rng import stream
from wavetank.workloads.chakra import ExecutionTrace
from wavetank.workloads.chakra_writing import made_node, made_trace
from wavetank.workloads.operations import COLLECTIVES

_LAYERS = (33_554_432, 8_388_608)


def planted_job(seed: int, *, calls: int, ranks: int) -> tuple[tuple[ExecutionTrace, ...], frozenset[str]]:
    """Return traces and all names in them.

    Pairs of ranks sum activations of two sizes, all ranks reduce and scatter gradients of varied sizes, and each rank
    sends to the next; kinds come in runs.

    Parameters
    ----------
    seed : int
    calls : int
        Of communication, on each rank.
    ranks : int
        An even number from 2.
    """
    rng = stream(seed, "planted-traces")
    program, names, kind = [], {"gradients of all"}, 0
    for call in range(calls):
        if rng.random() > 0.6:
            kind = int(rng.choice(3, p=[0.6, 0.3, 0.1]))
        size = int(rng.choice(_LAYERS, p=[0.7, 0.3])) if kind == 0 else int(rng.lognormal(13.0, 1.0))
        program.append((kind, size, int(rng.lognormal(11.0, 0.5)), f"secret model, layer {call}"))
        names.add(program[-1][3])
    traces = []
    for rank in range(ranks):
        nodes = []
        names.add(f"tensor pair {rank // 2}")
        for call, (kind, size, took, name) in enumerate(program):
            n = 3 * call
            nodes.append(
                made_node(n, name, "compute", after=[n - 2] if call else [], duration_ns=took,
                          attributes={"module": name})
            )  # fmt: skip
            common: dict[str, int | float | bool | str] = {"comm_size": size, "is_cpu_op": False}
            if kind < 2:
                group = f"tensor pair {rank // 2}" if kind == 0 else "gradients of all"
                code = COLLECTIVES.index("all-reduce" if kind == 0 else "reduce-scatter")
                nodes.append(
                    made_node(n + 1, name, "collective", after=[n],
                              attributes=common | {"comm_type": code, "pg_name": group})
                )  # fmt: skip
                continue
            ahead, back = (rank + 1) % ranks, (rank - 1) % ranks
            nodes.append(
                made_node(n + 1, name, "send", after=[n], attributes=common | {"comm_dst": ahead, "comm_tag": call})
            )
            nodes.append(
                made_node(n + 2, name, "receive", after=[n], attributes=common | {"comm_src": back, "comm_tag": call})
            )
        traces.append(made_trace(nodes))
    return tuple(traces), frozenset(names)
