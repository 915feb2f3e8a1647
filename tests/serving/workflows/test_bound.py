"""The whole-graph program against every placement and order of tiny workflows."""

from __future__ import annotations

import itertools

import pytest
from tests.serving.workflows.conftest import application, platform

from wavetank.errors import BadValueError
from wavetank.serving.workflows.bound import MOST_STAGES, WholeGraph
from wavetank.serving.workflows.fate import Fate
from wavetank.serving.workflows.simulate import simulate

pytest.importorskip("ortools")

SHAPES = {
    "chain": ((), (0,), (1,), (2,)),
    "fork": ((), (0,), (0,), (0,)),
    "diamond": ((), (0,), (0,), (1, 2)),
    "apart": ((), (), (), ()),
}


def shortest(made, speeds) -> float:
    """Every order and every placement, each stage as early as it can be after those before it."""
    count, best = len(made.stages), float("inf")
    seconds = [(each.prompt_tokens / 1000 + each.output_tokens / 10) for each in made.stages]
    for order in itertools.permutations(range(count)):
        edges = [(parent, task) for task in range(count) for parent in made.workflow.parents[task]]
        if any(order.index(parent) > order.index(task) for parent, task in edges):
            continue
        for where in itertools.product(range(len(speeds)), repeat=count):
            ends, free = [0.0] * count, [0.0] * len(speeds)
            for task in order:
                ready = max((ends[parent] for parent in made.workflow.parents[task]), default=0.0)
                ends[task] = max(ready, free[where[task]]) + seconds[task] / speeds[where[task]]
                free[where[task]] = ends[task]
            best = min(best, max(ends))
    return best


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("speeds", [(1.0, 1.0), (1.0, 1.9)])
def test_without_loads_and_prefixes_it_is_the_optimum(name, speeds):
    made = application(SHAPES[name], (2.0, 3.0, 1.5, 2.5))
    devices = platform(speeds)
    least, proven = WholeGraph().least_makespan_s([made], devices)
    assert proven
    assert least == pytest.approx(shortest(made, speeds), abs=0.01)
    assert simulate([made], devices, Fate()).makespan_s >= least - 0.01


def test_with_loads_it_stays_below_every_run():
    made = application(SHAPES["diamond"], (2.0, 3.0, 1.5, 2.5), models=("a", "b", "a", "b"))
    devices = platform((1.0, 1.5), load_s=2.0)
    least, _ = WholeGraph().least_makespan_s([made], devices)
    assert least <= simulate([made], devices, Fate()).makespan_s + 1e-9


def test_what_it_cannot_bound_is_refused():
    long = application(tuple(() for _ in range(MOST_STAGES + 1)), (1.0,) * (MOST_STAGES + 1))
    for made in (long, application(((),), (1.0,), most_shards=2)):
        with pytest.raises(BadValueError, match="small workflows without shared stages"):
            WholeGraph().least_makespan_s([made], platform())
