"""The cost model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.kernels.solvers.balance import RuntimeSplit, StaticSplit
from wavetank.kernels.solvers.link import LinkModel
from wavetank.kernels.solvers.model import Balanced, CostModel


def test_a_device_alone_takes_its_share_of_the_operations() -> None:
    model = CostModel(host_rate=1e9, accelerator_rate=4e9)
    alone = model.seconds("cholesky", 128 * 64, 64, 1.0)
    # The diagonal blocks are updated by whole products, so there is a little more than N^3 / 3.
    assert 1.0 < alone / ((128 * 64) ** 3 / 3 / 4e9) < 1.03
    assert model.seconds("cholesky", 128 * 64, 64, 0.0) == pytest.approx(4 * alone)


def test_an_iteration_reads_the_triangle() -> None:
    model = CostModel(host_rate=1e9, accelerator_rate=4e9)
    assert model.seconds("conjugate-gradient", 640, 64, 1.0) == pytest.approx(55 * 64 * 64 * 8 / 4e9)


@settings(deadline=None, max_examples=40)
@given(st.floats(0.1, 10.0), st.sampled_from(["cholesky", "conjugate-gradient"]))
def test_both_come_close_to_the_bound_and_never_beyond(ratio: float, method: str) -> None:
    model = CostModel(host_rate=ratio, accelerator_rate=1.0)
    alone = model.seconds(method, 64 * 256, 64, 1.0)
    gain = alone / model.seconds(method, 64 * 256, 64, None)
    assert gain <= model.bound * (1 + 1e-9)
    assert gain >= 0.9 * model.bound
    assert model.bound == 1 + ratio


def test_the_runtime_law_follows_the_balance_in_the_model() -> None:
    model = CostModel(host_rate=1.0, accelerator_rate=3.0)
    best = model.cholesky_s(64 * 128, 64, Balanced(speed=3.0), 64)
    found = model.cholesky_s(64 * 128, 64, RuntimeSplit(share=0.5, every=1, ignore_rows=0))
    fixed = min(model.cholesky_s(64 * 128, 64, StaticSplit(share=p / 10)) for p in range(1, 10))
    assert found <= 1.02 * best
    assert found < fixed


def test_copies_cost_time() -> None:
    free = CostModel(host_rate=1e9, accelerator_rate=3e9)
    link = LinkModel(bytes_per_s=1e9, latency_s=1e-3)
    slow = CostModel(host_rate=1e9, accelerator_rate=3e9, link=link)
    assert slow.iteration_s(640, 64, 5) - free.iteration_s(640, 64, 5) == pytest.approx(2e-3 + 2 * 5 * 64 * 8 / 1e9)
    assert slow.iteration_s(640, 64, 5, "rows") > free.iteration_s(640, 64, 5, "rows")
    n, block = 10, 64
    law = StaticSplit(share=0.5)
    copied = sum((5 - k) * block * block * 8 / 1e9 for k in range(5)) + 9 * 1e-3
    assert slow.cholesky_s(n * block, block, law) - free.cholesky_s(n * block, block, law) == pytest.approx(copied)


def test_only_large_systems_are_worth_sharing() -> None:
    model = CostModel(
        host_rate=1e9, accelerator_rate=3e9, link=LinkModel(bytes_per_s=1e9, latency_s=1e-4), serial_s=1e-4
    )
    for method in ("cholesky", "conjugate-gradient"):
        pays = []
        for size in (128, 256, 512, 1024, 2048, 4096):
            alone = min(model.seconds(method, size, 64, share) for share in (0.0, 1.0))
            pays.append(model.seconds(method, size, 64, None) < alone)
        assert pays == sorted(pays)
        assert pays[-1]


def test_a_model_without_rates_is_refused() -> None:
    with pytest.raises(BadValueError):
        CostModel(host_rate=0.0, accelerator_rate=1.0)
