"""From a model to a step time and back: nothing is measured twice, and any torch module can be profiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wavetank.errors import UnknownNameError
from wavetank.machine import limits
from wavetank.platforms.links import Link
from wavetank.serving.profiling import measuring
from wavetank.serving.profiling.database import OperationDatabase, Point, Result
from wavetank.serving.profiling.models import DecoderConfig
from wavetank.serving.profiling.operations import Operation
from wavetank.serving.simulator.cluster import Cluster

torch = pytest.importorskip("torch", reason="torch is not installed")

from wavetank.serving.profiling import profiled  # noqa: E402
from wavetank.serving.profiling.measuring import Grid, Timing  # noqa: E402
from wavetank.serving.profiling.profiled import Variant, kept_step_time, profile, profile_operations, step_time  # noqa: E402
from wavetank.serving.profiling.tracing import RequestSizes, trace  # noqa: E402

SMALL = DecoderConfig(name="small", layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=48, vocab=50)
GRID = Grid.up_to(16, 4, 32)
QUICK = Timing(warm_ups=1, runs=3, tries=1, clock="processor")


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Operation]]:
    """Plant a time per point instead of measuring it, and note what was asked for."""
    asked: list[Operation] = []

    def sweep(operation: Operation, grid: Grid, points: list[Point], timing: Timing) -> dict[Point, Result]:
        asked.append(operation)
        times = {point: 1e-6 * (1 + sum(point)) for point in points}
        same = ("median_s", "mean_s", "min_s", "max_s", "spent_s")
        return {point: Result(**dict.fromkeys(same, s), std_s=0.0, runs=3) for point, s in times.items()}

    monkeypatch.setattr(measuring, "sweep", sweep)
    yield asked


def quick(config: DecoderConfig, database: OperationDatabase, **how: Any) -> Any:
    return profile(config, database, variant=Variant(threads=1, **how), grid=GRID, timing=QUICK)


def test_the_same_model_twice_measures_nothing_the_second_time(measured: list[Operation]) -> None:
    """Check 3."""
    with OperationDatabase(":memory:") as database:
        first = quick(SMALL, database)
        count = len(measured)
        second = quick(SMALL, database)
        assert count == len(first.swept.measured) == len(first.model.counts)
        assert len(measured) == count
        assert (second.swept.points_measured, len(second.swept.measured)) == (0, 0)
        assert second.swept.points_reused == first.swept.points_measured


def test_another_back_end_measures_attention_alone(measured: list[Operation]) -> None:
    """Check 3."""
    with OperationDatabase(":memory:") as database:
        quick(SMALL, database)
        measured.clear()
        quick(SMALL, database, backend="padded")
        assert [each.kind for each in measured] == ["attention"]
        quick(SMALL, database, dtype="bfloat16")
        assert len([each for each in measured if "linear" in each.name]) == 5


def test_a_model_that_shares_its_widths_measures_only_the_rest(measured: list[Operation]) -> None:
    """Check 2."""
    with OperationDatabase(":memory:") as database:
        quick(SMALL, database)
        measured.clear()
        quick(replace(SMALL, name="deep", layers=7), database)
        assert measured == []
        quick(replace(SMALL, name="wide", ffn=80), database)
        assert measured
        assert all("80" in each.structure or "160" in each.structure for each in measured)


def test_a_kept_profile_gives_the_same_step_time_and_can_be_simulated(tmp_path: Path) -> None:
    path = tmp_path / "operations.sqlite"
    with OperationDatabase(path) as database:
        done = quick(SMALL, database)
        table = step_time(database, done)
    assert done.calibrated
    with OperationDatabase(path) as database:
        again = kept_step_time(database, "small", variant=Variant(threads=1), clock="processor")
        assert again == table
        for name, how in (("smal", Variant(threads=1)), ("small", Variant(threads=1, dtype="bfloat16"))):
            with pytest.raises(UnknownNameError):
                kept_step_time(database, name, variant=how, clock="processor")
    from wavetank.serving.routing.vllm_default import VLLMDefault
    from wavetank.serving.simulator.simulate import simulate
    from wavetank.workloads.requests import RequestTrace

    requests = RequestTrace(arrival_s=np.zeros(3), prompt_tokens=np.full(3, 8), output_tokens=np.full(3, 4))
    assert (simulate(requests, Cluster(workers=1, step_time=table), VLLMDefault()).finish_s > 0).all()


def test_parts_of_several_devices_need_their_link() -> None:
    with OperationDatabase(":memory:") as database:
        done = quick(SMALL, database, tensor_parallel=2)
        assert not done.calibrated
        assert step_time(database, done, link=Link(bytes_per_s=1e9, latency_s=1e-6)).seconds(1, 8) > 0


def test_a_model_larger_than_memory_is_profiled_without_running_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiled, "available_bytes", lambda: 100)
    with OperationDatabase(":memory:") as database:
        done = quick(SMALL, database)
    assert not done.calibrated
    assert (done.model.step_s, done.model.sequence_s) == (0.0, 0.0)


def test_any_module_of_torch_is_profiled_by_the_same_way_in(measured: list[Operation]) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(24, 48), torch.nn.ReLU(), torch.nn.Linear(48, 24)).to("meta")

    def inputs(sizes: RequestSizes) -> tuple[Any, ...]:
        return (torch.empty(sizes.tokens, 24, device="meta"),)

    with OperationDatabase(":memory:") as database:
        done = profile_operations("mlp", trace(module, inputs), database, grid=GRID, timing=QUICK, step_s=1e-3)
        assert len(measured) == len(done.model.counts) == 3
        assert database.model("mlp", done.conditions, done.model.variant) == done.model


@pytest.mark.parametrize("threads", [0, 1])
def test_a_variant_uses_no_more_threads_than_it_is_given(threads: int) -> None:
    assert 1 <= Variant(threads=threads).used_threads <= max(threads, limits.usable_cores())
