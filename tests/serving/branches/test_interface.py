"""What controllers see, and controllers of plain Python in the engine."""

from dataclasses import dataclass

import numpy as np
import pytest
from tests.serving.branches.conftest import line, line_step

from wavetank.errors import WavetankError
from wavetank.serving.branches.interface import view_of
from wavetank.serving.branches.rivals import Eager, FixedCap
from wavetank.serving.branches.steps import Engine, simulate_branches


@dataclass(frozen=True)
class PythonCap:
    """At most two branches of a request, in plain Python."""

    def parameters(self):
        return np.array([2.0])

    def choose(self, view, step, table, predictor, state, parameters, admitted):
        wide = dict.fromkeys(range(view.deadline_s.size), 1)
        n = view.request.size
        for i in [(k + view.step) % n for k in range(n)]:
            r = int(view.request[i])
            if wide[r] < parameters[0]:
                wide[r] += 1
                admitted[i] = 1
        return int(admitted.sum())


@dataclass(frozen=True)
class Wrong:
    """Says another number than it admits, or admits what it may not."""

    value: int
    count: int

    def parameters(self):
        return np.zeros(0)

    def choose(self, view, step, table, predictor, state, parameters, admitted):
        admitted[0] = self.value
        return self.count


def test_one_number_of_a_view_stands_for_all_rows():
    view = view_of(deadline_s=[0.2, 0.3], request=[0, 0, 1], context=[5, 6, 7], protected_left=9.0)
    assert view.protected_left.tolist() == [9.0, 9.0]
    assert view.request.dtype == np.int64 and view.left.shape == (3,)


def test_a_controller_of_plain_python_gives_the_schedule_of_the_compiled_one(busy):
    engine = Engine(kv_tokens=20_000)
    mine = simulate_branches(busy, engine, line_step(), PythonCap(), line())
    compiled = simulate_branches(busy, engine, line_step(), FixedCap(cap=2), line())
    assert mine.serving.finish_s.tolist() == compiled.serving.finish_s.tolist()
    assert mine.serving.finish_s.tolist() != simulate_branches(
        busy, engine, line_step(), Eager(), line()
    ).serving.finish_s.tolist()


@pytest.mark.parametrize(("value", "count"), [(1, 2), (0, 1), (2, 1), (-1, 0)])
def test_a_controller_that_admits_what_it_cannot_is_named(busy, value, count):
    with pytest.raises(WavetankError, match="Wrong"):
        simulate_branches(busy, Engine(), line_step(), Wrong(value, count), line())
