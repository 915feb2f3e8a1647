"""A leaderboard of real runs, each row with its trace, its card and the script that repeats it.

Rows are sorted by the time of a step.  Beside it stand the metrics of the kept trace, so that a row's place can be
explained, and a metric that is thought of later is computed from what is kept.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from wavetank.errors import BadFileError
from wavetank.files import read_text, write_atomic
from wavetank.insight.metrics.cards import (
    Architecture,
    Card,
    CardData,
    CardModel,
    Devices,
    Executor,
    Framework,
    Hardware,
    Library,
    Plan,
    Topology,
    TraceKinds,
    Workload,
    read_card,
)
from wavetank.insight.metrics.definitions import Figure, figures
from wavetank.insight.traces.measures import TraceSource
from wavetank.live.short_runs import HEADS, LAYERS, RANKS, SEQUENCES, TOKENS, WIDTH, Cut, Ran, run_cuts

WATCHED = 2
"""Steps of a run that are recorded."""
_LARGEST_BYTES = 1 << 20
_SHOWN = ("compute_fraction", "exposed_communication", "idle_fraction", "load_imbalance_ratio")


class Row(NamedTuple):
    """A row of the leaderboard.

    Parameters
    ----------
    name : str
        Of its folder.
    step_s : float
        Median time of the steps that nobody watched, s.
    card : Card
    figures : mapping of str to Figure
        The metrics of its trace.
    """

    name: str
    step_s: float
    card: Card
    figures: Mapping[str, Figure]


def name_of(cut: Cut) -> str:
    """Return the name of a way to cut a run.

    Parameters
    ----------
    cut : Cut
    """
    again = "-again" if cut.checkpoint else ""
    return f"tp{cut.tensor}-pp{cut.pipeline}-dp{cut.data}-mb{cut.micro}{again}"


def card_of_run(cut: Cut) -> Card:
    """Return the workload card of a short run.

    Parameters
    ----------
    cut : Cut
    """
    return Card(
        version=1, description="A small stack of transformer layers, trained by processes of one machine.",
        workload=Workload(
            model=CardModel(
                phase="training", moe=False, granularity="training_step", model_family="short-run", precision="fp64",
                iteration=WATCHED,
                model_arch=Architecture(
                    num_params=LAYERS * 12 * WIDTH**2, num_layers=LAYERS, num_heads=HEADS, head_dim=WIDTH // HEADS,
                ),
            ),
            data=CardData(batch_size=SEQUENCES, seq_len=TOKENS),
            hardware=Hardware(
                network_topo=Topology(topology="loopback"),
                xpu_spec=Devices(type="CPU", total_count=RANKS, count_per_node=RANKS),
            ),
        ),
        executor=Executor(
            framework=Framework(name="wavetank"), communication_library=Library(name="gloo"),
            model_plan_parallelization=Plan(
                dp_replicate=cut.data, dp_shard=1, tp=cut.tensor, pp=cut.pipeline, cp=1, ep=1, pp_mb=cut.micro,
            ),
        ),
        metric_source=TraceKinds(traces=("json",)),
    )  # fmt: skip


_SCRIPT = '''"""Repeat this row: python {name}/run.py [FOLDER FOR TRACES]"""

import sys
from pathlib import Path

from wavetank.live.short_runs import Cut, run_cuts

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    (ran,) = run_cuts([Cut{cut}], steps={steps}, watch=folder)
    sys.stdout.write(f"{{ran.seconds}} s\\n")
'''


def keep_runs(folder: Path, cuts: Sequence[Cut], *, steps: int = 3, timeout_s: float = 300.0) -> list[Ran]:
    """Run some cuts, and keep of each its traces, its card, its script and the times of its steps.

    Parameters
    ----------
    folder : Path
        Each row gets a folder in it.
    cuts : sequence of Cut
    steps : int
        Of each that are timed, with nobody watching.
    timeout_s : float
        For all.

    Raises
    ------
    WavetankError
        If a process fails or does not end in time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    traces = [folder / name_of(cut) / "trace" for cut in cuts]
    ran = run_cuts(cuts, steps=steps, timeout_s=timeout_s, watch=traces)
    for cut, found in zip(cuts, ran, strict=True):
        row = folder / name_of(cut)
        write_atomic(row / "card.json", card_of_run(cut).written())
        write_atomic(row / "run.py", _SCRIPT.format(name=name_of(cut), cut=tuple(cut), steps=steps))
        write_atomic(row / "steps.csv", "step_s\n" + "".join(f"{each!r}\n" for each in found.seconds))
    return ran


def read_board(folder: Path) -> list[Row]:
    """Return the rows of a folder, the fastest first, with metrics computed from what was kept.

    Parameters
    ----------
    folder : Path

    Raises
    ------
    BadFileError
        If a card or a trace is damaged.
    """
    rows = []
    for path in sorted(folder.iterdir()):
        if not (path / "card.json").exists():
            continue
        card = read_card(path / "card.json")
        found = figures(card, TraceSource(path / "trace"))
        rows.append(Row(path.name, statistics.median(_seconds(path / "steps.csv")), card, found))
    return sorted(rows, key=lambda row: (row.step_s, row.name))


def _seconds(file: Path) -> list[float]:
    try:
        found = [float(each) for each in read_text(file, largest_bytes=_LARGEST_BYTES).split()[1:]]
    except ValueError as error:
        raise BadFileError("A time of a step is no number.", given=str(error), where=str(file)) from error
    if not found or not all(0 < each < math.inf for each in found):
        raise BadFileError("A row has times of steps above 0.", given=f"{len(found)} times", where=str(file))
    return found


def board_text(rows: Sequence[Row]) -> str:
    """Return the leaderboard as a table of Markdown.

    Parameters
    ----------
    rows : sequence of Row
    """
    lines = ["| row | step, ms | " + " | ".join(_SHOWN) + " |", "| --- | ---: |" + " ---: |" * len(_SHOWN)]
    for row in rows:
        said = [row.figures[name] for name in _SHOWN]
        shown = ["-" if each.value is None else f"{each.value:.3f}" for each in said]
        lines.append(f"| {row.name} | {1e3 * row.step_s:.2f} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"
