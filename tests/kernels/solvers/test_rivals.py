"""The peers and the oracle."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import WavetankError
from wavetank.kernels.solvers import kernel_matrix, relative_residual
from wavetank.kernels.solvers.rivals import NumpyConjugateGradient, OracleSplit, ScipyCholesky, ScipyConjugateGradient


@pytest.fixture(scope="module")
def system() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    a, b = kernel_matrix(rng.standard_normal((150, 3))), rng.standard_normal(150)
    a.flags.writeable = b.flags.writeable = False
    return a, b


@pytest.mark.parametrize("peer", [ScipyCholesky(), ScipyConjugateGradient(), NumpyConjugateGradient()])
def test_peers_solve(peer: ScipyCholesky | ScipyConjugateGradient, system: tuple[np.ndarray, np.ndarray]) -> None:
    found = peer.prepare(*system)()
    assert relative_residual(system[0], found.x, system[1]) <= (1e-10 if peer.method == "cholesky" else 1.01e-6)
    assert (found.iterations > 1) == (peer.method == "conjugate-gradient")


def test_a_peer_that_does_not_converge_takes_no_part() -> None:
    skew = np.eye(4, k=1) - np.eye(4, k=-1)
    with pytest.raises(WavetankError, match="did not converge"):
        ScipyConjugateGradient().prepare(skew, np.arange(1.0, 5.0))()


def test_the_oracle_takes_one_of_its_shares(system: tuple[np.ndarray, np.ndarray]) -> None:
    oracle = OracleSplit(shares=(0.25, 0.75), block=16)
    solution = oracle.prepare(*system)()
    assert solution.shares[0][1] in (0.3, 0.8)
    assert len(solution.borders) == 1
    assert relative_residual(system[0], solution.x, system[1]) <= 1e-10
