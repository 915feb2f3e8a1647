"""Whether to share, and with which border to begin."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from wavetank.errors import BadValueError
from wavetank.kernels.solvers import rates
from wavetank.kernels.solvers.balance import PowerSplit, RuntimeSplit
from wavetank.kernels.solvers.cpu_device import CpuWorker
from wavetank.kernels.solvers.link import Link, LinkModel
from wavetank.kernels.solvers.pair import Pair, opened
from wavetank.kernels.solvers.rates import Rates, RatesProfile, chosen_border, rates_of
from wavetank.machine import profiles

LAW = RuntimeSplit()
SPECS = (CpuWorker(repeats=3), CpuWorker())
FAST = Rates(host_s=3e-4, accelerator_s=1e-4, copy_s=1e-6, call_s=1e-5)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the store be empty, and nothing be known."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(profiles, "_said", set())
    monkeypatch.setattr(rates, "_known", {})
    return tmp_path / "wavetank" / "profiles"


def planted(**changed: Any) -> RatesProfile:
    return RatesProfile(**{"rates": {32: FAST}, "conditions": rates.conditions_of(SPECS), **changed})  # type: ignore[arg-type]


class UnmeasuredPair(Pair):
    """A pair that must not be measured."""

    def __init__(self) -> None:
        self.specs = SPECS

    def at_once(self, *_: Any) -> Any:
        raise AssertionError("measured")


def test_rates_that_were_kept_are_used_and_nothing_is_measured(store: Path) -> None:
    assert rates.keep(planted()) is not None
    assert rates_of(UnmeasuredPair(), 32) == FAST
    # Another pair, and another size of blocks, are none of those.
    with pytest.raises(AssertionError, match="measured"):
        rates_of(UnmeasuredPair(), 64)
    assert rates.kept((CpuWorker(), CpuWorker())) is None
    assert [each.kind for each in profiles.kept()[0]] == ["solvers"]


def test_what_a_solve_measures_is_not_kept(store: Path) -> None:
    with opened(SPECS) as pair:
        assert min(rates_of(pair, 32)) > 0
    assert not store.exists()


@pytest.mark.parametrize("disturbed", [{"spread": 0.31}, {"others_cores": 1000.0}])
def test_a_busy_machine_s_rates_are_refused_and_what_was_kept_stays(disturbed: Any, store: Path) -> None:
    rates.keep(planted())
    with pytest.raises(BadValueError, match="busy"):
        rates.keep(planted(rates={32: FAST._replace(host_s=1.0)}, **disturbed))
    assert rates_of(UnmeasuredPair(), 32) == FAST


@pytest.mark.parametrize(
    "content",
    [
        {}, {"rates": {}, "spread": 0.0, "others_cores": 0.0},
        {"rates": {"32": [1.0, 1.0, 1.0]}, "spread": 0.0, "others_cores": 0.0},
        {"rates": {"32": [0.0, 1.0, 1.0, 1.0]}, "spread": 0.0, "others_cores": 0.0},
        {"rates": {"-1": [1.0, 1.0, 1.0, 1.0]}, "spread": 0.0, "others_cores": 0.0},
        {"rates": {"32": [1.0, 1.0, 1.0, 1.0]}, "spread": 9.0, "others_cores": 0.0},
        {"rates": {"32": "1234"}, "spread": None, "others_cores": 0.0}, {"rates": [1], "spread": 0, "others_cores": 0},
    ],
)  # fmt: skip
def test_a_profile_that_no_measurement_gives_counts_as_none(content: Any, store: Path) -> None:
    conditions = rates.conditions_of(SPECS)
    profiles.keep(profiles.Profile("solvers", rates.SolverRates.version, conditions, content))
    assert rates.kept(SPECS) is None
    with opened(SPECS) as pair:
        assert min(rates_of(pair, 32)) > 0


def test_a_damaged_file_costs_a_measurement_and_a_warning(store: Path) -> None:
    path = rates.keep(planted())
    assert path is not None
    path.write_text(path.read_text()[:100])
    with opened(SPECS) as pair, pytest.warns(RuntimeWarning, match="damaged"):
        assert min(rates_of(pair, 32)) > 0


def test_a_pair_is_measured_for_the_store(monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    monkeypatch.setattr(rates, "BLOCKS", (16, 32))
    monkeypatch.setattr(rates, "_ROUNDS", 3)
    said: list[str] = []
    found = rates.measure(SPECS, report=said.append)
    assert said == ["blocks of 16 rows", "blocks of 32 rows"]
    assert set(found.rates) == {16, 32}
    assert all(min(each) > 0 for each in found.rates.values())
    assert found.conditions["host"] == "1 thread(s), each block 3 time(s)"
    rates.keep(RatesProfile(rates=found.rates, conditions=found.conditions))
    assert rates_of(UnmeasuredPair(), 32) == found.rates[32]


def test_solves_at_once_measure_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most = [0], [0]

    def measured(pair: Any, block: int) -> Rates:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.02)
        inside[0] -= 1
        return FAST

    monkeypatch.setattr(rates, "_measured", measured)
    pool = [threading.Thread(target=rates_of, args=(UnmeasuredPair(), block)) for block in (8, 8, 16, 16)]
    for each in pool:
        each.start()
    for each in pool:
        each.join()
    assert most == [1]
    assert len(rates._known) == 2


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
