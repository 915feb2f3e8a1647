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


def test_names_of_arguments_numbers_before_tensors_and_other_types_mean_what_torch_means():
    for found in run_ranks(cases.written_otherwise, 2, arguments={"seed": 4}, timeout_s=300.0):
        assert found.pop("handled")
        assert found.pop("single precision is kept and handled")
        assert found.pop("single precision") < 1e-5
        kept, same, far, sloped = found.pop("neighbours in single precision")
        assert kept
        assert same
        assert far < 1e-5
        assert sloped
        assert len(found) == 6
        assert {name: value for name, value in found.items() if not value < 1e-12} == {}
