"""When replicas fail: schedules, processes, and the recorded trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError, DataUnavailableError
from wavetank.sim.rng import stream
from wavetank.training.failures.failure_times import (
    DATA_SET,
    paper_schedule,
    poisson_failures,
    read_faults,
    recorded_failures,
)
from wavetank.workloads import datasets

DAY_S = 86_400.0


def written(folder: Path, events: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "fault_trace.json.gz").write_bytes(gzip.compress(json.dumps(events).encode()))
    return folder


def event(server: str, day: float, kind: str) -> dict[str, Any]:
    return {"node_id": server, "event_time": day, "event_type": kind, "fault_type": {}}


def test_the_papers_schedule_strikes_within_the_synchronisation() -> None:
    found = paper_schedule(5, 200, stream(0, "x"))
    assert found.every == 5
    assert len(found.places) == 200
    assert 0 <= found.places.min() < 0.05 < 0.95 < found.places.max() < 1


@pytest.mark.parametrize("bad", [(0, 1), (1, -1)])
def test_a_schedule_without_steps_is_refused(bad: tuple[int, int]) -> None:
    with pytest.raises(BadValueError, match="executed steps"):
        paper_schedule(*bad, stream(0, "x"))


def test_distances_of_memoryless_failures_have_the_mean_and_the_spread_of_an_exponential() -> None:
    found = poisson_failures(50, 5000.0, 7.0, 1e6, stream(1, "x"))
    gaps = np.diff(found.time_s)
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(100.0, rel=0.05)
    assert gaps.std() == pytest.approx(100.0, rel=0.05)
    assert np.allclose(found.back_s - found.time_s, 7.0)
    assert set(found.machine) == set(range(50))
    few = found.first(3)
    assert set(few.machine) == {0, 1, 2}
    assert len(few.time_s) == np.count_nonzero(found.machine < 3)


@pytest.mark.parametrize("bad", [(0.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, float("inf")), (float("nan"), 1.0, 1.0)])
def test_times_that_are_none_are_refused(bad: tuple[float, float, float]) -> None:
    with pytest.raises(BadValueError, match="fail after a time"):
        poisson_failures(2, *bad, stream(0, "x"))


def test_a_server_with_several_faults_at_a_time_is_away_from_the_first_to_the_last(tmp_path: Path) -> None:
    events = [
        event("a", 1, "fault_start"), event("b", 2, "fault_start"), event("a", 3, "fault_start"),
        event("a", 4, "fault_end"), event("a", 6, "fault_end"), event("a", 8, "fault_start"),
        event("a", 9, "fault_end"),
    ]  # fmt: skip
    servers, end_s = read_faults(written(tmp_path / "set", events))
    assert servers == (((1 * DAY_S, 6 * DAY_S), (8 * DAY_S, 9 * DAY_S)), ((2 * DAY_S, float("inf")),))
    assert end_s == 9 * DAY_S


def test_the_order_of_events_in_the_file_does_not_matter(tmp_path: Path) -> None:
    events = [
        event("a", 1, "fault_start"), event("a", 3, "fault_end"), event("b", 2, "fault_start"),
        event("a", 4, "fault_start"), event("b", 5, "fault_end"), event("a", 6, "fault_end"),
    ]  # fmt: skip
    servers, end_s = read_faults(written(tmp_path / "rising", events))
    assert servers == (((1 * DAY_S, 3 * DAY_S), (4 * DAY_S, 6 * DAY_S)), ((2 * DAY_S, 5 * DAY_S),))
    assert read_faults(written(tmp_path / "falling", events[::-1])) == (servers, end_s)


def test_faster_divides_all_times_and_servers_are_drawn(tmp_path: Path) -> None:
    folder = written(tmp_path / "set", [event("a", 1, "fault_start"), event("a", 3, "fault_end")])
    found = recorded_failures(400, 10.0, stream(0, "x"), folder)
    assert (found.time_s.tolist(), found.back_s.tolist()) == ([0.1 * DAY_S], [pytest.approx(0.3 * DAY_S)])
    assert found.horizon_s == pytest.approx(0.3 * DAY_S)
    # One server in four hundred has the fault: one job in four of a hundred servers meets it.
    met = sum(len(recorded_failures(100, 1.0, stream(seed, "x"), folder).time_s) for seed in range(200))
    assert 30 <= met <= 70


@pytest.mark.parametrize("bad", [(401, 1.0), (0, 1.0), (4, 0.0), (4, float("inf"))])
def test_more_servers_than_were_recorded_are_refused(bad: tuple[int, float]) -> None:
    with pytest.raises(BadValueError, match="recorded servers"):
        recorded_failures(*bad, stream(0, "x"), Path("nowhere"))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", gzip.compress(b"{"), gzip.compress(b"[1]"), gzip.compress(b"[]"), gzip.compress(b'[{"node_id": 1}]'),
        gzip.compress(json.dumps([event("a", float("nan"), "fault_start")]).encode()),
        gzip.compress(json.dumps([event("a", 1, "explosion")]).encode()), gzip.compress(b"[]")[:-6],
        gzip.compress(b"[]")[:10] + b"\xff" * 20, gzip.compress(b"[" * 200_000),
        gzip.compress(json.dumps([event("a", -1, "fault_start")]).encode()),
        gzip.compress(json.dumps([event("a", 1, "fault_end")]).encode()),
    ],
)  # fmt: skip
def test_damaged_traces_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "fault_trace.json.gz").write_bytes(content)
    with pytest.raises(BadFileError, match=r"fault_trace\.json\.gz"):
        read_faults(tmp_path)


def test_the_real_trace_has_what_its_source_says() -> None:
    try:
        folder = datasets.verify(DATA_SET)
    except DataUnavailableError:
        pytest.skip("needs the data set gpu-fault-trace")
    servers, end_s = read_faults(folder)
    assert len(servers) == 231
    assert end_s / DAY_S == pytest.approx(348.98, abs=0.01)
    absences = [each for server in servers for each in server]
    # Some ended within the resolution of the trace, 8.6 s.
    assert all(begin <= end < float("inf") for begin, end in absences)
    assert sum(begin == end for begin, end in absences) == 14
    # Of 584 faults two began on servers that were away.
    assert len(absences) == 582
    found = recorded_failures(400, 1.0, stream(0, "x"), folder)
    assert len(found.time_s) == 582
