"""The study: equal batches for all, exact rounds, and settings that cannot be run."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.context.fcp import Fcp
from wavetank.training.context.interface import Step
from wavetank.training.context.rivals import HeadsAndRings, Unplanned
from wavetank.training.context.study import ContextParallel, executed_error

# Needs no data set.
SMALL = {"ranks": 16, "lengths": "lognormal", "sweep": (4,)}
STUDY = ContextParallel(**SMALL)


def figures(system, study=STUDY, seed=0):
    return {name: value for name, value, at in study.measure(system, seed).rows if not at}


def test_rounds_are_exactly_the_degree_where_they_are_planned():
    assert figures(Fcp())["rounds_over_degree"] == 1.0
    assert figures(Unplanned())["rounds_over_degree"] > 1.0
    assert "rounds_over_degree" not in figures(HeadsAndRings())


def test_what_is_planned_is_executed_and_a_plan_that_leaves_a_message_out_is_not_dense_attention():
    assert figures(Fcp())["executed_error"] < 1e-12
    assert "executed_error" not in figures(HeadsAndRings())

    class Forgetful(Fcp):
        def plan(self, batch, block):
            plan = super().plan(batch, block)
            blocks, targets = plan.edges
            plan.__dict__["edges"] = (blocks[1:], targets[1:])
            return plan

    assert executed_error(Forgetful(), STUDY.cluster(4), 0) > 1e-3


def test_equal_seeds_give_equal_figures_but_for_the_planning_time():
    one, same, other = (figures(Fcp(), seed=seed) for seed in (1, 1, 2))
    for each in (one, same, other):
        assert each.pop("planning_s") > 0
    assert one == same != other


def test_each_number_of_ranks_has_a_figure():
    rows = STUDY.measure(Fcp(), 0).rows
    found = {at["ranks"]: value for name, value, at in rows if name == "tokens_per_s_by_ranks"}
    assert sorted(found) == [4, 16]
    assert found[16] == figures(Fcp())["tokens_per_s"]


def test_half_of_a_mixed_platform_is_slower_and_blocks_follow_the_speeds():
    mixed = ContextParallel(**SMALL, platform="mixed")
    speeds = mixed.cluster(16).flops_per_s
    assert len(set(speeds[:8])) == len(set(speeds[8:])) == 1
    assert speeds[0] > 3 * speeds[-1]
    even, uneven = (figures(Fcp(), study)["tokens_per_s"] for study in (STUDY, mixed))
    assert 0.5 < uneven / even < 0.8
    # Equal shares wait for the slower half.
    ratio = figures(HeadsAndRings(), mixed)["tokens_per_s"] / figures(HeadsAndRings(), STUDY)["tokens_per_s"]
    assert ratio < uneven / even


def test_a_network_that_is_given_is_that_of_all_ranks():
    assert set(ContextParallel(**SMALL, network_bytes_per_s=7e9).cluster(8).network_bytes_per_s) == {7e9}
    assert set(STUDY.cluster(8).network_bytes_per_s) == {5e10}


@pytest.mark.parametrize("words", [{"ranks": 24}, {"sweep": (16, 48)}])
def test_ranks_that_are_no_power_of_two_are_refused(words):
    with pytest.raises(BadValueError, match="by two"):
        ContextParallel(**(SMALL | words)).check()


def test_a_longest_sequence_is_no_longer_than_the_batch():
    study = ContextParallel(ranks=2, lengths="equal", tokens_per_rank=1000, sweep=())
    study.check()
    assert study.batch(0, 2).lengths.tolist() == [2000]
    assert "1 sequence" in study.notes()[0]


def test_a_sharer_that_leaves_work_out_is_found():
    class Lazy:
        def step(self, batch):
            nothing = np.zeros(batch.cluster.ranks)
            return Step(time_s=1.0, compute_s=nothing, sent_bytes=nothing, received_bytes=nothing)

    class Early(Fcp):
        def step(self, batch):
            step = super().step(batch)
            return Step(
                time_s=step.time_s / 2, compute_s=step.compute_s, sent_bytes=step.sent_bytes,
                received_bytes=step.received_bytes,
            )  # fmt: skip

    for system in (Lazy(), Early()):
        with pytest.raises(BadValueError, match="less than the batch asks"):
            STUDY.measure(system, 0)


def test_documents_are_named_with_their_checksum_only_where_they_are_there(monkeypatch):
    assert STUDY.data() == {}
    monkeypatch.setattr("wavetank.training.context.study.document_classes", lambda: ((1, 10, 3),))
    (checksum,) = ContextParallel().data().values()
    assert len(checksum) == 64
    monkeypatch.setattr("wavetank.training.context.study.document_classes", lambda: None)
    assert ContextParallel().data() == {}
