"""Counts over a zoo: the saved share is that of a plain set, and the roofline of a call is its largest term."""

from __future__ import annotations

import itertools

import pytest

from wavetank.platforms.catalog import device
from wavetank.serving.profiling.database import Point
from wavetank.serving.profiling.measuring import Grid
from wavetank.serving.profiling.models import from_zoo, zoo
from wavetank.serving.profiling.operations import Operation, canonical
from wavetank.serving.profiling.predictors import FullProfiles, ReusedOperations, ShapeProfiles

torch = pytest.importorskip("torch", reason="torch is not installed")

from wavetank.serving.profiling.counting import call_seconds, count, distinct  # noqa: E402
from wavetank.serving.profiling.profiled import Variant  # noqa: E402

GRID, H100 = Grid.up_to(64, 8, 64), device("H100-SXM")


def test_the_saved_share_of_the_zoo_is_that_of_a_direct_count() -> None:
    """Check 6."""
    variant = Variant(dtype="bfloat16")
    models = {from_zoo(name): distinct(from_zoo(name), variant) for name in zoo()}
    every = [(each.signature, point) for each in itertools.chain(*models.values()) for point in GRID.points(each)]
    reused = count(models, GRID, ReusedOperations().reuse_key, H100)
    assert (reused.all_points, reused.points) == (len(every), len(set(every)))
    assert reused.saved == 1 - len(set(every)) / len(every)
    assert 0.3 < reused.saved < 0.7
    full = count(models, GRID, FullProfiles().reuse_key, H100)
    shapes = count(models, GRID, ShapeProfiles().reuse_key, H100)
    assert full.saved == full.saved_time == 0.0
    assert full.saved < shapes.saved < reused.saved
    # A model beside itself saves exactly half.
    llama = from_zoo("Llama-3.1-8B")
    twice = {llama: models[llama], from_zoo("Mistral-7B-v0.3"): models[llama]}
    assert count(twice, GRID, ReusedOperations().reuse_key, H100).saved == 0.5
    assert count(twice, GRID, ReusedOperations().reuse_key, H100).saved_time == pytest.approx(0.5)


def test_a_call_takes_its_arithmetic_its_traffic_or_a_launch() -> None:
    def linear(width: int) -> Operation:
        tensors = [{"t": "bfloat16", "d": [{"NUM_TOKS": 1}, width]}, {"t": "bfloat16", "d": [width, width], "w": 1}]
        return Operation("aten.linear.default", canonical({"a": tensors}))

    wide = 1 << 13
    few = call_seconds(linear(wide), GRID, Point(tokens=1), H100)
    assert few == pytest.approx((wide * wide + wide) * 2 / H100.hbm_bytes_per_s)
    many = call_seconds(linear(wide), GRID, Point(tokens=1 << 12), H100)
    assert many == pytest.approx(2 * wide * wide * (1 << 12) / H100.bf16_flops_per_s)
    assert call_seconds(linear(8), GRID, Point(tokens=1), H100) == 4e-6
    attention = {"a": [{"t": "bfloat16", "d": [{"NUM_TOKS": 1}, 32, 128]}, {"t": "bfloat16", "d": [1, 8, 128]}]}
    read = Operation("wavetank.cached_attention.default", canonical(attention))
    long = call_seconds(read, GRID, Point(decodes=64, context=8192), H100)
    assert long == pytest.approx((2 * 2 * 8 * 128 * 64 * 8192 + 2 * 2 * 32 * 128 * 64) / H100.hbm_bytes_per_s)
