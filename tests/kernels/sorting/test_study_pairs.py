"""The study sort-pairs: its records, and what it refuses."""

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.sorting.rivals import CountingSort, NumpySort
from wavetank.kernels.sorting.study_integers import DISTRIBUTIONS
from wavetank.kernels.sorting.study_pairs import SortPairs
from wavetank.ledger import catalog
from wavetank.machine import limits as machine
from wavetank.run.comparison import compare

SYSTEMS = tuple(name for name in catalog.built_in().plain_run(SortPairs.name) if name != "pyarrow-sort")


def test_every_system_sorts_every_distribution_stably(tmp_path):
    result = compare("sort-pairs", size_mb=1, rounds=1, systems=SYSTEMS, out=tmp_path, on="here")
    assert result.failures == ()
    times = {(r.system, r.at["keys"]) for r in result.records if r.metric == "time_s"}
    assert times == {(system, case) for system in SYSTEMS for case in DISTRIBUTIONS}
    leads = {r.system for r in result.records if r.metric == "ahead_of_best_peer"}
    assert leads == {"fractal-sort", "fractal-sort-one", "fractal-sort-full"}


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_a_case_holds_keys_and_their_stable_order(bits):
    case = SortPairs(size_mb=1, bits=bits).case("zipf", 0)
    keys, expected, order = case.data
    assert np.array_equal(keys[order], expected)
    assert np.array_equal(order, np.argsort(keys, kind="stable"))
    assert case.bytes_moved == 2 * (1_000_000 + 8 * keys.size)


def test_an_order_that_is_not_stable_is_refused():
    study = SortPairs(size_mb=1, distributions=("constant",))
    case = study.case("constant", 0)
    assert study.verify(case, "numpy-sort", NumpySort().prepare_pairs(case.data.keys)()) is None
    with pytest.raises(WavetankError, match="hasty did not sort constant keys and their row ids"):
        study.verify(case, "hasty", (case.data.keys, case.data.order[::-1]))


def test_a_sorter_of_keys_alone_is_refused():
    study = SortPairs(size_mb=1, bits=16)
    with pytest.raises(WavetankError, match="CountingSort sorts keys alone"):
        study.prepared_call(CountingSort(), study.case("constant", 0))


def test_pairs_that_do_not_fit_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "available_bytes", lambda: 200_000_000)
    with pytest.raises(BadValueError, match="sort-pairs needs more memory than is available"):
        compare("sort-pairs", size_mb=16, out=tmp_path, on="here")
    assert list(tmp_path.iterdir()) == []


def test_notes_say_what_is_counted():
    assert any("every key and id once" in note for note in SortPairs().notes())
