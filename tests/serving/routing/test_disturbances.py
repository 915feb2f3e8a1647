"""Workers that come and go while routers are compared: what settings mean, and what is lost."""

from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.routing.disturbances import Disturbances
from wavetank.serving.routing.study import LLMRouting
from wavetank.serving.routing.vllm_default import VLLMDefault

SMALL = {"requests": 1500, "loads": (), "refreshes_s": (), "workers": 4, "max_running": 16, "load": 0.7}


def figures(**more):
    found = LLMRouting(**{**SMALL, **more}).measure(VLLMDefault(), 0)
    return {metric: value for metric, value, at in found.rows if not at and metric != "decision_s"}


def test_nothing_happens_by_default():
    assert Disturbances().churn_over(16, 100.0, 0) is None
    assert Disturbances().notes_on_churn() == ()
    assert "unserved_share" not in figures()


def test_failures_take_the_asked_share_of_the_time():
    churn = Disturbances(churn="failures", gone_share=0.2, gone_s=30.0).churn_over(16, 100.0, 7)
    assert churn.repair_s / (churn.time_to_failure_s + churn.repair_s) == pytest.approx(0.2)
    assert (churn.repair_s, churn.seed) == (30.0, 7)


@pytest.mark.parametrize("workers, share, at_once, batches", [(16, 0.125, 2, 8), (16, 0.3, 5, 4), (3, 0.1, 1, 3)])
def test_restarts_follow_each_other_without_a_break(workers, share, at_once, batches):
    settings = Disturbances(churn="rolling-restart", gone_share=share, gone_s=20.0, drain_s=10.0)
    churn = settings.churn_over(workers, 1000.0, 0)
    assert churn.restart_at_once == at_once
    gaps = {round(b - a, 9) for a, b in zip(churn.restarts_s, churn.restarts_s[1:], strict=False)}
    assert gaps == {batches * 30.0}
    assert churn.restarts_s[0] == 0.0 and churn.restarts_s[-1] < 1000.0 <= churn.restarts_s[-1] + batches * 30.0


def test_drained_for_long_enough_nothing_is_lost_and_without_it_streams_are():
    gently = figures(churn="rolling-restart", gone_share=0.25, drain_s=120.0, gone_s=5.0)
    rudely = figures(churn="rolling-restart", gone_share=0.25, drain_s=0.0, gone_s=5.0)
    assert gently["unserved_share"] == 0.0
    assert rudely["unserved_share"] > 0.0
    assert rudely["up_share"] < 1.0


def test_recomputed_streams_are_not_lost_but_late():
    lost = figures(churn="failures", gone_s=5.0, gone_share=0.2, wait_s=60.0)
    kept = figures(churn="failures", gone_s=5.0, gone_share=0.2, wait_s=60.0, streams="recomputed")
    assert lost["unserved_share"] > kept["unserved_share"]
    assert kept["resent_share"] > 0.0


def test_capacity_is_of_workers_that_run_all_the_time():
    assert figures(churn="failures")["capacity_tokens_per_s"] == figures()["capacity_tokens_per_s"]


def test_equal_seeds_fail_alike_and_others_otherwise():
    assert figures(churn="failures", gone_s=5.0) == figures(churn="failures", gone_s=5.0)


@pytest.mark.parametrize("layout", ["group", "decode-group", "split"])
def test_workers_that_need_each_other_do_not_come_and_go(layout):
    with pytest.raises(BadValueError, match="come and go as replicas"):
        LLMRouting(**SMALL, churn="failures", layout=layout).check()


def test_what_happens_is_said():
    said = {"failures": "fails at random", "rolling-restart": "drain for up to", "autoscale": "an autoscaler looks"}
    for churn, words in said.items():
        (note,) = Disturbances(churn=churn).notes_on_churn()
        assert words in note and "capacity and the saturation rate are of workers that run all the time" in note
