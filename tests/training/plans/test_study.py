"""The study: every case, plans that are checked, links that can be changed, and words that are no case."""

import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.training.plans.piper import Piper
from wavetank.training.plans.rivals import Searched
from wavetank.training.plans.study import ParallelPlan

SMALL = {"cases": ("Mixtral-8x7B@64", "Qwen3-30B-A3B@32"), "ratios": (1.0,), "rows": (0.0,)}


def figures(system, **words):
    return {(name, *at.values()): value for name, value, at in ParallelPlan(**(SMALL | words)).measure(system, 0).rows}


def test_the_mean_is_that_of_all_cases_and_equal_seeds_give_equal_figures():
    found = figures(Piper())
    cases = [found["mfu_by_case", case] for case in SMALL["cases"]]
    assert found["mfu",] == pytest.approx((cases[0] * cases[1]) ** 0.5)
    again = figures(Piper())
    for each in (found, again):
        assert each.pop(("planning_s",)) > 0
    assert found == again


def test_shares_are_of_the_step_and_memory_is_kept():
    found = figures(Piper())
    assert 0 <= found["exchange_share",] < 1
    assert 0 <= found["bubble_share",] < 1
    assert 0 < found["memory_share",] <= 0.92
    assert 0 < found["fitting_share",] < 1
    assert found["fitting_share",] == figures(Searched())["fitting_share",]


def test_products_that_are_always_fast_and_equal_links_are_never_slower():
    found = figures(Piper())
    assert found["mfu_by_half_rows", 0.0] > found["mfu",]
    # Both cases have a group of nodes at most.
    assert found["mfu_by_bandwidth", 1.0] == pytest.approx(found["mfu",])


def test_the_links_between_groups_can_be_changed_and_latencies_left_out():
    levels = ParallelPlan(latency=False).platform(8.0).levels
    assert levels[2].bytes_per_s == 16 * levels[1].bytes_per_s / 8
    assert {level.alpha_s for level in levels} == {0.0}
    assert ParallelPlan().platform(0.0).levels[2].bytes_per_s == 16 * 4.8e10
    # A machine with one network level has no groups.
    supermuc = ParallelPlan(machine="SuperMUC-NG-2")
    assert supermuc.platform(8.0) == supermuc.platform(0.0)


@pytest.mark.parametrize("case", ["DeepSeek-V3", "DeepSeek-V3@", "@64", "Mixtral-8x7B@-8", "Mixtral-8x7B@0",
                                  "Mixtral-8x7B@12", "Llama-3.1-8B@64"])  # fmt: skip
def test_words_that_are_no_case_are_refused(case):
    with pytest.raises((BadValueError, UnknownNameError)):
        ParallelPlan(cases=(case,)).check()


def test_no_case_at_all_is_refused_and_the_notes_name_what_is_assumed():
    with pytest.raises(BadValueError, match="models"):
        ParallelPlan(cases=()).check()
    assert "assumed" in ParallelPlan().notes()[1]


def test_a_plan_that_does_not_fit_is_found():
    class Greedy:
        def plan(self, job):
            return max(Searched().candidates(job), key=lambda plan: (not plan.checkpoint, -plan.shards, plan.micro))

    with pytest.raises(BadValueError, match="does not fit"):
        figures(Greedy())


def test_a_model_that_does_not_fit_is_infeasible_and_there_is_no_mean_without_it():
    found = figures(Searched(shards=0), memory_share=0.6)
    assert found["infeasible_cases",] == 1
    assert ("mfu",) not in found
    assert [case for name, *case in found if name == "mfu_by_case"] == [["Qwen3-30B-A3B@32"]]
    assert figures(Piper())["infeasible_cases",] == 0
