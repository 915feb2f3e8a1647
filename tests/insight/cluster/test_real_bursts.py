"""Real writes through a few writers wait as they should, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from wavetank.errors import BadValueError
from wavetank.insight.cluster.real_bursts import expected_share, real_share, written


def test_the_share_of_rounds() -> None:
    assert expected_share(64, 4) == 15 / 17 and expected_share(4, 8) == 0.0


def test_real_requests_wait_for_writers(tmp_path: Path) -> None:
    times = written(str(tmp_path / "one"), 48, 4096, 4)
    assert len(times) == 48 and len({came for came, _, _ in times}) == 1
    assert all(came <= begun <= done for came, begun, done in times)
    # Never more at a time than there are writers.
    assert max(sum(begun <= at < done for _, begun, done in times) for _, at, _ in times) <= 4
    assert list(tmp_path.iterdir()) == []


def test_two_processes_measure_one_minus_service_over_latency(tmp_path: Path) -> None:
    share, by_means = real_share(tmp_path, processes=2, requests=64, request_bytes=65_536, slots=4)
    assert share == pytest.approx(by_means, abs=1e-9)
    # Writes of a busy machine are not even: the rounds are met roughly.
    assert share == pytest.approx(15 / 17, abs=0.15)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_burst_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadValueError):
        real_share(tmp_path, processes=0, requests=1, request_bytes=1, slots=1)
    with pytest.raises(BadValueError):
        real_share(tmp_path, processes=1, requests=1, request_bytes=1, slots=0)
