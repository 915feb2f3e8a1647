"""Whether to share, and with which border to begin."""

from __future__ import annotations

from typing import Any

import pytest

from wavetank.kernels.solvers import rates
from wavetank.kernels.solvers.balance import PowerSplit, RuntimeSplit
from wavetank.kernels.solvers.cpu_device import CpuWorker
from wavetank.kernels.solvers.link import Link, LinkModel
from wavetank.kernels.solvers.pair import opened
from wavetank.kernels.solvers.rates import Rates, chosen_border, rates_of

LAW = RuntimeSplit()


class KnownPair:
    """A pair whose rates are given."""

    def __init__(self, model: LinkModel | None = None) -> None:
        self.specs = ("host", "accelerator")
        self.link = Link(model=model)


def chosen(
    monkeypatch: pytest.MonkeyPatch, known: Rates, blocks: int, law: Any = LAW, model: LinkModel | None = None
) -> int:
    monkeypatch.setattr(rates, "_known", {("host", "accelerator", 64): known})
    return chosen_border(KnownPair(model), 64 * blocks, 64, blocks, law)  # type: ignore[arg-type]


def test_a_pair_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_known", {})
    with opened((CpuWorker(repeats=3), CpuWorker())) as pair:
        first = rates_of(pair, 32)
        assert rates_of(pair, 32) is first
        assert rates_of(pair, 64) is not first
        assert min(first) > 0
    with opened((CpuWorker(repeats=3), CpuWorker())) as other:
        assert rates_of(other, 32) is first


def test_large_matrices_are_shared_and_small_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Rates(host_s=3e-4, accelerator_s=1e-4, copy_s=1e-6, call_s=1e-5)
    found = [chosen(monkeypatch, known, blocks) for blocks in range(1, 65)]
    shared = [0 < border < blocks for blocks, border in enumerate(found, start=1)]
    assert not any(shared[:4])
    assert shared == sorted(shared)
    assert shared[-1]


def test_dear_calls_and_slow_links_move_the_break_even(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Rates(host_s=3e-4, accelerator_s=1e-4, copy_s=1e-6, call_s=1e-5)
    assert 0 < chosen(monkeypatch, known, 20) < 20
    assert chosen(monkeypatch, known._replace(call_s=1e-2), 20) == 0
    assert chosen(monkeypatch, known._replace(copy_s=1e-2), 20) == 0
    assert chosen(monkeypatch, known, 20, model=LinkModel(bytes_per_s=1e6, latency_s=0.0)) == 0


def test_the_faster_device_works_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Rates(host_s=1e-4, accelerator_s=1.0, copy_s=1e-6, call_s=1e-5)
    assert chosen(monkeypatch, known, 20) == 20
    assert chosen(monkeypatch, known._replace(host_s=1.0, accelerator_s=1e-4), 20) == 0


@pytest.mark.parametrize(("host_s", "host_rows"), [(1.0, 70), (3.0, 49)])
def test_the_first_border_balances_the_first_column(
    monkeypatch: pytest.MonkeyPatch, host_s: float, host_rows: int
) -> None:
    known = Rates(host_s=host_s, accelerator_s=1.0, copy_s=1e-9, call_s=1e-9)
    # The host's share of the triangle is the square root of 1 / (1 + host_s), less its diagonal block.
    assert abs(chosen(monkeypatch, known, 100) - 1 - host_rows) <= 1


def test_the_power_law_begins_with_the_cheapest(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Rates(host_s=1e-4, accelerator_s=1e-4, copy_s=1e-6, call_s=1e-5)
    for law, border in (
        (PowerSplit(host_watts=1000.0, accelerator_watts=50.0), 0),
        (PowerSplit(host_watts=50.0, accelerator_watts=1000.0), 20),
    ):
        assert chosen(monkeypatch, known, 20, law) == border
    both = PowerSplit(host_watts=1.0, accelerator_watts=1.0, idle_watts=50.0, host_only_factor=50.0)
    assert 0 < chosen(monkeypatch, known, 20, both) < 20
