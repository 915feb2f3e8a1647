"""The study step-simulator-speed: its cases, its records, and what it refuses."""

import numpy as np
import pytest

from wavetank.errors import WavetankError
from wavetank.run.comparison import compare
from wavetank.sim.steps import StepTimes
from wavetank.training.steps.study import CASES, FORMULA, STAGES_PER_LINK, StepSimulatorSpeed

SYSTEMS = ("step-simulator", "closed-form-steps", "python-steps")


def test_the_anchor_is_131072_passes_of_which_the_last_ends_by_the_closed_form():
    case = StepSimulatorSpeed().case("ordered", 0)
    assert len(case.data.step.graph) == 131_072
    assert not case.data.step.graph.prepared().shares_links
    assert case.data.end_ps.max() == (512 + 127) * 3_000_000_000


def test_eight_stages_share_a_link_and_no_two_operations_are_alike():
    study = StepSimulatorSpeed(stages=16, microbatches=4)
    graph = study.case("shared", 1).data.step.graph
    sends = graph.link >= 0
    assert np.array_equal(graph.link[sends], graph.rank[sends] // STAGES_PER_LINK)
    assert sends.sum() == 2 * 15 * 4
    assert len(set(graph.duration_ps.tolist())) == len(graph)
    other = study.case("shared", 2).data.step.graph
    assert not np.array_equal(graph.duration_ps, other.duration_ps)


def test_every_system_has_a_rate_in_every_case_that_it_can_answer(tmp_path):
    result = compare(
        "step-simulator-speed", stages=4, microbatches=8, rounds=1, systems=SYSTEMS, out=tmp_path, on="here"
    )
    assert result.failures == ()
    rates = {(r.system, r.at["case"]): r.value for r in result.records if r.metric == "operations_per_s"}
    assert set(rates) == {(system, case) for system in SYSTEMS for case in CASES if system != FORMULA}
    took = {(r.system, r.at["case"], r.seed): r.value for r in result.records if r.metric == "time_s"}
    graph = StepSimulatorSpeed(stages=4, microbatches=8).case("shared", 0).data.step.graph
    # A formula takes time and runs no operations; there is none for steps that share links.
    assert {each[:2] for each in took} == {*rates, (FORMULA, "ordered")}
    key = ("python-steps", "shared")
    assert rates[key] in [pytest.approx(len(graph) / took[each]) for each in took if each[:2] == key]
    prepared = {r.system for r in result.records if r.metric == "prepare_s" and r.value > 0}
    assert prepared == set(SYSTEMS)


def test_wrong_times_and_a_wrong_makespan_take_no_part():
    study = StepSimulatorSpeed(stages=2, microbatches=2)
    case = study.case("ordered", 0)
    right = case.data.end_ps
    assert study.verify(case, "good", StepTimes(right, right)) is None
    assert study.verify(case, "formula", int(right.max())) is None
    for wrong in (StepTimes(right + np.eye(1, right.size, 2, dtype=np.int64)[0], right), int(right.max()) + 1):
        with pytest.raises(WavetankError, match="hasty gives other times than the reference"):
            study.verify(case, "hasty", wrong)
