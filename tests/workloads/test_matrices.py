"""Sparse matrices: what generators promise, and files of two kinds."""

import gzip

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.workloads import matrices


def test_an_rmat_graph_is_skewed_and_repeats():
    graph = matrices.rmat(12, seed=3)
    assert graph.shape == (4096, 4096)
    assert 40_000 < graph.nnz <= 16 * 4096
    assert np.diff(graph.indptr).max() > 20 * 16
    assert (graph != matrices.rmat(12, seed=3)).nnz == 0
    assert (graph != matrices.rmat(12, seed=4)).nnz > 0


def test_hubs_of_an_unshuffled_graph_have_low_numbers():
    degrees = np.diff(matrices.rmat(12, shuffled=False).indptr)
    assert degrees.argmax() == 0
    assert degrees[:2048].sum() > 2.5 * degrees[2048:].sum()


def test_a_uniform_matrix_has_even_rows():
    matrix = matrices.uniform_random(5000, per_row=16)
    assert matrix.nnz == pytest.approx(80_000, rel=0.01)
    assert np.diff(matrix.indptr).max() < 50


def test_the_stencil_is_the_laplacian():
    matrix = matrices.five_point_stencil(3).toarray()
    assert np.array_equal(np.diag(matrix), np.full(9, 4))
    assert matrix[4].tolist() == [0, -1, 0, -1, 4, -1, 0, -1, 0]
    assert matrix[2, 3] == 0
    assert matrices.five_point_stencil(1).toarray().tolist() == [[4]]


def test_a_band_is_full():
    matrix = matrices.banded(10, half_width=2)
    assert matrix.nnz == 10 + 2 * 9 + 2 * 8
    assert np.abs(np.subtract(*matrix.nonzero())).max() == 2


def test_one_long_row_holds_its_share():
    matrix = matrices.one_long_row(10_000, share=0.9)
    lengths = np.diff(matrix.indptr)
    assert lengths.argmax() == 5000
    assert lengths.max() / matrix.nnz == pytest.approx(0.9, abs=0.01)


def test_few_rows_of_a_mostly_empty_matrix_are_used():
    matrix = matrices.mostly_empty(10_000, used_share=0.02, per_row=4)
    assert np.count_nonzero(np.diff(matrix.indptr)) == 200


def test_indices_have_32_bits(tmp_path):
    (tmp_path / "a.edges").write_text("0 2\n")
    (tmp_path / "a.mtx").write_text("%%MatrixMarket matrix coordinate real general\n2 2 1\n1 1 4.0\n")
    found = [matrices.read_matrix(tmp_path / name) for name in ("a.edges", "a.mtx")]
    found += [matrices.rmat(4), matrices.uniform_random(9), matrices.five_point_stencil(3), matrices.banded(9)]
    found += [matrices.one_long_row(9), matrices.mostly_empty(99)]
    assert {(each.indices.dtype.name, each.indptr.dtype.name) for each in found} == {("int32", "int32")}


def test_values_are_above_zero():
    for matrix in (matrices.rmat(6), matrices.banded(30), matrices.uniform_random(30)):
        assert ((matrix.data > 0) & (matrix.data <= 1)).all()


@pytest.mark.parametrize(
    ("make", "options"),
    [("rmat", {"scale": 0}), ("rmat", {"scale": 31}), ("rmat", {"scale": 3, "edge_factor": 0}),
     ("uniform_random", {"n": 0}), ("uniform_random", {"n": 3, "per_row": -1}), ("five_point_stencil", {"side": 0}),
     ("banded", {"n": 0}), ("banded", {"n": 3, "half_width": -1}), ("one_long_row", {"n": 1}),
     ("one_long_row", {"n": 9, "share": 1.0}), ("one_long_row", {"n": 9, "per_row": 0}), ("mostly_empty", {"n": 0}),
     ("mostly_empty", {"n": 5, "used_share": 1.5})],
)  # fmt: skip
def test_what_makes_no_matrix_is_refused(make, options):
    with pytest.raises(BadValueError, match="outside its range"):
        getattr(matrices, make)(**options)


