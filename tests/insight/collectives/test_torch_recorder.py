"""Torch's own analyser on entries as its recorder would hold them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.insight.collectives.test_ccl_d import JOB, steps, stuck
from tests.insight.collectives.windows import row, window

from wavetank.insight.collectives.interface import Verdict
from wavetank.insight.collectives.job_model import Planted, simulated
from wavetank.insight.collectives.torch_recorder import TorchRecorder, dumps_of, said_of

pytest.importorskip("torch")


def test_entries_are_those_of_the_newest_operation_that_ranks_have_entered():
    rows = [row(0, 0), row(0, 1, ended=None), row(1, 0), row(1, 1, entered=None, ended=None)]
    dumps = dumps_of(window(rows, ((0, 1),)))
    (entry,) = dumps["rank_0"]["entries"]
    assert (entry["collective_seq_id"], entry["state"], entry["input_sizes"]) == (2, "started", [[256]])
    assert dumps["rank_1"]["entries"] == [] and dumps["rank_1"]["pg_config"]["0"]["ranks"] == "[0, 1]"


def test_it_names_who_is_missing_and_whose_call_does_not_fit():
    missing = [row(0, ended=None), row(1, ended=None), row(3, ended=None)]
    assert TorchRecorder().find(window(missing)) == Verdict(fault="H1", ranks=(2,), seq=0)
    verdict = TorchRecorder().find(stuck(r2={"size": 512}))
    assert (verdict.fault, verdict.ranks) == ("H2", (2,))
    # It takes the first rank's call for the right one.
    assert TorchRecorder().find(stuck(r0={"op": 1})).ranks == (1, 2, 3)


def test_in_a_job_it_is_read_as_the_rank_that_most_communicators_lack():
    seen = simulated(JOB, Planted(fault="H1", ranks=(13,), kind=2), np.random.default_rng(0), iterations=2)
    assert TorchRecorder().find(seen).ranks == (13,)


def test_it_says_nothing_of_slowness_and_of_ranks_that_stand_still():
    assert TorchRecorder().find(steps(r3=(2.0, 0.5, 0.1))) == Verdict()
    assert TorchRecorder().find(stuck()) == Verdict()
    assert said_of(dumps_of(window([row(0), row(1)], ((0, 1),)))) == Verdict()
