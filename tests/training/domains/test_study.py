"""The study domain-parallel: what it finds, what it takes for an error, and what it refuses."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the library torch")

from wavetank.errors import BadValueError
from wavetank.run.comparison import compare
from wavetank.training.domains.interface import exchanged, windows
from wavetank.training.domains.network import PATCH, WINDOWS
from wavetank.training.domains.study import PATCH as STUDIED_PATCH
from wavetank.training.domains.study import WINDOWS as STUDIED_WINDOWS
from wavetank.training.domains.study import OneSample, error

SMALL = {"fields": "waves", "processes": (1, 2), "rows": 16, "columns": 24, "channels": 4, "heads": 2, "turns": 1,
         "memory_rows": 8}  # fmt: skip


def test_a_small_run_compares_all_ways(tmp_path):
    result = compare("domain-parallel", **SMALL, seeds=1, out=tmp_path, on="here")
    assert result.failures == ()
    errors = {each.system: each.value for each in result.records if each.metric == "error"}
    assert set(errors) == {"shard-tensor", "dtensor", "gather-compute-scatter", "one-process"}
    assert max(errors.values()) < 1e-12
    halo = {each.system: each.value for each in result.records if each.metric == "halo_over_formula"}
    assert halo == {"shard-tensor": 1.0}
    over = {(each.system, each.at["processes"]): each.value for each in result.records
            if each.metric == "memory_over_share"}  # fmt: skip
    assert set(over) == {(system, processes) for system in errors for processes in (1, 2)}
    rows = {each.system: each.value for each in result.records if each.metric == "rows_at_memory"}
    assert set(rows) == set(errors)
    lost = {each.system: each.value for each in result.records if each.metric == "fallbacks"}
    # DTensor keeps activations alone in parts, and so does who gathers before all that looks at several places.
    assert lost == {"shard-tensor": 0, "one-process": 0, "dtensor": 6, "gather-compute-scatter": 6}
    sent = {each.system: each.value for each in result.records if each.metric == "sent_bytes"}
    assert sent["shard-tensor"] < sent["gather-compute-scatter"]


def test_the_study_knows_the_networks_windows_and_the_formula_counts_their_strips():
    assert (STUDIED_PATCH, STUDIED_WINDOWS) == (PATCH, WINDOWS)
    study = OneSample(columns=24, channels=4)
    strips = sum(
        channels * exchanged((8, 4, 8), windows((8, 4, 8), window=k, padding=(k // 2, k // 2)).wanted)
        for k, channels in zip(WINDOWS, (9, 4), strict=True)
    )
    assert study.halo_formula(3) == 2 * strips * 24 * 8


def test_an_error_is_anything_that_differs_lacks_or_stands_twice():
    wanted = {"out": np.ones((1, 1, 4, 1)), "grad": np.ones((1, 1, 4, 1)), "weights": [np.array([2.0]), np.zeros(1)]}

    def part(begin, rows, off=0.0):
        return {"out_begin": begin, "out": np.ones((1, 1, rows, 1)) + off, "grad_begin": begin,
                "grad": np.ones((1, 1, rows, 1)), "weights": [np.array([2.0]), np.zeros(1)]}  # fmt: skip

    assert error([part(0, 1), part(1, 3)], wanted) == 0.0
    assert error([part(0, 1), part(1, 3, 1e-3)], wanted) == pytest.approx(1e-3)
    assert error([part(0, 1), part(1, 2)], wanted) == np.inf
    assert error([part(0, 4, np.nan)], wanted) == np.inf
    for weights in ([None, np.zeros(1)], [np.array([2.0]), np.zeros(2)]):
        assert error([part(0, 4) | {"weights": weights}], wanted) == np.inf
    # A gradient that is nothing but rounding is held against the largest of all weights.
    assert error([part(0, 4) | {"weights": [np.array([2.0]), np.array([1e-16])]}], wanted) == 5e-17


def test_a_share_is_the_largest_part_and_half_a_window_on_either_side():
    assert OneSample().share((48, 48)) == pytest.approx(52 / 96)
    assert OneSample().share((10, 70, 16)) == pytest.approx(74 / 96)
    assert OneSample().share((96,)) == 1.0


def test_cuts_are_uneven_unless_even_ones_are_asked_for():
    assert OneSample(cut="even", rows=96).cuts(0, 4) == (24, 24, 24, 24)
    assert len({OneSample().cuts(seed, 4) for seed in range(5)}) > 1


def test_what_processes_cannot_share_is_refused():
    for wrong in ({"rows": 10}, {"columns": 30}, {"channels": 5}, {"processes": (2, 1)}, {"processes": ()},
                  {"rows": 8, "processes": (1, 4)}, {"memory_rows": 6}):  # fmt: skip
        with pytest.raises(BadValueError):
            OneSample(**{"fields": "waves", **wrong}).check()
    assert OneSample(fields="waves").data() == {}
