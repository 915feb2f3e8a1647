"""PageRank: known graphs, networkx, and what is refused."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp

from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.sparse.pagerank import pagerank
from wavetank.machine import limits as machine
from wavetank.workloads import matrices


def test_three_vertices_have_the_ranks_of_the_closed_form():
    # 0 -> 1, 0 -> 2, 1 -> 2, 2 -> 0 with damping d: solve (I - d P^T) r = (1 - d) / 3.
    graph = sp.csr_array(([1.0] * 4, ([0, 0, 1, 2], [1, 2, 2, 0])), shape=(3, 3))
    transition = np.array([[0, 0.5, 0.5], [0, 0, 1], [1, 0, 0]])
    exact = np.linalg.solve(np.eye(3) - 0.85 * transition.T, np.full(3, 0.05))
    assert pagerank(graph, tolerance=1e-14) == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_ranks_are_those_of_networkx_and_sum_to_one(weighted):
    graph = matrices.rmat(9, edge_factor=4)
    assert (np.diff(graph.indptr) == 0).any()
    network = nx.from_scipy_sparse_array(graph, create_using=nx.DiGraph)
    theirs = nx.pagerank(network, tol=1e-14, max_iter=1000, weight="weight" if weighted else None)
    ours = pagerank(graph, tolerance=1e-14, weighted=weighted, threads=2)
    assert np.abs(ours - [theirs[i] for i in range(512)]).max() < 1e-10
    assert ours.sum() == pytest.approx(1, abs=1e-12)


def test_a_graph_without_edges_is_even_and_one_without_vertices_is_empty():
    assert pagerank(sp.csr_array((4, 4))).tolist() == [0.25] * 4
    assert pagerank(sp.csr_array((0, 0))).size == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [({"damping": 1.0}, "damping"), ({"damping": np.nan}, "damping"), ({"tolerance": 0.0}, "tolerance"),
     ({"max_products": 0}, "max_products"), ({"max_products": 2.5}, "max_products"), ({"damping": "0.5"}, "damping"),
     ({"tolerance": None}, "tolerance")],
)  # fmt: skip
def test_parameters_out_of_range_are_refused(options, says):
    with pytest.raises(BadValueError, match=says):
        pagerank(matrices.rmat(4), **options)


def test_negative_weights_and_oblong_graphs_are_refused():
    with pytest.raises(BadValueError, match="negative or not finite"):
        pagerank(sp.csr_array([[0.0, -1.0], [1.0, 0.0]]), weighted=True)
    with pytest.raises(BadValueError, match="square"):
        pagerank(sp.csr_array((2, 3)))


def test_weights_without_a_finite_sum_are_refused():
    graph = sp.csr_array(np.array([[1.0, 0, 0], [1e308, 1e308, 0], [1, 0, 0]]))
    with pytest.raises(BadValueError, match="no finite sum") as caught:
        pagerank(graph, weighted=True)
    assert caught.value.given == "vertex 1"


def test_a_graph_that_does_not_fit_is_refused_before_it_is_turned(monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda: 1 << 20)
    with pytest.raises(BadValueError, match="PageRank of 65,536 vertices needs more memory"):
        pagerank(matrices.banded(1 << 16))


def test_ranks_that_do_not_settle_are_told():
    with pytest.raises(WavetankError, match="not settled"):
        pagerank(matrices.rmat(8), max_products=1, tolerance=1e-12)
