"""The solver as users call it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.io import mmread

from wavetank.errors import BadValueError, DataUnavailableError, UnknownNameError
from wavetank.kernels.solvers import (
    BlockTriangle,
    CpuWorker,
    HeteroSolver,
    NotConvergedError,
    NotPositiveDefiniteError,
    RuntimeSplit,
    TorchDevice,
    kernel_matrix,
    kernel_triangle,
    relative_residual,
    solve_spd,
)
from wavetank.kernels.solvers.covariance import mass_spring_damper, windows
from wavetank.kernels.solvers.solve import METHODS, default_block
from wavetank.machine import limits as machine
from wavetank.machine.threads import allowed_threads
from wavetank.workloads import datasets

BOUNDS = {"cholesky": 1e-10, "conjugate-gradient": 1e-6}


def process(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the covariance matrix and the answers of a Gaussian process; both read-only."""
    force, position = mass_spring_damper(size)
    a = kernel_matrix(windows(force, 6))
    a.flags.writeable = position.flags.writeable = False
    return a, position


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("share", [p / 10 for p in range(11)])
@pytest.mark.parametrize(("size", "block"), [(96, 16), (97, 16), (97, 64), (50, 128)])
def test_the_residual_is_small_for_every_share_and_block(method: str, share: float, size: int, block: int) -> None:
    a, b = process(size)
    x = solve_spd(a, b, method=method, split=share, block=block, devices=(CpuWorker(repeats=2), CpuWorker()))
    assert relative_residual(a, x, b) <= BOUNDS[method]


@pytest.mark.parametrize(("method", "law"), list(itertools.product(METHODS, ["runtime", "power"])))
def test_the_residual_is_small_under_every_law(method: str, law: str) -> None:
    a, b = process(500)
    solution = HeteroSolver(method=method, law=law, share=0.5, block=16, host_repeats=80).solve(a, b)
    assert relative_residual(a, solution.x, b) <= BOUNDS[method]
    assert len(solution.borders) > 1
    assert solution.converged
    assert all(0.0 <= share <= 1.0 for _, share in solution.shares)


@pytest.mark.parametrize("method", METHODS)
def test_the_source_s_own_settings_work(method: str) -> None:
    a, b = process(400)
    solver = HeteroSolver(
        method=method, share=0.45, block=16, every=10, host_time_factor=1.2, ownership="rows", host_repeats=2
    )
    assert relative_residual(a, solver.solve(a, b).x, b) <= BOUNDS[method]


def test_scipy_gives_the_same() -> None:
    from scipy.linalg import solve

    a, b = process(300)
    expected = solve(a, b, assume_a="pos")
    assert np.allclose(solve_spd(a, b), expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())


@pytest.mark.parametrize("method", METHODS)
def test_several_right_hand_sides(method: str) -> None:
    a, b = process(90)
    sides = np.stack([b, np.ones(90), np.zeros(90)], axis=1)
    x = solve_spd(a, sides, method=method)
    assert x.shape == (90, 3)
    assert relative_residual(a, x, sides) <= BOUNDS[method]
    assert not x[:, 2].any()


@pytest.mark.parametrize("method", METHODS)
def test_a_triangle_is_taken_as_it_is(method: str) -> None:
    force, b = mass_spring_damper(130)
    triangle = kernel_triangle(windows(force, 6), block=32)
    before = triangle.data.copy()
    for devices in ((CpuWorker(), CpuWorker()), (CpuWorker(), TorchDevice(device="cpu"))):
        if isinstance(devices[1], TorchDevice):
            pytest.importorskip("torch")
        x = solve_spd(triangle, b, method=method, devices=devices)
        assert relative_residual(triangle, x, b) <= BOUNDS[method]
    assert np.array_equal(triangle.data, before)


@pytest.mark.parametrize("method", METHODS)
def test_inputs_are_not_modified(method: str) -> None:
    a, b = process(80)
    a, b = a.copy(), b.copy()
    kept = a.copy(), b.copy()
    solve_spd(a, b, method=method)
    assert np.array_equal(a, kept[0])
    assert np.array_equal(b, kept[1])


def test_any_layout_and_type_will_do() -> None:
    a = np.array([[4, 2], [2, 3]])
    for matrix in (a, a.astype(np.float32), np.asfortranarray(a.astype(float)), np.repeat(a, 2, axis=1)[:, ::2]):
        assert np.allclose(solve_spd(matrix, [2, 5]), [-0.5, 2.0])


def test_tensors_come_back_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    x = solve_spd(torch.tensor([[4.0, 2.0], [2.0, 3.0]]), torch.tensor([2.0, 5.0]))
    assert isinstance(x, torch.Tensor)
    assert torch.allclose(x, torch.tensor([-0.5, 2.0], dtype=torch.float64))


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_a_matrix_that_is_not_positive_definite_is_refused_with_its_pivot(share: float) -> None:
    a = np.eye(100)
    a[70, 70] = -0.25
    with pytest.raises(NotPositiveDefiniteError) as caught:
        solve_spd(a, np.ones(100), split=share, block=16)
    assert caught.value.given == "pivot 70 (counted from 0) is -0.25"
    with pytest.raises(NotPositiveDefiniteError, match="positive definite"):
        solve_spd(a, np.ones(100), method="conjugate-gradient", split=share, block=16)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("method", METHODS)
