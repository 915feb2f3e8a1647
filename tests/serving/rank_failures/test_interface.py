"""Rates of links are whole numbers, and what they take is exact."""

from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.rank_failures.interface import InfeasibleError, Rates


def test_times_are_whole_picoseconds() -> None:
    rates = Rates(peer_bytes_per_s=3, host_bytes_per_s=2, disk_bytes_per_s=1)
    assert [rates.picoseconds(source, 10) for source in ("peer", "host", "disk")] == [3333333333333, 5 * 10**12, 10**13]


@pytest.mark.parametrize("given", [0, -1, 1.5, True, 10**16])
def test_rates_that_are_none_are_refused(given: int) -> None:
    with pytest.raises(BadValueError):
        Rates(disk_bytes_per_s=given)


def test_an_infeasible_plan_names_its_experts() -> None:
    assert InfeasibleError("No.", experts=(3, 1)).experts == (3, 1)
