"""``wavetank launch adapters``: the GPUs for a file of adapters, with the flags of their servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from wavetank.errors import BadValueError
from wavetank.exits import DOES_NOT_HOLD
from wavetank.files import write_atomic
from wavetank.terminal import say, say_heading, say_json, say_wrapped
from wavetank.units import show

_SEED = 2_000


@click.command()
@click.argument("adapters", type=click.Path(dir_okay=False))
@click.option("--model", default="llama-3.1-8b-instruct", show_default=True, help="Base model, of which costs ship.")
@click.option(
    "--planner",
    type=click.Choice(("adapter-serving", "packing-by-formula", "fewest-by-twin", "dealt-in-turns")),
    default="adapter-serving",
    show_default=True,
    help="What chooses, as in wavetank compare adapter-placement.",
)
@click.option("--gpus", type=click.IntRange(1), help="Most GPUs that may be used; any number when left out.")
@click.option(
    "--itl-target-ms", type=click.FloatRange(0.0, min_open=True), help="Longest mean time between tokens on a GPU, ms."
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="CSV file for adapter, gpu, slots.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(
    adapters: str,
    model: str,
    planner: str,
    gpus: int | None,
    itl_target_ms: float | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Spread the adapters of a CSV file (columns adapter, rank, rate_per_s) over GPUs, and try the plan in simulation.

    Prints the flags of vLLM's server for each GPU.  Ends with exit code 1 where an adapter gets no GPU or a GPU starves
    in the simulated hour.
    """
    from wavetank.ledger import catalog
    from wavetank.serving.placement.interface import PlacementProblem, read_adapters, width_of
    from wavetank.serving.placement.twin import judge

    if out is not None and out.exists():
        raise BadValueError("The file exists already.", given=str(out), allowed="a new name", where="--out")
    problem = PlacementProblem(
        adapters=read_adapters(adapters), model=model, gpus=gpus,
        itl_target_s=itl_target_ms / 1000 if itl_target_ms else None,
    )  # fmt: skip
    plan = catalog.system(planner).build().plan(problem)
    plan.check(problem)
    table: list[dict[str, Any]] = []
    for number, gpu in enumerate(plan.gpus):
        run = judge(problem, gpu, _SEED)
        rank = max(problem.by_name[name].rank for name in gpu.adapters)
        table.append({
            "gpu": number,
            "adapters": list(gpu.adapters),
            "rate_per_s": sum(problem.by_name[name].rate_per_s for name in gpu.adapters),
            "flags": ["--enable-lora", f"--max-loras={gpu.slots}", f"--max-lora-rank={width_of(rank)}",
                      f"--max-cpu-loras={max(len(gpu.adapters), gpu.slots)}"],
            "given_share": run.share,
            "itl_mean_s": run.itl_mean_s,
            "keeps_up": problem.fed(run),
        })  # fmt: skip
    if out is not None:
        rows = [f"{name},{row['gpu']},{plan.gpus[row['gpu']].slots}" for row in table for name in row["adapters"]]
        write_atomic(out, "\n".join(["adapter,gpu,slots", *rows]) + "\n")
    bad = bool(plan.unplaced) or not all(row["keeps_up"] for row in table)
    if as_json:
        say_json({"model": model, "gpus": table, "unplaced": dict(plan.unplaced)})
        return DOES_NOT_HOLD if bad else 0
    say_heading(f"{len(plan.gpus)} GPUs for {len(problem.adapters) - len(plan.unplaced)} adapters of {model}")
    for row in table:
        state = (
            "keeps up"
            if row["keeps_up"]
            else f"does not keep up: gives {row['given_share']:.0%} of the tokens asked for"
        )
        say_wrapped(
            f"GPU {row['gpu']}: {len(row['adapters'])} adapters, {show(row['rate_per_s'])} requests/s, "
            f"{show(row['itl_mean_s'], 's')} between tokens; {state}", first="  ", rest="    ",
        )  # fmt: skip
        say_wrapped(" ".join(row["flags"]), first="    ", rest="      ")
    for name, why in plan.unplaced.items():
        say_wrapped(f"{name} has no GPU: {why}.")
    say_wrapped(
        "A GPU's hour is simulated; requests are as long as those of ShareGPT. Adapters by GPU: --out or --json."
    )
    if out is not None:
        say(f"kept in {out}")
    return DOES_NOT_HOLD if bad else 0
