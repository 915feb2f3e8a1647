"""``wavetank launch workflow``: a workflow's stages on real processes, one per device, under a scheduler."""

from __future__ import annotations

from pathlib import Path

import click

from wavetank.errors import unknown_name
from wavetank.terminal import say, say_heading, say_json, say_wrapped
from wavetank.units import show


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--scheduler", default="fate", show_default=True, help="As in wavetank compare workflow-scheduling.")
@click.option("--gpu", "gpus", multiple=True, help="A device, as the platforms name it; repeat it. [4 of two kinds]")
@click.option(
    "--speed",
    type=click.FloatRange(0.01, 1000.0),
    default=20.0,
    show_default=True,
    help="Seconds of the workflow per second of this machine.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Draws models and lengths for the kinds of tasks.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(file: Path, scheduler: str, gpus: tuple[str, ...], speed: float, seed: int, as_json: bool) -> int:
    """Run FILE, a workflow in WfFormat, on local processes that stand for devices.

    Every kind of task becomes calls of one model; each process keeps models and prefixes in real memory, the least
    recently used ones go first, and takes as long as the device would, divided by --speed.
    """
    from wavetank.ledger import catalog
    from wavetank.serving.workflows.applications import MODELS, on_shape
    from wavetank.serving.workflows.dispatcher import Dispatcher
    from wavetank.serving.workflows.interface import platform_of
    from wavetank.serving.workflows.live import run_live
    from wavetank.serving.workflows.simulate import simulate
    from wavetank.workloads.workflows import read_workflow

    known = {name: each for name, each in catalog.everything().systems.items() if each.interface == "stage-scheduler"}
    if scheduler not in known:
        raise unknown_name("scheduler of stages", scheduler, known, hint="wavetank list workflow-scheduling")
    application = on_shape(read_workflow(file), seed)
    platform = platform_of(gpus or ("H100-SXM", "H100-SXM", "L40S", "L40S"), MODELS)
    chosen = known[scheduler].build()
    simulated = simulate([application], platform, chosen)
    run = run_live([application], Dispatcher(platform=platform, scheduler=chosen), speed=speed)
    busy = [0.0] * len(platform.devices)
    for each in run.stages:
        for number in each.devices:
            busy[number] += each.end_s - each.start_s
    found = {
        "workflow": application.workflow.name, "stages": len(run.stages), "makespan_s": run.makespan_s,
        "simulated_makespan_s": simulated.makespan_s, "loads": sum(each.loads for each in run.stages),
        "reused_tokens": sum(each.reused_tokens for each in run.stages),
        "devices": {device.name: value / run.makespan_s for device, value in zip(platform.devices, busy, strict=True)},
    }  # fmt: skip
    if as_json:
        say_json(found)
        return 0
    say_heading(f"{found['workflow']}: {found['stages']} stages in {show(run.makespan_s, 's')}")
    say_wrapped(f"The simulator expects {show(simulated.makespan_s, 's')}; one second here was {speed:g} s there.")
    say_wrapped(f"Models were loaded {found['loads']} times; {found['reused_tokens']} tokens of prefixes were cached.")
    for device, value in zip(platform.devices, busy, strict=True):
        say(f"  {device.name}: busy {value / run.makespan_s:.0%}")
    return 0
