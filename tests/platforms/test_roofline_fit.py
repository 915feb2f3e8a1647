from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from wavetank.errors import BadValueError, DataUnavailableError
from wavetank.platforms import RooflineStepTime
from wavetank.platforms.calibration import calibration
from wavetank.platforms.roofline_fit import (
    BATCHES,
    FittedEfficiencies,
    MeasuredSteps,
    fit_roofline,
    linear_layers,
    measured_steps,
)
from wavetank.sim.rng import stream

SHARED = {"overlap": 0.6, "layer_s": 2e-5, "expert_efficiency": 0.4}
ONE = {"flops_efficiency": 0.55, "bandwidth_efficiency": 0.9, "kv_bandwidth_efficiency": 0.7}
OTHER = {"flops_efficiency": 0.8, "bandwidth_efficiency": 0.65}
TOKENS = (1, 16, 64, 256, 512, 2048)


def made(device: str, model: str, family: str, terms: dict[str, float], *, noise: float = 0.0) -> MeasuredSteps:
    """Steps of an engine that has these figures."""
    roofline = RooflineStepTime(device=device, model=model)
    true = replace(roofline, overhead_s=0.0, **SHARED, **terms)  # type: ignore[arg-type]
    seconds = np.array([true.seconds(*batch) for batch in BATCHES])
    scatter = np.exp(noise * stream(0, "made steps").standard_normal(seconds.size))
    return MeasuredSteps(roofline=roofline, family=family, seconds=seconds * scatter)


def made_linear(device: str, model: str, family: str, terms: dict[str, float]) -> MeasuredSteps:
    roofline = RooflineStepTime(device=device, model=model)
    true = replace(roofline, **SHARED, **terms)  # type: ignore[arg-type]
    seconds = np.array([true.linear_layers_s(n) for n in TOKENS])
    return MeasuredSteps(roofline=roofline, family=family, seconds=seconds, tokens=TOKENS)


def test_the_fit_finds_the_figures_that_steps_were_made_with() -> None:
    found = fit_roofline([
        made("RTXPRO6000", "Qwen3-30B-A3B", "one", ONE),
        made("RTXPRO6000", "Llama-3.1-8B", "one", ONE),
        made_linear("A100-SXM-80GB", "Llama-2-7B", "other", OTHER),
        made_linear("A100-SXM-80GB", "Llama-3.1-70B", "other", OTHER),
    ])  # fmt: skip
    assert dict(found.shared) == pytest.approx(SHARED, rel=0.02)
    assert dict(found.families["one"]) == pytest.approx(ONE, rel=0.02)
    assert dict(found.families["other"]) == pytest.approx(OTHER, rel=0.02)


def test_noise_moves_the_figures_little() -> None:
    found = fit_roofline([
        made("RTXPRO6000", "Qwen3-30B-A3B", "one", ONE, noise=0.05),
        made("RTXPRO6000", "Llama-3.1-8B", "one", ONE, noise=0.05),
    ])  # fmt: skip
    assert dict(found.families["one"]) == pytest.approx(ONE, rel=0.1)


def test_an_unknown_family_is_given_geometric_means_of_what_is_known() -> None:
    fitted = FittedEfficiencies(shared=SHARED, families={"one": ONE, "other": OTHER})
    assert fitted.pooled["flops_efficiency"] == pytest.approx((0.55 * 0.8) ** 0.5)
    assert fitted.pooled["kv_bandwidth_efficiency"] == pytest.approx(0.7)
    assert fitted.terms("third") == {**SHARED, **fitted.pooled}
    assert fitted.terms("other")["kv_bandwidth_efficiency"] == pytest.approx(0.7)
    assert fitted.terms("one") == {**SHARED, **ONE}


def test_linear_layers_alone_say_nothing_of_attention() -> None:
    with pytest.raises(BadValueError, match="whole layers"):
        fit_roofline([made_linear("A100-SXM-80GB", "Llama-2-7B", "other", OTHER)])


def test_what_ships_is_what_a_fit_to_the_data_sets_gives() -> None:
    try:
        measured = measured_steps()
    except DataUnavailableError as error:
        pytest.skip(f"the data sets are not on this machine: {error.problem}")
    found, shipped = fit_roofline(measured), calibration()
    assert dict(found.pooled) == pytest.approx(shipped.pooled, rel=2e-3)
    assert dict(found.shared) == pytest.approx(
        {name: shipped.shared[name] for name in ("overlap", "layer_s", "expert_efficiency")}, rel=2e-3
    )
    for family, fields in shipped.families.items():
        assert dict(found.families[family]) == pytest.approx(fields, rel=2e-3)
    # Degrees of tensor parallelism that the fit never saw.
    for device, degree in (("H100-SXM", 4), ("A100-SXM-80GB", 8)):
        errors = np.expm1(linear_layers(device, "Llama-3.1-70B", degree).errors(shipped.terms(device)))
        assert abs(errors.mean()) < 0.1

