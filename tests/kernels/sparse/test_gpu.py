"""Tiles on a GPU: run by Triton's interpreter, and what is refused."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import scipy.sparse as sp

from wavetank.errors import BadValueError, MissingExtraError
from wavetank.kernels.sparse import gpu
from wavetank.kernels.sparse.gpu import MerbitGpu, TiledMatrix
from wavetank.kernels.sparse.products import SpMVPlan, spmv

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton is not installed")

# Triton decides when it is loaded whether to compile or to interpret: a process of its own does the latter.
PRELUDE = """
import json, pickle
import numpy as np, scipy.sparse as sp, torch
from wavetank.errors import BadValueError
from wavetank.kernels.sparse import gpu, products
from wavetank.kernels.sparse.gpu import MerbitGpu, TiledMatrix
from wavetank.kernels.sparse.products import SpMVPlan, spmv
from wavetank.workloads import matrices

RNG = np.random.default_rng(5)

def one(shape, rows, columns, values=None):
    values = RNG.standard_normal(len(rows)) if values is None else values
    return sp.csr_array((values, (rows, columns)), shape=shape)

MATRICES = {
    "one by one": one((1, 1), [0], [0]),
    "nothing": sp.csr_array((7, 5)),
    "no rows": sp.csr_array((0, 5)),
    "no columns": sp.csr_array((5, 0)),
    "first rows empty": one((300, 9), np.full(200, 299), RNG.integers(0, 9, 200)),
    "last rows empty": one((300, 9), np.zeros(200, int), RNG.integers(0, 9, 200)),
    "long runs of empty rows": one((900, 50), np.repeat([3, 450, 898], 100), RNG.integers(0, 50, 300)),
    "one row": one((1, 1200), np.zeros(1200, int), np.arange(1200)),
    "one huge row": matrices.one_long_row(1300),
    "one dense column": one((300, 300), np.arange(300), np.full(300, 123)),
    "wide": sp.random(9, 3000, 0.02, format="csr", rng=RNG),
    "tall": sp.random(500, 9, 0.08, format="csr", rng=RNG),
    "explicit zeros": one((50, 50), RNG.integers(0, 50, 400), RNG.integers(0, 50, 400), np.zeros(400)),
    "all values equal": one((90, 90), np.arange(90), np.arange(90), np.full(90, 0.3)),
    "graph": matrices.rmat(7),
    "stencil": matrices.five_point_stencil(9),
}

def holds(found, matrix, x):
    rows = matrix.astype(np.float64)
    bound = (np.diff(rows.indptr) + 8) * np.finfo(matrix.dtype).eps * (abs(rows) @ abs(x.astype(np.float64)))
    wrong = np.abs(found - rows @ x.astype(np.float64))
    return bool(found.shape == bound.shape and found.dtype == matrix.dtype and (wrong <= bound).all())
"""


SERVE = """
import sys
answers = sys.stdout
for line in sys.stdin:
    exec(json.loads(line), dict(globals()) | {"print": lambda text: answers.write(text + chr(10))})
    answers.flush()
