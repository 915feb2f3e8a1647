"""Stages, applications and platforms that make no sense are refused with what would."""

from __future__ import annotations

import dataclasses

import pytest
from tests.serving.workflows.conftest import application, platform

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.serving.workflows.interface import Application, Device, Stage, platform_of
from wavetank.serving.workflows.rivals import LeastLoaded
from wavetank.serving.workflows.simulate import simulate
from wavetank.workloads.workflows import Workflow


def test_a_stage_that_fits_nowhere_is_refused_with_what_would_fit():
    made = application(((),), (1.0,), models=("huge",))
    with pytest.raises(UnknownNameError):
        simulate([made], platform(), LeastLoaded())
    small = platform(room=1)
    small = type(small)(
        devices=small.devices, model_bytes={"a": 5e9}, token_bytes={"a": 0.0}, network_bytes_per_s=1.0
    )
    with pytest.raises(BadValueError, match="No device can compute this stage") as caught:
        simulate([application(((),), (1.0,))], small, LeastLoaded())
    assert "1.0 GB" in str(caught.value)


NAN = float("nan")


@pytest.mark.parametrize(
    "wrong",
    [
        {"load_bytes_per_s": 0.0}, {"load_bytes_per_s": NAN}, {"weights_bytes": -1.0}, {"weights_bytes": NAN},
        {"cache_bytes": -1.0}, {"prefill_per_s": {"a": 0.0}}, {"prefill_per_s": {}}, {"decode_per_s": {"a": NAN}},
        {"decode_per_s": {"a": -1.0}},
    ],
    ids=str,
)  # fmt: skip
def test_devices_whose_rates_or_memories_are_none_are_refused_instead_of_waited_for(wrong):
    good = {
        "name": "d", "weights_bytes": 1e9, "cache_bytes": 0.0, "load_bytes_per_s": 1e9, "prefill_per_s": {"a": 1.0},
        "decode_per_s": {"a": 1.0},
    }  # fmt: skip
    Device(**good)
    with pytest.raises(BadValueError):
        Device(**{**good, **wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        {"network_bytes_per_s": 0.0}, {"network_bytes_per_s": NAN}, {"merge_s": -1.0}, {"token_bytes": {"a": 1.0}},
        {"model_bytes": {"a": 0.0, "b": 1.0}}, {"token_bytes": {"a": NAN, "b": 1.0}}, {"devices": ()},
    ],
    ids=str,
)  # fmt: skip
def test_platforms_whose_sizes_or_network_are_none_are_refused(wrong):
    with pytest.raises(BadValueError):
        dataclasses.replace(platform(), **wrong)


def test_the_parts_of_a_stage_on_a_device_by_hand():
    device = platform((2.0,)).devices[0]
    stage = Stage(model="a", prompt_tokens=1000, output_tokens=30, prefix="p", prefix_tokens=600)
    # 2,000 tokens of a prompt per second, 20 of an answer.
    assert device.parts_s(stage, 30) == pytest.approx((0.3, 0.2 + 1.5))
    assert device.parts_s(stage, 50.0, reused_tokens=400) == pytest.approx((0.1, 0.2 + 2.5))


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt_tokens": 0}, {"output_tokens": 0}, {"most_shards": 0}, {"prefix_tokens": 11}, {"prefix_tokens": -1},
        {"expected_tokens": 0.0}, {"expected_tokens": float("inf")},
    ],
    ids=str,
)  # fmt: skip
def test_stages_that_make_no_sense_are_refused(wrong):
    with pytest.raises(BadValueError):
        Stage(**{"model": "a", "prompt_tokens": 10, "output_tokens": 1, **wrong})


def test_an_application_has_a_stage_for_every_task_and_a_time():
    workflow = Workflow(name="w", tasks=("x", "y"), parents=((), (0,)))
    stage = Stage(model="a", prompt_tokens=1, output_tokens=1)
    with pytest.raises(BadValueError, match="Every task needs a stage"):
        Application(workflow=workflow, stages=(stage,))
    for at in (-1.0, float("nan"), float("inf")):
        with pytest.raises(BadValueError, match="finite time"):
            Application(workflow=workflow, stages=(stage, stage), arrival_s=at)


def test_a_part_of_an_output_that_is_there_does_not_move():
    devices = platform((1.0, 1.0, 1.0), network=1e9)
    assert devices.transfer_s(4e9, (0,), 1) == pytest.approx(4.0)
    assert devices.transfer_s(4e9, (0, 1), 1) == pytest.approx(2.0)
    assert devices.transfer_s(4e9, (1,), 1) == 0.0


def test_a_platform_of_gpus_has_their_memory_and_rates_in_the_order_of_their_speed():
    found = platform_of(("H100-SXM", "L40S"), ("Llama-3.1-8B",), load_bytes_per_s=1e12)
    fast, slow = found.devices
    assert fast.decode_per_s["Llama-3.1-8B"] > slow.decode_per_s["Llama-3.1-8B"] > 0
    assert fast.weights_bytes > slow.weights_bytes
    # At most what the link carries.
    assert fast.load_bytes_per_s < 1e12
    assert [each.name for each in found.devices] == ["H100-SXM-0", "L40S-1"]
