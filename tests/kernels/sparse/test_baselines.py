"""The usual forms of a sparse product give scipy's result."""

import numpy as np
import pytest
import scipy.sparse as sp

from wavetank.errors import BadValueError
from wavetank.kernels.sparse import baselines
from wavetank.kernels.sparse.baselines import Coordinates, MergeCsr, RowSplit, SellCSigma
from wavetank.ledger import catalog
from wavetank.machine.threads import allowed_threads
from wavetank.workloads import matrices

FORMS = [
    RowSplit(), RowSplit(threads=3), MergeCsr(), MergeCsr(threads=5), SellCSigma(),
    SellCSigma(height=4, window=16), Coordinates(),
]  # fmt: skip
MATRICES = {
    "graph": matrices.rmat(10),
    "stencil": matrices.five_point_stencil(30),
    "one long row": matrices.one_long_row(500),
    "mostly empty": matrices.mostly_empty(500),
    "nothing": sp.csr_array((10, 4)),
    "one by one": sp.csr_array([[2.0]]),
    "no rows": sp.csr_array((0, 4)),
}


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("name", MATRICES)
def test_the_product_is_that_of_scipy(form, name):
    matrix = MATRICES[name]
    x = np.random.default_rng(2).standard_normal(matrix.shape[1])
    np.testing.assert_allclose(form.prepare(matrix, x)(), matrix @ x, rtol=1e-12, atol=1e-12)


def test_a_row_longer_than_a_share_is_summed_over_all_its_workers():
    matrix = sp.csr_array(np.ones((1, 1000)))
    assert MergeCsr(threads=4).prepare(matrix, np.ones(1000))().tolist() == [1000]


def test_small_matrices_wake_no_thread():
    small, large = baselines._threads_for(None, 1000), baselines._threads_for(None, 1 << 30)
    assert (small, large) == (1, allowed_threads())
    assert baselines._threads_for(3, 1000) == allowed_threads(3)


@pytest.mark.parametrize("options", ["height=0", "window=0", "threads=0"])
def test_parameters_out_of_range_are_refused(options):
    name, _, value = options.partition("=")
    with pytest.raises(BadValueError):
        catalog.system("sell-c-sigma").build(**{name: value})