def test_an_entry_that_is_not_finite_is_refused(method: str, share: float) -> None:
    a = np.eye(100)
    a[80, 3] = a[3, 80] = np.nan
    with pytest.raises(BadValueError, match="not finite"):
        solve_spd(a, np.ones(100), method=method, split=share, block=16)
    b = np.ones(100)
    b[7] = np.inf
    with pytest.raises(BadValueError, match="not finite") as caught:
        solve_spd(np.eye(100), b, method=method, split=share)
    assert caught.value.where == "b[7]"


@pytest.mark.parametrize("place", [(5, 90), (90, 5), (99, 98)])
def test_an_asymmetric_matrix_is_refused(place: tuple[int, int]) -> None:
    a = np.eye(100) * 2
    a[place] = 0.5
    with pytest.raises(BadValueError, match="not symmetric"):
        solve_spd(a, np.ones(100), block=16)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.eye(3), np.ones(4)),
        (np.eye(3), np.ones((1, 3))),
        (np.eye(3), np.ones((3, 0))),
        (np.eye(3), np.ones((3, 1, 1))),
        (np.eye(3), 1.0),
        (np.eye(3), np.ones(3, complex)),
        (np.ones((3, 4)), np.ones(3)),
        (5.0, np.ones(3)),
        (np.array([["a"]]), np.ones(1)),
    ],
)
def test_wrong_shapes_and_types_are_refused(a: Any, b: Any) -> None:
    with pytest.raises(BadValueError):
        solve_spd(a, b)


def test_unknown_words_are_refused() -> None:
    for words in ({"method": "choleski"}, {"split": "runtme"}):
        with pytest.raises(UnknownNameError) as caught:
            solve_spd(np.eye(2), np.ones(2), **words)
        assert caught.value.nearest in ("cholesky", "runtime")
    with pytest.raises(BadValueError):
        solve_spd(np.eye(2), np.ones(2), split=1.5)


def test_too_little_memory_is_said_before_allocating(monkeypatch: pytest.MonkeyPatch) -> None:
    # One triangle alone is more than the least that is asked for, however the rows are split.
    a, b = process(2400)
    monkeypatch.setattr(machine, "available_bytes", lambda: 1 << 24)
    with pytest.raises(BadValueError, match="memory"):
        solve_spd(a, b)


def test_an_accelerator_too_small_for_the_factor_is_refused_and_gets_the_rows_that_fit_otherwise() -> None:
    a, b = process(96)
    small = (CpuWorker(), CpuWorker(memory_bytes=20_000.0))
    with pytest.raises(BadValueError, match="does not hold") as caught:
        solve_spd(a, b, devices=small, block=16)
    assert "conjugate-gradient" in str(caught.value.hint)
    assert relative_residual(a, solve_spd(a, b, devices=small, block=16, split=0.0), b) <= 1e-10
    x = solve_spd(a, b, devices=small, block=16, method="conjugate-gradient", split=1.0)
    assert relative_residual(a, x, b) <= 1e-6


def test_no_convergence_is_an_error_that_tells_the_residual() -> None:
    rng = np.random.default_rng(0)
    q, _ = np.linalg.qr(rng.standard_normal((60, 60)))
    a = (q * np.geomspace(1e-14, 1, 60)) @ q.T
    a = (a + a.T) / 2
    with pytest.raises((NotConvergedError, NotPositiveDefiniteError)):
        solve_spd(a, rng.standard_normal(60), method="conjugate-gradient", tolerance=1e-12)
    solution = HeteroSolver(method="conjugate-gradient", iterations=3).solve(a + np.eye(60) * 1e-3, np.ones(60))
    assert (solution.converged, solution.iterations) == (False, 3)


def test_a_law_of_one_s_own_is_taken() -> None:
    a, b = process(300)
    x = solve_spd(a, b, block=16, split=RuntimeSplit(share=0.9, every=2))
    assert relative_residual(a, x, b) <= 1e-10


def test_a_modelled_link_slows_the_copies_down() -> None:
    a, b = process(128)
    slow = HeteroSolver(block=32, law="static", share=0.5, link_latency_s=0.002).solve(a, b)
    assert slow.phases_s["column copy"] >= 3 * 0.002
    assert slow.copies == {"diagonal": 2, "column": 1, "vectors": 2}


def test_a_small_matrix_is_the_accelerators_alone() -> None:
    a, b = process(200)
    solution = HeteroSolver(host_repeats=3).solve(a, b)
    assert solution.borders == [(0, 0)]
    assert relative_residual(a, solution.x, b) <= 1e-10


