"""The studies: what a controller sustains, who is tuned on what, and problems without an answer."""

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.branches.rivals import Eager, FixedCap, Off
from wavetank.serving.branches.study import BranchAdmission, BranchSurface, decision_times
from wavetank.serving.branches.taper import Taper
from wavetank.study.records import Record

# The roofline needs no data set.
SMALL = {"requests": 120, "step_times": "roofline", "loads": (0.8,)}


def figures(study, system, seed=0):
    return {metric: value for metric, value, at in study.measure(system, seed).rows if not at}


@pytest.fixture(scope="module")
def crowded():
    """Return a study whose steps have little to spare and whose requests have many branches."""
    return BranchAdmission(**SMALL, share=0.6, width=8, tpot_slo_s=0.08)


def test_the_ablation_has_the_signs_of_the_paper_at_high_load(crowded):
    full, without, constant = (
        figures(crowded, each) for each in (Taper(), Taper(budget=False), Taper(predictor="blind"))
    )
    assert without["attainment_at_limit"] < full["attainment_at_limit"] - 0.02
    assert without["over_slack_steps"] > 100 and full["over_slack_steps"] == 0
    assert constant["attainment_at_limit"] > without["attainment_at_limit"]
    assert constant["sustained_tokens_per_s"] <= 1.02 * full["sustained_tokens_per_s"]
    assert figures(crowded, Eager())["attainment_at_limit"] < full["attainment_at_limit"]


def test_without_branches_all_controllers_sustain_the_same():
    study = BranchAdmission(**SMALL, share=0.0)
    found = {figures(study, each)["sustained_tokens_per_s"] for each in (Off(), Eager(), Taper(), FixedCap(cap=3))}
    assert len(found) == 1 and found.pop() > 0


def test_a_cap_is_tuned_on_the_requests_before_those_that_are_served(crowded, monkeypatch):
    seen = []

    def sustained(self, requests, controller, seed):
        seen.append((requests, controller.cap))
        return -abs(controller.cap - 4), 1.0

    monkeypatch.setattr(BranchAdmission, "_sustained", sustained)
    assert crowded._tuned(FixedCap(), 0).cap == 4
    past = crowded._requests(0).part(0, 120)
    assert all(requests.lengths.tolist() == past.lengths.tolist() for requests, _ in seen)
    assert crowded._tuned(FixedCap(cap=7), 0).cap == 7


def test_equal_seeds_give_equal_figures_and_others_do_not(crowded):
    one, same, other = (figures(crowded, Off(), seed) for seed in (1, 1, 2))
    assert one == same != other


def test_an_objective_below_the_shortest_step_is_refused_and_one_that_nobody_meets_gives_nothing():
    with pytest.raises(BadValueError) as caught:
        BranchAdmission(**SMALL, tpot_slo_s=0.01).check()
    assert "tensor_parallel" in caught.value.hint
    hopeless = BranchAdmission(**SMALL, ttft_slo_s=0.01)
    assert figures(hopeless, Taper())["sustained_tokens_per_s"] == 0.0


def test_branches_that_no_cache_holds_are_refused():
    with pytest.raises(BadValueError, match="KV cache"):
        BranchAdmission(**SMALL, width=64, branch_tokens=5000.0).check()


def test_decisions_are_timed_both_ways(crowded):
    compiled_s, plain_s = decision_times(Taper(), crowded._step_time(), crowded._predictor())
    assert 0 < compiled_s < plain_s


def test_a_surface_has_a_figure_for_each_cell_and_counts_wins_against_the_best_cap():
    study = BranchSurface(requests=60, step_times="roofline", shares=(0.0, 0.6), widths=(4,), objectives_s=(0.1,))
    rows = study.measure(Off(), 0).rows
    assert [at["cell"] for _, _, at in rows if at] == ["0 x 4, 100 ms", "0.6 x 4, 100 ms"]
    values = {
        "fixed-cap": (100, 100, 0), "token-budget": (90, 120, 0), "taper": (103, 100, 0), "branches-off": (99, 121, 0),
    }  # fmt: skip
    records = [
        Record("branch-surface", system, 0, "sustained_tokens_per_s", value, "", "simulated", {"cell": str(cell)})
        for system, cells in values.items() for cell, value in enumerate(cells)
    ]  # fmt: skip
    counted = {(each.system, each.metric): each.value for each in study.conclude(records)}
    assert counted["taper", "cells_won"] == pytest.approx(1 / 3) == counted["taper", "cells_lost"]
    assert counted["branches-off", "cells_won"] == 0.0 == counted["branches-off", "cells_lost"]
    assert study.conclude(records[-3:]) == []
