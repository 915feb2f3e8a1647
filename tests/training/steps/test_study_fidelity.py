"""The study step-fidelity: what it runs, what the formula says, and what it refuses."""

import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.run.comparison import compare
from wavetank.training.steps.step_simulator import CompiledSteps
from wavetank.training.steps.study_fidelity import COLLECTIVES, RECORDED_RANKS, StepFidelity
from wavetank.workloads import datasets

SYSTEMS = ("step-simulator", "python-steps")


def test_the_formula_by_hand():
    study = StepFidelity(alpha_s=1.0, bytes_per_s=2.0, size_bytes=80)
    assert study.formula_s("all-reduce", 8) == 14 * (1.0 + 5.0)
    assert study.formula_s("all-to-all", 4) == 3 * (1.0 + 10.0)


def test_every_collective_is_within_the_rounding_of_its_bytes(tmp_path):
    result = compare("step-fidelity", systems=SYSTEMS, out=tmp_path, on="here")
    assert result.failures == ()
    errors = {(r.system, r.at["case"]): r.value for r in result.records if r.metric == "error"}
    assert len(errors) == 2 * (len(COLLECTIVES) * len(RECORDED_RANKS) + 1)
    largest = {r.system: r.value for r in result.records if r.metric == "largest_error"}
    assert largest == {system: max(v for (s, _), v in errors.items() if s == system) for system in SYSTEMS}
    assert 0 <= max(largest.values()) < 1e-6


def test_bytes_that_no_ring_can_share_out_evenly_show_as_an_error():
    # Five bytes in eight parts: each message carries a whole one.
    study = StepFidelity(size_bytes=5, bytes_per_s=1e6, alpha_s=0.0)
    found = study.measure(CompiledSteps(), 0)
    errors = {at["case"]: value for metric, value, at in found.rows if metric == "error"}
    assert errors["all-reduce, 8 ranks"] == pytest.approx(8 / 5 - 1)


def test_recorded_traces_give_the_same_times_but_for_recorded_sums():
    try:
        datasets.find("chakra-et")
    except WavetankError:
        pytest.skip("the data set chakra-et is not here")
    made, recorded = (
        {at["case"]: value for metric, value, at in StepFidelity(traces=traces).measure(CompiledSteps(), 0).rows
         if metric == "simulated_s"}
        for traces in ("made", "recorded")
    )  # fmt: skip
    ring = "ring of sends, 8 ranks"
    assert recorded.pop(ring) == pytest.approx(made.pop(ring) + 49e-6, rel=1e-12)
    assert recorded == made


def test_recorded_collectives_have_their_own_size():
    with pytest.raises(BadValueError, match="Recorded collectives have a size"):
        StepFidelity(traces="recorded", size_bytes=7).check()
    assert StepFidelity().check() is None
    assert StepFidelity().data() == {}
    assert "chakra-et" in StepFidelity(traces="recorded").data()
