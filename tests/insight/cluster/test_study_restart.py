"""Study restart-policy: figures against the runs they come from, sweeps, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.cluster.incidents import simulate
from wavetank.insight.cluster.restart_policies import RestartAtOnce, RestartByHand, SuspectRestart
from wavetank.insight.cluster.study_restart import RestartPolicies
from wavetank.platforms.checkpoints import daly_interval_s

STUDY = RestartPolicies(innocents=(0.0,), softwares=(0.0,), reactions=())


def figures(policy, seed: int = 1, **at: float) -> dict[str, float]:
    return {metric: value for metric, value, where in STUDY.measure(policy, seed).rows if where == at}


def test_figures_are_those_of_the_run() -> None:
    run, found = simulate(STUDY.site(), SuspectRestart(), 1), figures(SuspectRestart())
    assert found["trained_share"] == run.trained_s / run.total_s
    assert found["chain_success"] == run.succeeded / run.chains
    assert found["innocent_per_month"] == pytest.approx(run.innocent / (365 / 30), rel=0.02)
    counts = sorted(np.bincount(run.excluded, minlength=63), reverse=True)
    assert found["top3_share"] == pytest.approx(sum(counts[:3]) / sum(counts))
    assert figures(RestartAtOnce())["top3_share"] > 0.5
    chosen = daly_interval_s(120.0, run.gaps_s.mean())
    assert found["interval_off"] == pytest.approx(abs(chosen / daly_interval_s(120.0, 36 * 3600.0) - 1))


def test_suspects_beat_hands_and_plain_restarts_and_take_out_few_innocents() -> None:
    hand, once, ours = (figures(each) for each in (RestartByHand(), RestartAtOnce(), SuspectRestart()))
    assert ours["chain_success"] > once["chain_success"] > hand["chain_success"]
    assert ours["trained_share"] > max(once["trained_share"], hand["trained_share"])
    assert ours["calls_per_month"] < once["calls_per_month"] < hand["calls_per_month"]


def test_sweeps_hold_the_setting_itself_and_others() -> None:
    assert figures(RestartAtOnce(), software=1.0)["chain_success"] == figures(RestartAtOnce())["chain_success"]
    without = figures(RestartAtOnce(), software=0.0)["chain_success"]
    assert without == pytest.approx(0.5, abs=0.1)
    assert figures(SuspectRestart(), innocent=0.0)["chain_success"] > 0.6


def test_too_short_a_run_and_too_few_nodes_are_refused() -> None:
    with pytest.raises(BadValueError, match="ten troubles"):
        RestartPolicies(days=5.0).check()
    with pytest.raises(BadValueError, match="needs nodes"):
        RestartPolicies(needed=64).check()
