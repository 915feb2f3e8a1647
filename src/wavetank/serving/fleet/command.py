"""``wavetank launch plan``: a fleet for a demand and a price list, as files."""

from __future__ import annotations

from pathlib import Path

import click

from wavetank.errors import BadValueError
from wavetank.exits import DOES_NOT_HOLD
from wavetank.files import write_atomic
from wavetank.terminal import say, say_heading, say_json, say_wrapped
from wavetank.units import show

_FILES = ("plan.toml", "plan.json", "kubernetes.yaml")


@click.command()
@click.option(
    "--demand",
    required=True,
    type=click.Path(dir_okay=False),
    help="CSV file with columns model, requests_per_s and, if known, prompt_tokens, output_tokens, slo_ttft_s, "
    "slo_tpot_s, share.",
)
@click.option(
    "--prices",
    default="shipped",
    show_default=True,
    help="CSV file with columns instance, device, gpus, usd_per_hour, available; shipped: a list of on-demand prices.",
)
@click.option(
    "--planner",
    type=click.Choice(("coral", "model-by-model", "one-kind", "one-model-per-instance")),
    default="coral",
    show_default=True,
    help="What chooses, as in wavetank compare gpu-mix.",
)
@click.option(
    "--headroom",
    type=click.FloatRange(0.05, 1.0),
    default=0.9,
    show_default=True,
    help="Share of what a replica keeps up that the plan counts on.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the plan's files.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(demand: str, prices: str, planner: str, headroom: float, out: Path | None, as_json: bool) -> int:
    """Choose the instances and replicas that serve a demand for the least money, and write them down.

    Writes plan.toml, plan.json and kubernetes.yaml into the folder given by --out.  Ends with exit code 1 where the
    offers cannot serve the whole demand; the plan then serves as much as it can.
    """
    from wavetank.platforms.prices import read_offers, shipped_offers
    from wavetank.serving.fleet import manifests
    from wavetank.serving.fleet.coral import Coral
    from wavetank.serving.fleet.demand import read_demand
    from wavetank.serving.fleet.interface import FleetPlanner, FleetProblem
    from wavetank.serving.fleet.rivals import ModelByModel, OneKind, OneModelPerInstance
    from wavetank.serving.fleet.study import templates

    if out is not None and out.exists() and any((out / name).exists() for name in _FILES):
        raise BadValueError(
            "The folder holds a plan already.", given=str(out), allowed="a folder without plan.toml, plan.json and "
            "kubernetes.yaml", hint="give another folder to --out, or move these files away",
        )  # fmt: skip
    asked = read_demand(demand)
    offers = shipped_offers() if prices == "shipped" else read_offers(prices)
    problem = FleetProblem(
        demand_per_s=asked, offers=offers, templates=templates(tuple(asked), offers, split=True, headroom=headroom)
    )
    planners: dict[str, FleetPlanner] = {
        "coral": Coral(),
        "model-by-model": ModelByModel(),
        "one-kind": OneKind(),
        "one-model-per-instance": OneModelPerInstance(),
    }
    plan = planners[planner].plan(problem)
    plan.check(problem)
    table = manifests.as_table(plan, problem)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name, write in zip(_FILES, (manifests.to_toml, manifests.to_json, manifests.to_kubernetes), strict=True):
            write_atomic(out / name, write(table))
    short = [row for row in table["demand"] if row["served_per_s"] < row["requests_per_s"] * (1 - 1e-6)]
    if as_json:
        say_json(table)
        return DOES_NOT_HOLD if short else 0
    say_heading(f"{show(table['usd_per_hour'])} USD per hour")
    for row in table["instances"]:
        say_wrapped(f"{row['count']} x {row['instance']}: {show(row['usd_per_hour'])} USD/h", first="  ", rest="    ")
    say_heading("Replicas")
    for row in table["replicas"]:
        say_wrapped(
            f"{row['count']} x {row['model']}: {row['how']}; each keeps up {show(row['requests_per_s_each'])} "
            "requests/s", first="  ", rest="    ",
        )  # fmt: skip
    for row in short:
        fits = any(each.service.model == row["model"] for each in problem.templates)
        why = (
            "the offers do not suffice" if fits
            else "no offered device holds the model and meets the objectives, however few requests come"
        )  # fmt: skip
        say_wrapped(
            f"Of {row['requests_per_s']:g} requests/s for {row['model']} only {row['served_per_s']:g} are served: "
            f"{why}."
        )
    say_wrapped(
        f"What a replica keeps up is simulated (calibrated roofline), less {1 - headroom:.0%}; on-demand list prices. "
        "Try the fleet before you trust it: wavetank launch replay."
    )
    if out is not None:
        say(f"kept in {out}")
    return DOES_NOT_HOLD if short else 0