"""


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    """Return a function from a program to what it prints as JSON, run with Triton's interpreter."""
    errors = tmp_path_factory.mktemp("interpreter") / "errors"
    with (
        errors.open("w") as log,
        subprocess.Popen(
            [sys.executable, "-c", PRELUDE + SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            text=True, env=os.environ | {"TRITON_INTERPRET": "1"},
        ) as process,
    ):  # fmt: skip

        def run(program):
            process.stdin.write(json.dumps(textwrap.dedent(program)) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, errors.read_text()
            return json.loads(answer)

        yield run
        process.stdin.close()


def test_products_are_those_of_scipy_whatever_the_matrix_the_type_and_the_tiles(interpreted):
    found = interpreted(
        """
        found = {}
        for name, given in MATRICES.items():
            for dtype, steps, values in ((np.float64, 64, "auto"), (np.float32, 256, "stored")):
                matrix = given.astype(dtype)
                x = RNG.standard_normal(matrix.shape[1]).astype(dtype)
                vector = torch.from_numpy(x.copy())
                plan = TiledMatrix(matrix, device="cpu", steps=steps, warps=2, values=values)
                y = plan.multiply(vector)
                found[f"{name}, {dtype.__name__}, {steps}"] = [
                    holds(y.numpy(), matrix, x),
                    bool((vector.numpy() == x).all()),
                    steps == 64 or torch.equal(y, plan.multiply(vector)),
                ]
        print(json.dumps(found))
        """
    )
    assert len(found) == 16 * 2
    assert {key for key, holds in found.items() if not all(holds)} == set()


def test_indices_of_64_bits_duplicates_and_any_order_are_taken(interpreted):
    found = interpreted(
        """
        starts, columns = np.array([0, 3, 3, 7], np.int64), np.array([4, 0, 4, 2, 1, 1, 0], np.int64)
        values, x = RNG.standard_normal(7), RNG.standard_normal(5)
        expected = [values[:3] @ x[columns[:3]], 0.0, values[3:] @ x[columns[3:]]]
        y = TiledMatrix((starts, columns, values, (3, 5)), device="cpu", steps=64).multiply(torch.from_numpy(x))
        print(json.dumps(bool(np.allclose(y.numpy(), expected, rtol=1e-13))))
        """
    )
    assert found is True


def test_tiles_keep_the_counts_of_the_path(interpreted):
    found = interpreted(
        """
        found = []
        for name in ("graph", "one huge row", "long runs of empty rows", "stencil"):
            matrix = MATRICES[name]
            plan = TiledMatrix(matrix, device="cpu", steps=64)
            words = plan._words.numpy().view(np.uint32)
            bits = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")
            ends = np.flatnonzero(bits)
            heads = np.minimum(np.arange(plan.tiles + 1) * 64, sum(matrix.shape[:1]) + matrix.nnz)
            rows = np.searchsorted(ends, heads)
            found.append([
                bool((ends == matrix.indptr[1:] + np.arange(matrix.shape[0])).all()),
                bool((plan._first_row.numpy() == rows).all()),
                bool((plan._first_nonzero.numpy() == heads - rows).all()),
                plan._ends_before.tolist() == [bits[i // 2 * 64 : i * 32].sum() for i in range(words.size)],
                plan.tiles == -(-(matrix.shape[0] + matrix.nnz) // 64),
            ])
        print(json.dumps(found))
        """
    )
    assert found == [[True] * 5] * 4


def test_what_is_not_finite_reaches_the_rows_that_use_it_and_no_other(interpreted):
    found = interpreted(
        """
        found = []
        matrix = one((600, 40), np.arange(600), RNG.integers(0, 40, 600))
        for given in (matrix, matrix * 0, one((3, 900), np.repeat([0, 1, 2], [5, 800, 5]), np.arange(810))):
            for column in (0, 17):
                x = torch.ones(given.shape[1], dtype=torch.float64)
                x[column] = float("nan")
                y = TiledMatrix(given, device="cpu", steps=64).multiply(x).numpy()
                rows = np.repeat(np.arange(given.shape[0]), np.diff(given.indptr))
                uses = np.isin(np.arange(given.shape[0]), rows[given.indices == column])
                found.append(bool((np.isnan(y) == uses).all()))
        print(json.dumps(found))
        """
    )
    assert found == [True] * 6


def test_a_plan_on_a_device_takes_arrays_and_tensors_and_says_what_it_is(interpreted):
    found = interpreted(
        """
        matrix = MATRICES["graph"]
        # On a machine without a GPU the processor plays one.
        before = products._is_processor, gpu.device_of
        products._is_processor = lambda device: False
        gpu.device_of = lambda something: something.device if isinstance(something, torch.Tensor) else None
        plan = SpMVPlan(matrix, device="cpu")
        x = RNG.standard_normal(128)
        kept, out = x.copy(), np.empty(128)
        there = plan @ torch.from_numpy(x)
        here = plan @ x
        copy = pickle.loads(pickle.dumps(plan))
        into = torch.empty(128, dtype=torch.float64)
        tiled, empty = plan._tiled, SpMVPlan(MATRICES["nothing"], device="cpu")
        refused = []
        wrong = torch.zeros(4, dtype=torch.float64), torch.zeros(128), torch.zeros(128, dtype=torch.float64)
        for call in (
            lambda: plan @ wrong[0], lambda: plan @ wrong[1], lambda: tiled.multiply(x),
            lambda: tiled.multiply(wrong[2], out=wrong[2]), lambda: tiled.multiply(wrong[2], out=wrong[1]),
            lambda: tiled.multiply(wrong[2], out=torch.zeros(256, dtype=torch.float64)[::2]),
            lambda: SpMVPlan(matrix, device="cpu", threads=2), lambda: SpMVPlan(matrix, device="cpu", read="load"),
            lambda: TiledMatrix(matrix, device="cpu", steps=100), lambda: TiledMatrix(matrix, device="cpu", steps=32),
            lambda: TiledMatrix(matrix, device="cpu", warps=True), lambda: TiledMatrix(matrix, device="cpu", warps=64),
        ):
            try:
                call()
            except BadValueError as error:
                refused.append(error.problem)
        print(json.dumps({
            "right": [holds(each, matrix, kept) for each in (there.numpy(), here, copy @ x,
                      plan.multiply(x, out=out), tiled.multiply(torch.from_numpy(x), out=into).numpy(),
                      spmv(matrix, torch.from_numpy(x)).numpy(), MerbitGpu().prepare(matrix, x, "cpu")().numpy())],
            "same": [isinstance(there, torch.Tensor), isinstance(here, np.ndarray), bool((out == here).all()),
                     bool((x == kept).all())],
            "facts": [plan.form, plan.threads, plan.flops == 2 * matrix.nnz, plan.segments, list(plan.shape)],
            "bytes": [plan.bytes_stored / matrix.nnz, plan.bytes_moved - plan.bytes_stored],
            "strided": holds((plan @ torch.from_numpy(np.repeat(x, 2))[::2]).numpy(), matrix, kept),
            "empty": [empty.form, empty.bytes_moved, (empty @ np.ones(5)).tolist()],
            "refused": refused,
        }))
        products._is_processor, gpu.device_of = before
        """
    )
    assert found["right"] == [True] * 7
    assert found["same"] == [True] * 4
    assert found["facts"][:3] == ["tiles of 1,024 steps on cpu", 1, True]
    assert found["facts"][3:] == [2, [128, 128]]
    assert 12 < found["bytes"][0] < 13
    assert found["bytes"][1] >= 2 * 8 * 128
    assert found["strided"]
    assert found["empty"] == ["no nonzeros", 8 * 12, [0.0] * 7]
    assert found["refused"] == [
        *["The vector does not fit the matrix."] * 3, "out overlaps the vector.",
        *["The result does not fit into out."] * 2, *["Of a plan on a GPU only values can be chosen."] * 2,
        *["steps is no power of two in its range."] * 2, *["warps is no power of two in its range."] * 2,
    ]  # fmt: skip


def test_a_machine_without_a_gpu_says_so():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    matrix = sp.csr_array(np.eye(3))
    for device in ("cuda", "cuda:7", "no such"):
        with pytest.raises(BadValueError, match="cannot use this device"):
            TiledMatrix(matrix, device=device)
    with pytest.raises(BadValueError, match="cannot use this device"):
        SpMVPlan(matrix, device="cuda")
    with pytest.raises(BadValueError, match="run on a CUDA device"):
        TiledMatrix(matrix, device="cpu")
    with pytest.raises(BadValueError, match="run on a CUDA device"):
        MerbitGpu().prepare(matrix, np.ones(3), "cpu")


def test_without_triton_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "wavetank.kernels.sparse.tile_kernels", None)
    monkeypatch.delattr("wavetank.kernels.sparse.tile_kernels", raising=False)
    with pytest.raises(MissingExtraError, match="needs the library 'triton'"):
        TiledMatrix(sp.csr_array(np.eye(3)))


def test_only_tensors_elsewhere_have_a_device():
    assert gpu.device_of(np.ones(3)) is None
    assert gpu.device_of(torch.ones(3)) is None
    assert gpu.device_of(torch.ones(3, device="meta")) == torch.device("meta")


def test_a_plan_of_the_processor_refuses_a_vector_elsewhere():
    plan = SpMVPlan(sp.csr_array(np.eye(3)))
    with pytest.raises(BadValueError, match="on a GPU, the plan is not") as caught:
        plan @ torch.ones(3, device="meta", dtype=torch.float64)
    assert caught.value.hint == 'SpMVPlan(matrix, device="meta") is one there'


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_on_the_gpu_are_those_of_scipy_and_repeat(dtype):
    from wavetank.workloads import matrices

    for matrix in (matrices.rmat(14), matrices.one_long_row(200_000), matrices.mostly_empty(100_000)):
        matrix = matrix.astype(dtype)
        x = np.random.default_rng(1).standard_normal(matrix.shape[1]).astype(dtype)
        found = [spmv(matrix, torch.from_numpy(x).cuda()) for _ in range(3)]
        bound = (np.diff(matrix.indptr) + 8) * np.finfo(dtype).eps * (abs(matrix) @ abs(x))
        assert (np.abs(found[0].cpu().numpy() - matrix @ x) <= bound).all()
        assert all(torch.equal(each, found[0]) for each in found)
