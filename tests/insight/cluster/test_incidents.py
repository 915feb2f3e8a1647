"""Chains of restarts: known answers, concentration by brute force, and what cannot be."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.cluster.incidents import (
    NODE,
    SOFTWARE,
    Failed,
    Restart,
    Site,
    gini,
    simulate,
    top_share,
    troubles,
)
from wavetank.insight.cluster.restart_policies import AlwaysExclude, RestartAtOnce, RestartByHand, SuspectRestart
from wavetank.sim.rng import stream

POLICIES = [RestartByHand(), RestartAtOnce(), AlwaysExclude(), SuspectRestart()]
SITE = Site(days=200.0)


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_without_persistent_faults_every_chain_succeeds(policy) -> None:
    site = replace(SITE, shares=(1.0, 0.0, 0.0))
    if isinstance(policy, AlwaysExclude):
        # Otherwise it runs out of nodes, and waits: that succeeds as well.
        site = replace(site, innocent=0.0)
    run = simulate(site, policy, 1)
    assert run.chains > 80 and run.succeeded == run.chains


@pytest.mark.parametrize("policy", POLICIES)
def test_with_persistent_faults_of_software_none_does(policy) -> None:
    run = simulate(replace(SITE, shares=(0.0, 0.0, 1.0)), policy, 1)
    assert run.chains > 80 and run.succeeded == 0 and run.calls == run.chains


def test_bad_nodes_stay_bad_until_they_are_out() -> None:
    site = replace(SITE, shares=(0.0, 1.0, 0.0))
    assert simulate(site, RestartAtOnce(), 1).succeeded == 0
    known = simulate(replace(site, named=1.0, innocent=0.0), AlwaysExclude(), 1)
    assert known.succeeded == known.chains == known.attempts and known.innocent == 0


def test_the_even_mix_gives_a_third_on_the_same_nodes() -> None:
    runs = [simulate(Site(days=2000.0), RestartAtOnce(), seed) for seed in range(3)]
    assert sum(run.succeeded for run in runs) / sum(run.chains for run in runs) == pytest.approx(1 / 3, abs=0.03)


def test_a_restart_by_hand_succeeds_when_the_disturbance_passes_before_the_human_comes() -> None:
    site = replace(SITE, days=3000.0, shares=(1.0, 0.0, 0.0))
    run = simulate(site, RestartByHand(), 1)
    drawn = stream(9, "by hand")
    passes = drawn.random(200_000) * site.disturbance_s < site.reaction_s * drawn.lognormal(0.0, 1.0, 200_000)
    assert run.succeeded / run.chains == pytest.approx(passes.mean(), abs=0.03)


def test_time_is_accounted_for_to_the_second() -> None:
    class Twice:
        def begin(self, nodes: int):
            return self

        def decide(self, failed: Failed) -> Restart:
            return Restart(call=True) if failed.attempt == 2 else Restart(wait_s=100.0)

    site = replace(SITE, shares=(0.0, 0.0, 1.0), mtbf_s=1e6)
    run = simulate(site, Twice(), 4)
    met = troubles(site, 4)
    # No trouble strikes within the repair of another here.
    assert run.chains == len(met) > 10
    down_s = sum(2 * (100 + site.restart_s) + each.reaction_s + site.fix_s for each in met)
    assert run.trained_s == pytest.approx(run.total_s - down_s)
    assert run.attempts == 2 * run.chains and {each.cause for each in met} == {SOFTWARE}


def test_a_job_waits_until_enough_nodes_are_back() -> None:
    class Everybody:
        def begin(self, nodes: int):
            return self

        def decide(self, failed: Failed) -> Restart:
            return Restart(exclude=tuple(range(10)))

    site = replace(SITE, days=20.0, shares=(1.0, 0.0, 0.0), mtbf_s=1e5)
    run = simulate(site, Everybody(), 2)
    # Ten of 63 out: the job waits for a whole repair.
    assert run.chains >= 1 and run.total_s - run.trained_s >= run.chains * site.repair_s
    assert run.innocent == run.excluded.size == 10 * run.chains


def test_troubles_are_the_same_for_all_and_lemons_have_their_share() -> None:
    site = Site(days=3000.0, shares=(0.0, 1.0, 0.0))
    met = troubles(site, 3)
    assert met == troubles(site, 3) and {each.cause for each in met} == {NODE}
    counts = np.bincount([each.node for each in met], minlength=site.nodes)
    assert top_share(counts, 3) == pytest.approx(0.6 + 0.4 * 3 / 63, abs=0.04)
    assert len(met) == pytest.approx(3000 * 24 / 36, rel=0.1)


def test_concentration_is_what_pairs_of_nodes_differ_by() -> None:
    counts = stream(1, "counts").integers(0, 9, 40)
    pairs = np.abs(counts[:, None] - counts[None, :]).mean() / (2 * counts.mean())
    assert gini(counts) == pytest.approx(pairs)
    assert gini([5, 5, 5]) == pytest.approx(0.0) and gini([0, 0, 0, 7]) == pytest.approx(0.75)
    assert top_share([1, 7, 2], 2) == pytest.approx(0.9) and top_share([1, 1], 9) == 1.0


@pytest.mark.parametrize("counts", [[], [0, 0], [1, -1], [1, math.nan]])
def test_no_counts_have_no_concentration(counts) -> None:
    with pytest.raises(BadValueError):
        gini(counts)
    with pytest.raises(BadValueError):
        top_share([1], 0)


@pytest.mark.parametrize(
    "wrong",
    [{"needed": 64}, {"needed": 2}, {"lemons": 64}, {"shares": (0.0, 0.0, 0.0)}, {"shares": (1.0, -1.0, 1.0)},
     {"mtbf_s": 0.0}, {"days": math.inf}, {"named": 1.5}, {"innocent": math.nan}, {"fix_s": math.nan}],
)  # fmt: skip
def test_a_site_that_there_cannot_be_is_refused(wrong) -> None:
    with pytest.raises(BadValueError):
        Site(**wrong)


def test_a_policy_that_goes_on_for_ever_is_stopped() -> None:
    with pytest.raises(BadValueError, match="for ever"):
        simulate(replace(SITE, shares=(0.0, 0.0, 1.0)), _Stubborn(), 1)


class _Stubborn:
    def begin(self, nodes: int):
        return self

    def decide(self, failed: Failed) -> Restart:
        return Restart()
