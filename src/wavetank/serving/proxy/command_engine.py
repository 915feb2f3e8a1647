"""``wavetank launch engine``: a stand-in model server at the pace of a step-time model."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from wavetank.errors import BadValueError, unknown_name
from wavetank.serving.proxy.configuration import EngineOptions
from wavetank.serving.simulator.cluster import Cluster
from wavetank.settings import options
from wavetank.terminal import say
from wavetank.units import parse_quantity

if TYPE_CHECKING:
    from wavetank.platforms.step_time import StepTime

_DEFAULT_KV_TOKENS = 400_000


@click.command()
@options(EngineOptions, "model")
@click.option("--device", default="H100-SXM", show_default=True, help="Accelerator of the roofline step time.")
@click.option(
    "--tensor-parallel",
    type=int,
    default=1,
    show_default=True,
    help="Number of accelerators that the engine pretends to have.",
)
@click.option(
    "--step-time",
    "coefficients",
    metavar="KEY=S,...",
    help="Step time of your own instead of the roofline: overhead_s=5e-3,per_request_s=1e-5,per_context_token_s=2e-8,"
    "per_prefill_token_s=2e-5,per_prefill_pair_s=1e-10; omitted terms are 0.",
)
@click.option(
    "--kv-capacity-tokens",
    type=int,
    default=0,
    help="Capacity of the KV cache; by default the memory that the weights leave, or 400,000.",
)
@options(
    Cluster,
    kv_watermark="Share of the KV cache that is kept free at admission",
    max_running="Most requests in the batch",
    max_batched_tokens="Token budget of a step",
)
@options(EngineOptions, "max_waiting", "context_tokens", "body_bytes")
@options(Cluster, prefix_caching="Keep whole prefix blocks for reuse")
@options(EngineOptions, "block_tokens", "time_scale")
@click.option(
    "--lengths",
    type=click.Choice(["asked", "conv", "code"]),
    default="asked",
    show_default=True,
    help="Length of answers: as requested, or up to that as in Azure's chat or code traffic.",
)
@options(EngineOptions, "seed")
@click.option("--name", help="Name of the engine in answers (system_fingerprint); HOST:PORT by default.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on; 0 for any free port.")
@click.option(
    "--drain-s", type=float, default=30.0, show_default=True, help="Time for running requests after a signal."
)
def command(**given: Any) -> int:
    """Serve OpenAI's interface at the pace of a step-time model, for trying things without a GPU.

    Prints its address on one line.  Token i of every answer is the text " t<i>"; Ctrl-C lets running requests end.
    """
    from wavetank.live.loops import fastest_loop
    from wavetank.serving.proxy.engine import Engine, serve
    from wavetank.workloads.generate import CODE, CONV

    lengths = {"asked": None, "conv": CONV, "code": CODE}[given["lengths"]]
    same = {item.name: given[item.name] for item in dataclasses.fields(EngineOptions) if item.metadata}
    engine = Engine(EngineOptions(cluster=cluster_of(given), lengths=lengths, **same), given["name"])
    with asyncio.Runner(loop_factory=fastest_loop) as runner:
        runner.run(serve(engine, host=given["host"], port=given["port"], drain_s=given["drain_s"], say=say))
    return 0


def cluster_of(given: Mapping[str, Any]) -> Cluster:
    """Return the one worker that the command line's options describe."""
    from wavetank.platforms import RooflineStepTime, kv_capacity_tokens

    step_time: StepTime
    capacity = given["kv_capacity_tokens"]
    if given["coefficients"] is None:
        parallel = given["tensor_parallel"]
        step_time = RooflineStepTime(device=given["device"], model=given["model"], tensor_parallel=parallel)
        capacity = capacity or kv_capacity_tokens(given["device"], given["model"], parallel)
    else:
        step_time = _fitted(given["coefficients"])
        capacity = capacity or _DEFAULT_KV_TOKENS
    return Cluster(
        workers=1,
        step_time=step_time,
        kv_capacity_tokens=capacity,
        **{name: given[name] for name in ("kv_watermark", "max_running", "max_batched_tokens", "prefix_caching")},
    )


def _fitted(text: str) -> StepTime:
    from wavetank.platforms.step_time import FittedStepTime

    where = "--step-time"
    known = [field.name for field in dataclasses.fields(FittedStepTime)]
    values = {"overhead_s": math.nan}
    for pair in text.split(","):
        name, equals, value = pair.partition("=")
        if not equals:
            raise BadValueError("A coefficient is a pair.", given=pair, allowed="KEY=SECONDS", where=where)
        if name.strip() not in known:
            raise unknown_name("coefficient", name.strip(), known, where=where)
        values[name.strip()] = parse_quantity(value, "s", where=f"{where} {name.strip()}")
    if math.isnan(values["overhead_s"]):
        raise BadValueError("The step time lacks its overhead.", given=text, allowed="overhead_s=...", where=where)
    return FittedStepTime(**values)
