"""The study of controllers: figures are those of the runs, and everybody meets the same."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.facility import closed_loop
from wavetank.insight.facility.control import ModelControl
from wavetank.insight.facility.rivals import FixedSetPoint
from wavetank.insight.facility.study import FacilityControl

STUDY = FacilityControl(training_days=6, days=1, noises=(0.0,), intervals=(), recirculations=(0.15,), requests="no",
                        weather="made")  # fmt: skip
PLAIN = ModelControl(forecast="none", headroom=0.25)


def figures(system, study: FacilityControl = STUDY, seed: int = 1):
    return {(name, *sorted(at.items())): value for name, value, at in study.measure(system, seed).rows}


def test_figures_are_those_of_the_runs() -> None:
    found = figures(ModelControl(forecast="ridge"))
    scene = STUDY.scene(1)
    runs = [closed_loop.run(ModelControl(forecast="ridge"), scene, STUDY.outside(scene, climate))
            for climate in ("phoenix", "chicago")]  # fmt: skip
    energy = sum(each.facility_kwh for each in runs)
    assert found["facility_energy",] == energy == found["facility_energy", ("noise", 0.1)]
    assert found["pue",] == energy / sum(each.servers_kwh for each in runs)
    assert found["facility_energy", ("climate", "chicago")] == runs[1].facility_kwh
    assert found["late",] == np.mean([each.late for each in runs])


def test_the_share_is_0_without_a_forecast_and_1_with_the_oracles() -> None:
    assert figures(PLAIN)["share_of_oracle",] == 0.0
    assert figures(ModelControl(forecast="oracle"))["share_of_oracle",] == 1.0
    ours = figures(ModelControl(forecast="persistence"))
    bounds = [figures(each)["facility_energy",] for each in (PLAIN, ModelControl(forecast="oracle"))]
    assert ours["share_of_oracle",] == pytest.approx((bounds[0] - ours["facility_energy",]) / (bounds[0] - bounds[1]))


def test_nobody_is_told_of_other_air() -> None:
    fixed, ours = figures(FixedSetPoint(supply_c=25.78)), figures(PLAIN)
    assert fixed["inlet_broken", ("recirculation", 0.15)] > 0.9 > fixed["inlet_broken", ("recirculation", 0.1)] == 0.0
    assert ours["inlet_broken", ("recirculation", 0.15)] < 0.001


def test_seeds_begin_on_other_days_with_other_loads() -> None:
    one, two = STUDY.scene(1), STUDY.scene(2)
    assert not np.array_equal(one.load, two.load)
    assert not np.array_equal(STUDY.outside(one, "chicago").air_c, STUDY.outside(two, "chicago").air_c)
    assert STUDY.data() == {} and len(STUDY.notes()) == 3


def test_a_run_without_a_decision_is_refused() -> None:
    with pytest.raises(BadValueError, match="one decision"):
        FacilityControl(days=0, interval_min=15).check()
