"""Norms, sums, pooling, attention and views of parts are those of the whole, forward and backward."""

import pytest

pytest.importorskip("torch", reason="needs the library torch")

from tests.training.domains import cases

from wavetank.live.ranks import run_ranks


@pytest.mark.parametrize(("processes", "seed"), [(2, 0), (3, 1)])
def test_every_operation_is_that_of_one_process(processes, seed):
    for found in run_ranks(cases.others, processes, arguments={"seed": seed}, timeout_s=300.0):
        # Cumulative sums, and a linear layer that is cut along what it adds up, have no handler; all others have.
        assert found.pop("operations without a handler") == 1.0
        assert len(found) == 20
        assert {name: value for name, value in found.items() if not value < 1e-12} == {}
