from __future__ import annotations

from dataclasses import replace

import pytest

from wavetank.platforms import RooflineStepTime, calibrated_roofline, device, devices, model
from wavetank.platforms.calibration import calibration, family_of, said_of

FIELDS = {"flops_efficiency", "bandwidth_efficiency", "kv_bandwidth_efficiency"}


def test_every_family_names_devices_that_ship_and_no_device_is_in_two() -> None:
    fitted = calibration()
    named = [name for name, family in fitted.devices.items()]
    assert set(named) <= set(devices())
    assert set(fitted.devices.values()) == set(fitted.families) == set(fitted.measured)
    assert set(fitted.pooled) == FIELDS
    assert all(set(fields) <= FIELDS and fields for fields in fitted.families.values())


@pytest.mark.parametrize("name", devices())
def test_every_device_has_all_the_fields(name: str) -> None:
    step = calibrated_roofline(name, "Qwen3-30B-A3B", 2, expert_parallel=4)
    bare = RooflineStepTime(device=name, model="Qwen3-30B-A3B", tensor_parallel=2, expert_parallel=4)
    assert step == replace(bare, **calibration().terms(name))  # type: ignore[arg-type]
    assert step != bare
    assert name in said_of(name)


def test_a_family_counts_for_all_of_its_devices() -> None:
    assert family_of("H200-SXM") == family_of("H100-SXM") == "hopper"
    assert calibrated_roofline("H200-SXM", "Llama-3.1-8B").flops_efficiency == calibration().families["hopper"][
        "flops_efficiency"]  # fmt: skip


def test_what_a_family_lacks_is_pooled_and_that_is_said() -> None:
    fitted = calibration()
    assert "kv_bandwidth_efficiency" not in fitted.families["hopper"]
    step = calibrated_roofline("H100-SXM", "Llama-3.1-8B")
    assert step.kv_bandwidth_efficiency == fitted.pooled["kv_bandwidth_efficiency"]
    assert "KV cache is read with is that of the other families" in said_of("H100-SXM")
    assert "KV cache" not in said_of("RTX4090")


def test_a_device_of_nobodys_family_is_given_the_means_and_that_is_said() -> None:
    own = replace(device("H100-SXM"), name="my-card")
    assert family_of(own) == "my-card"
    step = calibrated_roofline(own, model("Llama-3.1-8B"))
    assert step.flops_efficiency == calibration().pooled["flops_efficiency"]
    assert said_of(own).startswith("Nothing was measured of my-card")
    assert said_of("B200-SXM").startswith("Nothing was measured of B200-SXM")
