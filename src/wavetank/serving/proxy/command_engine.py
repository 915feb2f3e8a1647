"""``wavetank launch engine``: a stand-in model server at the pace of a step-time model."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from wavetank.errors import BadValueError, unknown_name
from wavetank.terminal import say
from wavetank.units import parse_quantity

if TYPE_CHECKING:
    from wavetank.platforms.step_time import StepTime
    from wavetank.serving.simulator.cluster import Cluster

_DEFAULT_KV_TOKENS = 400_000


@click.command()
@click.option("--model", default="Llama-3.1-8B", show_default=True, help="Model that the engine pretends to serve.")
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
@click.option(
    "--kv-watermark",
    type=float,
    default=0.01,
    show_default=True,
    help="Share of the KV cache that is kept free at admission.",
)
@click.option("--max-running", type=int, default=128, show_default=True, help="Most requests in the batch.")
@click.option("--max-batched-tokens", type=int, default=2048, show_default=True, help="Token budget of a step.")
@click.option(
    "--max-waiting",
    type=int,
    default=4096,
    show_default=True,
    help="Most waiting requests; further requests get status 429.",
)
@click.option("--context-tokens", type=int, default=0, help="Most tokens of prompt and answer; 0: the KV cache.")
@click.option(
    "--body-bytes",
    type=int,
    default=8 << 20,
    show_default=True,
    help="Largest request body; larger ones get status 413.",
)
@click.option("--prefix-caching", is_flag=True, help="Keep whole prefix blocks for reuse.")
@click.option("--block-tokens", type=int, default=512, show_default=True, help="Tokens of a prefix block.")
@click.option(
    "--time-scale", type=float, default=1.0, show_default=True, help="Seconds per second of the model: 4 is slower."
)
@click.option(
    "--lengths",
    type=click.Choice(["asked", "conv", "code"]),
    default="asked",
    show_default=True,
    help="Length of answers: as requested, or up to that as in Azure's chat or code traffic.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the lengths.")
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
    from wavetank.serving.proxy.engine import Engine, EngineOptions, serve
    from wavetank.workloads.generate import CODE, CONV

    options = EngineOptions(
        model=given["model"],
        cluster=cluster_of(given),
        lengths={"asked": None, "conv": CONV, "code": CODE}[given["lengths"]],
        **{name: given[name] for name in ("time_scale", "block_tokens", "context_tokens", "max_waiting", "body_bytes")},
        seed=given["seed"],
    )
    engine = Engine(options, given["name"])
    with asyncio.Runner(loop_factory=fastest_loop) as runner:
        runner.run(serve(engine, host=given["host"], port=given["port"], drain_s=given["drain_s"], say=say))
    return 0


def cluster_of(given: Mapping[str, Any]) -> Cluster:
    """Return the one worker that the command line's options describe."""
    from wavetank.platforms import RooflineStepTime, kv_capacity_tokens
    from wavetank.serving.simulator.cluster import Cluster

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