def test_a_matrix_market_file_is_read_packed_or_not(tmp_path):
    text = "%%MatrixMarket matrix coordinate real symmetric\n2 2 2\n1 1 4.0\n2 1 -1.0\n"
    (tmp_path / "a.mtx").write_text(text)
    (tmp_path / "a.mtx.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("a.mtx", "a.mtx.gz"):
        assert matrices.read_matrix(tmp_path / name).toarray().tolist() == [[4, -1], [-1, 0]]


def test_an_edge_list_is_read_in_both_directions(tmp_path):
    path = tmp_path / "g.edges"
    path.write_text("# a comment\n0 2\n2 0\n1 1\n\n")
    assert matrices.read_matrix(path).toarray().tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    path.write_text("")
    assert matrices.read_matrix(path).shape == (0, 0)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [("a.txt", b"", "not a file of a sparse matrix"), ("a.mtx", b"nonsense", "not a matrix in Matrix Market form"),
     ("a.mtx.gz", b"no gzip", "cannot be read"), ("a.edges", b"0 1\n2 x\n", "not an edge"),
     ("a.edges", b"3\n", "not an edge")],
)  # fmt: skip
def test_a_damaged_file_is_refused(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadFileError, match=says):
        matrices.read_matrix(tmp_path / name)


@pytest.mark.parametrize("line", ["1 -2", "0 99999999999", "0 " + "9" * 5000, "\u0661 \u0662", "1 \xff"])
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "a.edges"
    path.write_text(f"0 1\n{line}\n", encoding="utf-8")
    with pytest.raises(BadFileError, match="not an edge") as caught:
        matrices.read_matrix(path)
    assert caught.value.where == f"{path}, line 2"


@pytest.mark.parametrize(
    ("header", "says"),
    [("coordinate complex general\n2 2 1\n1 1 1.0 2.0", "complex"),
     ("coordinate real general\n2 2 1000000000000\n1 1 1.0", "more than its"),
     ("array real general\n100000000 100000000\n1.0", "more than its"),
     ("coordinate real general\n1000000000000000 1 1\n1 1 1.0", "Unable to allocate"),
     ("coordinate real general\n2 2 1\n3 1 1.0", "out of bounds")],
)  # fmt: skip
def test_a_header_that_cannot_be_is_refused_and_does_not_end_the_process(tmp_path, header, says):
    path = tmp_path / "a.mtx"
    path.write_text(f"%%MatrixMarket matrix {header}\n")
    with pytest.raises(BadFileError) as caught:
        matrices.read_matrix(path)
    assert says in caught.value.given


@pytest.mark.parametrize(
    "form", ["array real general\n2 2\n1.0\n2.0\n3.0\n4.0", "array real symmetric\n2 2\n1.0\n2.0\n4.0"]
)
def test_a_dense_matrix_market_file_is_read(tmp_path, form):
    path = tmp_path / "a.mtx"
    path.write_text(f"%%MatrixMarket matrix {form}\n")
    assert matrices.read_matrix(path).toarray()[:, 0].tolist() == [1, 2]


def test_a_packed_file_damaged_inside_is_refused(tmp_path):
    for name, content in (("a.edges.gz", b"0 1\n"), ("a.mtx.gz", b"%%MatrixMarket matrix\n")):
        packed = bytearray(gzip.compress(bytes(range(256)) * 40 + content * 5000))
        packed[30:60] = bytes(255 - byte for byte in packed[30:60])
        (tmp_path / name).write_bytes(packed)
        with pytest.raises(BadFileError, match="cannot be read"):
            matrices.read_matrix(tmp_path / name)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(BadFileError, match="cannot be read"):
        matrices.read_matrix(tmp_path / "a.mtx")
