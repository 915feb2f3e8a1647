"""The study step-fidelity: what it runs, what the formula says, and what it refuses."""

import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.run.comparison import compare
from wavetank.training.steps.rivals import BusiestRank
from wavetank.training.steps.step_simulator import CompiledSteps
from wavetank.training.steps.study_fidelity import COLLECTIVES, RECORDED_RANKS, StepFidelity
from wavetank.workloads import datasets

SYSTEMS = ("step-simulator", "python-steps")


def test_the_formula_by_hand():
    study = StepFidelity(alpha_s=1.0, bytes_per_s=2.0, size_bytes=80)
    assert study.formula_s("all-reduce", 8) == 14 * (1.0 + 5.0)
    assert study.formula_s("all-to-all", 4) == 3 * (1.0 + 10.0)


def test_every_collective_is_within_the_rounding_of_its_bytes(tmp_path):
    result = compare("step-fidelity", systems=SYSTEMS, plans=(), out=tmp_path, on="here", seeds=1)
    assert result.failures == ()
    errors = {(r.system, r.at["case"]): r.value for r in result.records if r.metric == "error"}
    assert len(errors) == 2 * (len(COLLECTIVES) * len(RECORDED_RANKS) + 1)
    largest = {r.system: r.value for r in result.records if r.metric == "largest_error"}
    assert largest == {system: max(v for (s, _), v in errors.items() if s == system) for system in SYSTEMS}
    assert 0 <= max(largest.values()) < 1e-6


def test_bytes_that_no_ring_can_share_out_evenly_show_as_an_error():
    # Five bytes in eight parts: each message carries a whole one.
    study = StepFidelity(plans=(), size_bytes=5, bytes_per_s=1e6, alpha_s=0.0)
    found = study.measure(CompiledSteps(), 0)
    errors = {at["case"]: value for metric, value, at in found.rows if metric == "error"}
    assert errors["all-reduce, 8 ranks"] == pytest.approx(8 / 5 - 1)


def test_recorded_traces_give_the_same_times_but_for_recorded_sums():
    try:
        datasets.find("chakra-et")
    except WavetankError:
        pytest.skip("the data set chakra-et is not here")
    made, recorded = (
        {at["case"]: value for metric, value, at in study.measure(CompiledSteps(), 0).rows if metric == "simulated_s"}
        for study in (StepFidelity(plans=(), traces="made"), StepFidelity(plans=(), traces="recorded"))
    )  # fmt: skip
    ring = "ring of sends, 8 ranks"
    assert recorded.pop(ring) == pytest.approx(made.pop(ring) + 49e-6, rel=1e-12)
    assert recorded == made


def test_recorded_collectives_have_their_own_size():
    with pytest.raises(BadValueError, match="Recorded collectives have a size"):
        StepFidelity(plans=(), traces="recorded", size_bytes=7).check()
    assert StepFidelity().data() == {}
    assert "chakra-et" in StepFidelity(traces="recorded").data()


def test_real_steps_are_predicted_from_steps_with_other_rows():
    pytest.importorskip("torch", reason="needs the library torch")
    study = StepFidelity(plans=("data-parallel", "1f1b"), width=64, layers=2, microbatches=2, turns=2,
                         recorded_rows=(32, 64), other_rows=(96,))  # fmt: skip
    study.check()
    found = study.measure(CompiledSteps(), 0)
    by_plan = {at["plan"]: value for metric, value, at in found.rows if metric == "step_error" and at}
    assert set(by_plan) == {"data-parallel", "1f1b"}
    overall = [value for metric, value, at in found.rows if metric == "step_error" and not at]
    assert overall == [pytest.approx(sum(by_plan.values()) / 2)]
    times = {
        (metric, at["plan"], at["rows"]): value
        for metric, value, at in found.rows
        if metric in ("predicted_s", "measured_s")
    }
    # The machine may be slow, but a prediction is of the size of a step, and not one of the measured times itself.
    for plan in by_plan:
        predicted, measured = times["predicted_s", plan, 96], times["measured_s", plan, 96]
        assert 0.1 < predicted / measured < 10
        assert by_plan[plan] == pytest.approx(abs(predicted / measured - 1))
    # All systems are held against the same steps.
    again, first = (
        [row for row in each.rows if row[0] == "measured_s"] for each in (study.measure(BusiestRank(), 0), found)
    )
    assert again == first


def test_steps_that_cannot_be_predicted_or_run_are_refused():
    pytest.importorskip("torch", reason="needs the library torch")
    for wrong in (
        {"recorded_rows": (128,)}, {"other_rows": ()}, {"other_rows": (128,)}, {"layers": 3}, {"other_rows": (130,)},
    ):  # fmt: skip
        with pytest.raises(BadValueError):
            StepFidelity(**wrong).check()
    assert StepFidelity(plans=(), layers=3).check() is None
