"""The cost of an adapter: found again where it was planted, and shipped as the recorded runs give it."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from wavetank.errors import BadFileError, DataUnavailableError
from wavetank.training.tenants.adapter_costs import DATA_SET, FITTED_PERMILLE, distinct, fitted
from wavetank.workloads import datasets

HEADER = (
    "set,model,gpu_slots,served_adapters,rates_req_s,duration_s,completed,prompts_sent_expected,out_tok_s,"
    "tpot_mean_ms,outcome"
)


def written(tmp_path, rows):
    path = tmp_path / "runs.csv.gz"
    path.write_bytes(gzip.compress("\n".join([HEADER, *rows]).encode()))
    return path


def planted(permille, step_s, answer_s):
    """Return rows of runs that a machine with these costs would give."""
    rows = []
    for adapters in (2, 8, 32, 128):
        for running in (3.0, 10.0, 40.0):
            rates = np.full(adapters, 0.1)
            token_s = (step_s + answer_s * running) * (1 + permille / 1000 * (distinct(rates, running) - 1))
            done = rates.sum() * 3600
            rows.append(
                f"twin_validation,m,128,{adapters},0.1,3600,{done},{done},{running / token_s},{token_s * 1e3},ok"
            )
    return rows


@pytest.mark.parametrize("permille", [0.0, 5.0, 21.0])
def test_what_was_planted_is_found(tmp_path, permille):
    found = fitted(written(tmp_path, planted(permille, 0.02, 1e-4)))
    assert found.permille == pytest.approx(permille, abs=0.051)
    assert (found.step_s, found.answer_s) == (pytest.approx(0.02, rel=1e-3), pytest.approx(1e-4, rel=1e-2))
    assert found.error < 1e-3
    assert found.runs == 12


def test_runs_that_starve_or_have_too_few_slots_are_left_out(tmp_path):
    rows = planted(20.0, 0.02, 1e-4)
    starved = rows[0].replace(",720.0,720.0,", ",100.0,720.0,")
    assert starved != rows[0]
    few = rows[-1].replace(",m,128,", ",m,2,")
    judged = rows[0].replace("twin_validation", "test")
    assert fitted(written(tmp_path, [*rows, starved, few, judged])).runs == 12


def test_distinct_adapters_are_at_most_the_answers_and_the_adapters():
    assert distinct(np.ones(1000), 5.0) == pytest.approx(5.0, rel=0.01)
    assert distinct(np.ones(3), 1000.0) == pytest.approx(3.0)


@pytest.mark.parametrize(
    "rows", [[], ["twin_validation,m,128,x,0.1,1,1,1,1,1,ok"], ["twin_validation,m,1,1,,1,1,1,1,,ok"]]
)
def test_damaged_runs_are_refused(tmp_path, rows):
    with pytest.raises(BadFileError):
        fitted(written(tmp_path, rows))
    path = tmp_path / "other.gz"
    path.write_bytes(b"no gzip")
    with pytest.raises(BadFileError):
        fitted(path)


def test_what_ships_is_what_the_recorded_runs_give():
    try:
        datasets.find(DATA_SET)
    except DataUnavailableError:
        pytest.skip(f"needs the data set {DATA_SET}")
    found = fitted()
    assert round(found.permille) == FITTED_PERMILLE
    assert found.error < 0.05
    assert found.runs == 26
