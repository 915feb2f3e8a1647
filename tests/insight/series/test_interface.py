"""What a decomposition says of itself."""

import numpy as np
import pytest

from wavetank.insight.series.interface import Decisions, Decomposition
from wavetank.workloads.series import regular


def parts(scale):
    cycle = np.array([0.1, -0.3, 0.0, 0.0])
    return Decomposition(
        series=regular([1.0, 2.0, 3.0, 4.0]), scale=scale, level=np.array([1.0, 1.0, 2.0, 2.0]),
        trend=np.full(4, 0.5), cycles={2.0: cycle}, on={2.0: cycle != 0}, outlier=np.array([0.0, 0.0, 4.0, 0.0]),
        remainder=np.array([0.25, 0.0, 0.0, np.nan]), changes=(2,), periods=(),
    )  # fmt: skip


def test_the_total_is_the_sum_or_its_exponential():
    assert parts("linear").total()[:3] == pytest.approx([1.85, 1.2, 6.5])
    assert parts("log").total()[:3] == pytest.approx(np.exp([1.85, 1.2, 6.5]))
    assert np.isnan(parts("log").total()[3])
    assert parts("log").seasonal.tolist() == [0.1, -0.3, 0, 0]


def test_jumps_and_amplitudes_have_the_unit_of_the_scale():
    assert parts("linear").jump(2) == 1.0
    assert parts("log").jump(2) == pytest.approx(np.e - 1)
    assert parts("log").amplitude(2.0) == pytest.approx(0.2)


def test_nothing_is_fixed_by_default():
    assert Decisions() == Decisions(periods=None, changes=None, why="")
