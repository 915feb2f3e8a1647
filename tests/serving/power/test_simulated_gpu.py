"""A simulated GPU: what it reports is the model's, and what disturbs it is planted."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.platforms.power import power_table
from wavetank.serving.power.architectures import architecture
from wavetank.serving.power.dvfs import UNLIMITED, GpuModel, PowerSetting
from wavetank.serving.power.harness import POWER_CAP, Harness
from wavetank.serving.power.simulated_gpu import SimulatedGpu, steady
from wavetank.sim.rng import stream

MODEL = GpuModel(table=power_table("H200-SXM"))
WORK = architecture("gqa").decode(8, 4096)
LOCKED = PowerSetting(clock_hz=1200e6)


def gpu(**changes):
    return SimulatedGpu(model=MODEL, **{"noise": 0.0, "excursions": 0.0} | changes)


def test_a_calm_run_reports_the_models_figures():
    for given in (UNLIMITED, LOCKED, PowerSetting(cap_w=400.0)):
        trace, truth = gpu().run(WORK, given, stream(0, "a")), MODEL.run(WORK, given)
        assert Harness().fault(trace) == ""
        assert trace.tokens / trace.ended_s == pytest.approx(truth.tokens_per_s)
        assert trace.energy_j / trace.tokens == pytest.approx(truth.joules_per_token)
        assert set(trace.clock_hz) == {truth.clock_hz}
        assert trace.integral_j() == pytest.approx(trace.energy_j, rel=1e-9)
        assert steady(MODEL, WORK, given) == truth
    assert set(gpu().run(WORK, PowerSetting(cap_w=400.0), stream(0, "a")).reasons) == {POWER_CAP}


def test_every_planted_excursion_is_rejected():
    for number in range(200):
        assert Harness().fault(gpu(excursions=1.0).run(WORK, LOCKED, stream(number, "x"))) != ""


def test_the_share_of_disturbed_runs_is_the_planted_one():
    disturbed = [
        len(set(gpu(excursions=0.3).run(WORK, LOCKED, stream(0, "x", i)).clock_hz)) > 1
        or gpu(excursions=0.3).run(WORK, LOCKED, stream(0, "x", i)).clock_hz[0] != 1200e6
        for i in range(2000)
    ]
    assert np.mean(disturbed) == pytest.approx(0.3, abs=0.04)


def test_counting_disturbed_runs_moves_the_reading_and_rejecting_them_does_not():
    draws = stream(1, "y")
    often = gpu(excursions=0.7)
    truth = MODEL.run(WORK, LOCKED).joules_per_token
    careless = Harness(rejecting=False, repeats=9).read(lambda: often.run(WORK, LOCKED, draws))
    careful = Harness(repeats=9, most_runs=100).read(lambda: often.run(WORK, LOCKED, draws))
    assert careful.joules_per_token == pytest.approx(truth, rel=1e-9)
    assert abs(careless.joules_per_token / truth - 1) > 0.01
    assert careful.rejected > 9


def test_noise_is_that_of_a_run():
    rates = [(lambda t: t.tokens / t.ended_s)(gpu(noise=0.01).run(WORK, LOCKED, stream(i, "n"))) for i in range(400)]
    assert np.std(rates) / np.mean(rates) == pytest.approx(0.01, rel=0.15)


def test_what_cannot_be_set_is_refused():
    with pytest.raises(BadValueError):
        gpu().run(WORK, PowerSetting(cap_w=50.0), stream(0, "z"))
    with pytest.raises(BadValueError):
        gpu(excursions=1.5)