def test_the_faster_one_works_alone_where_the_other_is_hopeless() -> None:
    a, b = process(700)
    for devices, border in (
        ((CpuWorker(repeats=400), CpuWorker()), 0),
        ((CpuWorker(), CpuWorker(repeats=400)), 11),
    ):
        solution = HeteroSolver().solve(a, b, devices=devices)
        assert solution.borders == [(0, border)]
        assert relative_residual(a, solution.x, b) <= 1e-10


def test_phases_are_told_apart() -> None:
    from wavetank.kernels.solvers import cholesky, conjugate_gradient

    a, b = process(500)
    for method, phases in (("cholesky", cholesky.PHASES), ("conjugate-gradient", conjugate_gradient.PHASES)):
        solution = HeteroSolver(method=method, share=0.5, block=16, host_repeats=80).solve(a, b)
        assert set(solution.phases_s) | {"waiting"} == set(phases) | {"waiting"}
        assert min(solution.busy_s) > 0


def test_blocks_grow_with_the_matrix() -> None:
    assert [default_block(size) for size in (10, 1024, 4096)] == [64, 128, 256]
    assert HeteroSolver(block=7).solve(np.eye(20), np.ones(20)).blocks == 3


def test_the_devices_are_those_asked_for() -> None:
    host, accelerator = HeteroSolver(
        accelerator="worker", host_threads=3, accelerator_threads=2, host_repeats=4
    ).devices()
    assert host == CpuWorker(threads=allowed_threads(3), repeats=4)
    assert accelerator == CpuWorker(threads=allowed_threads(2))
    assert HeteroSolver(accelerator="cuda").devices()[1] == TorchDevice(device="cuda")


def test_the_residual_of_nothing_is_that_of_the_product() -> None:
    assert relative_residual(np.eye(2), np.array([3.0, 4.0]), np.zeros(2)) == 5.0
    assert relative_residual(BlockTriangle.pack(np.eye(2), 2), np.ones(2), 2 * np.ones(2)) == 0.5


def test_the_residual_of_what_is_no_number_is_none() -> None:
    assert np.isnan(relative_residual(np.eye(2), [np.nan, 1.0], np.ones(2)))


@pytest.fixture(scope="module")
def stiffness() -> np.ndarray:
    """Return bcsstk13: 2,003 rows, condition about 1e10."""
    try:
        path = datasets.find("sparse-matrices", "bcsstk13.mtx.gz")
    except DataUnavailableError as error:
        pytest.skip(error.problem)
    dense: np.ndarray = mmread(path).toarray()
    return dense


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_cholesky_solves_an_ill_conditioned_stiffness_matrix(stiffness: np.ndarray, share: float) -> None:
    b = stiffness @ np.ones(len(stiffness))
    x = solve_spd(stiffness, b, split=share)
    assert relative_residual(stiffness, x, b) <= 1e-10


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_conjugate_gradients_do_not_converge_on_it_and_say_so(stiffness: np.ndarray, times: int) -> None:
    b = stiffness @ np.ones(len(stiffness))
    b = np.random.default_rng(0).standard_normal(b.size)
    solver = HeteroSolver(method="conjugate-gradient", iterations=times * len(b), law="static", share=0.5)
    solution = solver.solve(stiffness, b)
    assert not solution.converged
    assert solution.iterations == times * len(b)
    assert relative_residual(stiffness, solution.x, b) > 1e-6


def test_a_hard_matrix_made_from_a_seed_behaves_alike() -> None:
    rng = np.random.default_rng(4)
    q, _ = np.linalg.qr(rng.standard_normal((200, 200)))
    a = (q * np.geomspace(1, 1e10, 200)) @ q.T
    a = (a + a.T) / 2
    b = rng.standard_normal(200)
    assert relative_residual(a, solve_spd(a, b, block=32, split=0.5), b) <= 1e-5
    solution = HeteroSolver(method="conjugate-gradient", iterations=600).solve(a, b)
    assert not solution.converged


@pytest.mark.parametrize("place", ["a", "b"])
@pytest.mark.parametrize("kind", ["sparse tensor", "bfloat16", "meta", "ragged", "sparse matrix", "masked"])
def test_what_is_no_array_is_refused_with_its_place(kind: str, place: str) -> None:
    torch = pytest.importorskip("torch")
    given = {
        "sparse tensor": torch.eye(3).to_sparse(), "bfloat16": torch.eye(3, dtype=torch.bfloat16),
        "meta": torch.eye(3, device="meta"), "ragged": [[1.0], [1.0, 2.0]],
        "sparse matrix": scipy.sparse.eye(3, format="csr"), "masked": np.ma.masked_less(np.eye(3), 0.5),
    }[kind]  # fmt: skip
    arguments = {"a": np.eye(3), "b": np.ones(3), place: given}
    with pytest.raises(BadValueError) as caught:
        solve_spd(**arguments)
    assert caught.value.where == place


def test_a_tensor_that_requires_a_gradient_is_read_where_none_is_recorded() -> None:
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        x = solve_spd(2 * torch.eye(3, requires_grad=True), torch.ones(3, requires_grad=True))
    assert x.tolist() == pytest.approx([0.5, 0.5, 0.5])
