"""Study ``adapter-placement``."""

from dataclasses import replace

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.placement.packing import Dealt, Packing
from wavetank.serving.placement.study import AdapterPlacement

SMALL = AdapterPlacement(adapters=24, rate_per_s=0.3)


def figures(study, system, seed=0):
    return {metric: value for metric, value, at in study.measure(system, seed).rows if not at}


def test_a_plan_that_is_trusted_and_one_that_is_counted():
    packed, dealt = figures(SMALL, Packing(verify=True)), figures(SMALL, Dealt())
    assert packed["gpus"] <= dealt["gpus"]
    assert packed["gpus_over_bound"] >= 1
    assert 0 <= dealt["starved_share"] <= 1 and 0 < dealt["given_share"] <= 1
    assert packed["worst_adapter_share"] > 0.5
    assert "belief_smape" in packed and "belief_smape" not in dealt


class All:
    """Puts everything on one GPU, whatever its headroom."""

    def plan(self, problem):
        return Packing(believes="memory", slots="resident").plan(replace(problem, headroom=1.0))


def test_a_planner_that_always_starves_ends_with_a_gpu_for_each():
    found = figures(AdapterPlacement(adapters=40, rate_per_s=1.0), All())
    assert found["starved_share"] == 1.0 and found["gpus"] == 40 and "headroom" not in found


def test_seeds_differ_and_files_do_not(tmp_path):
    assert SMALL.problem(0) != SMALL.problem(1)
    (tmp_path / "a.csv").write_text("adapter,rank,rate_per_s\nx,8,0.5\ny,16,1\n")
    study = AdapterPlacement(file=str(tmp_path / "a.csv"))
    assert study.problem(0) == study.problem(1) and [each.name for each in study.problem(0).adapters] == ["x", "y"]


def test_adapters_that_no_gpu_serves_are_refused(tmp_path):
    with pytest.raises(BadValueError, match="fit no slot"):
        AdapterPlacement(rank=256, model="qwen-2.5-7b-instruct", file=_one(tmp_path, 512, 1.0)).check()
    with pytest.raises(BadValueError, match="alone is more"):
        AdapterPlacement(file=_one(tmp_path, 8, 500.0)).check()
    SMALL.check()


def _one(folder, rank, rate):
    (folder / "one.csv").write_text(f"adapter,rank,rate_per_s\none,{rank},{rate}\n")
    return str(folder / "one.csv")


def test_the_notes_say_what_is_simulated():
    assert "simulated" in " ".join(SMALL.notes())
