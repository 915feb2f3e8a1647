"""Runs added up by hand, closed forms, and the adversary's cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.training.failures.jobs import STEP_S, job, timed
from tests.training.failures.step_by_step import Walk

from wavetank.errors import BadValueError
from wavetank.platforms.checkpoints import daly_time_ratio, young_interval_s
from wavetank.sim.rng import stream
from wavetank.training.failures.failure_times import StepFailures, poisson_failures
from wavetank.training.failures.interface import (
    ANSWERS,
    COMPUTE_ALL,
    COMPUTE_LOST,
    FROM_CHECKPOINT,
    LEAVE_OUT,
    REPLACE,
    SKIP_STEP,
    Plan,
)
from wavetank.training.failures.simulate import simulate

# With three replicas: the fullest has 3 microbatches, an all-reduce takes 4/3 s.
STEP_3_S = 3 + 4 / 3


class Always:
    """One answer, whatever happens."""

    def __init__(self, answer):
        self.given, self.seen = answer, []

    def plan(self, bench):
        return Plan()

    def answer(self, loss):
        self.seen.append(loss)
        return self.given


def run(answer, failures, plan=Plan(), broken_gpus=None, **other):  # noqa: B008  (a tuple)
    return simulate(job(**other), failures, Always(answer), plan, broken_gpus=broken_gpus)


def steps(every, *places):
    return StepFailures(every, np.array(places, dtype=float))


@pytest.mark.parametrize("answer", ANSWERS)
def test_without_failures_all_train_the_same_at_the_same_speed(answer):
    found = run(answer, timed(horizon_s=STEP_S * 100))
    assert (found.trained, found.computed, found.steps, found.dropped, found.failures) == (800, 800, 100, 0, 0)
    assert found.live_gpu_s == found.healthy_gpu_s == found.owned_gpu_s == STEP_S * 100 * 8
    assert found.per_gpu_hour(found.live_gpu_s) == pytest.approx(8000 / (STEP_S * 100 * 8) * 3600)


# A death at half of the second step's all-reduce, 2 + 0.75 s after its begin; then what the answer takes.
BROKEN_S = STEP_S + 2.75


@pytest.mark.parametrize(
    ("answer", "more_s", "trained", "computed", "dropped"),
    [
        (COMPUTE_LOST, 0.75 + 1 + 4 / 3, 16, 18, 0),
        (COMPUTE_ALL, 0.75 + 3 + 4 / 3, 16, 24, 0),
        (LEAVE_OUT, 0.75 + 4 / 3, 14, 16, 2),
        (SKIP_STEP, 0.75, 8, 16, 8),
        (FROM_CHECKPOINT, 0.25 + 20, 0, 16, 0),
    ],
)
def test_what_a_death_in_the_synchronisation_costs(answer, more_s, trained, computed, dropped):
    found = run(answer, steps(2, 0.5))
    assert found.time_s == pytest.approx(BROKEN_S + more_s)
    assert found.recovering_s == pytest.approx(more_s)
    assert (found.trained, found.computed, found.dropped, found.replicas) == (trained, computed, dropped, 3)
    assert found.live_gpu_s == pytest.approx(BROKEN_S * 8 + more_s * 6)
    assert found.owned_gpu_s == pytest.approx(found.time_s * 8)


def test_healthy_gpus_of_a_dropped_replica_are_healthy_but_not_live():
    found = run(COMPUTE_LOST, steps(2, 0.5), broken_gpus=1)
    more_s = found.time_s - BROKEN_S
    assert found.healthy_gpu_s == pytest.approx(found.time_s * 8 - more_s)
    assert run(COMPUTE_LOST, steps(2, 0.5)).healthy_gpu_s == pytest.approx(found.time_s * 8 - 2 * more_s)


def test_a_spare_takes_the_place_with_the_state_of_another_and_costs_gpu_hours_before():
    found = run(REPLACE, steps(2, 0.5), Plan(spares=1))
    assert found.time_s == pytest.approx(BROKEN_S + 0.75 + 2 + STEP_S)
    assert (found.trained, found.computed, found.replicas) == (16, 24, 4)
    assert found.live_gpu_s == pytest.approx(BROKEN_S * 10 + (0.75 + 2 + STEP_S) * 8)


def test_a_restart_goes_back_to_the_checkpoint_and_no_further():
    plan = Plan(checkpoint_every=2)
    # Two steps, a checkpoint, one step, and one that breaks.
    found = run(FROM_CHECKPOINT, steps(4, 1.0), plan)
    assert found.time_s == pytest.approx(4 * STEP_S + 1 + 20.25)
    assert (found.trained, found.computed, found.steps) == (16, 32, 2)
    # The same with the break at once after the checkpoint: nothing but the broken step is lost.
    assert run(FROM_CHECKPOINT, steps(3, 1.0), plan).trained == 16


def test_without_costs_and_losses_a_restart_is_as_good_as_recovery_in_the_step():
    free = {"detect_s": 0.0, "regroup_s": 0.0, "restart_s": 0.0, "checkpoint_s": 0.0}
    # Struck at the ends of steps, with a checkpoint after every one.
    failures = timed((STEP_S * 10, 0, 0.0), (STEP_S * 17, 2, 0.0), horizon_s=STEP_S * 30)
    restarted = run(FROM_CHECKPOINT, failures, Plan(checkpoint_every=1), **free)
    recovered = run(COMPUTE_ALL, failures, Plan(rejoins=True), copy_s=0.0, **free)
    never = run(FROM_CHECKPOINT, timed(horizon_s=STEP_S * 30), **free)
    assert restarted.trained == never.trained
    assert restarted.per_gpu_hour(restarted.live_gpu_s) == pytest.approx(never.per_gpu_hour(never.live_gpu_s))
    # In the step nothing is lost either, but one step goes on with fewer replicas.
    assert 0 < never.trained - recovered.trained <= 2 * 8


def test_a_death_in_the_computation_is_noticed_when_survivors_have_finished_theirs():
    # 0.5 s into the second step: 1.5 s of computation are left.
    found = run(COMPUTE_LOST, timed((STEP_S + 0.5, 1, math.inf), horizon_s=STEP_S + 0.5 + 1.5 + 0.75 + 1 + 4 / 3))
    assert found.trained == 16
    late = run(COMPUTE_LOST, timed((STEP_S + 0.5, 1, math.inf), horizon_s=STEP_S + 0.5 + 1.5 + 0.75 + 1 + 1.3))
    assert late.trained == 8


def test_a_death_during_a_recovery_begins_it_again():
    first_s, second_s = 2.75, 3.0
    end_s = second_s + 0.75 + 2 + 1 + 1000 * (4 + 1)
    found = run(COMPUTE_LOST, timed((first_s, 0, math.inf), (second_s, 1, math.inf), horizon_s=end_s))
    # With two replicas: 4 microbatches each, an all-reduce of 1 s.
    assert (found.trained, found.failures, found.replicas) == (1001 * 8, 2, 2)
    assert found.recovering_s == pytest.approx(0.25 + 0.75 + 2 + 1)


def test_a_death_during_a_restart_begins_it_again():
    end_s = 10.0 + 20.25 + 100 * 5
    found = run(FROM_CHECKPOINT, timed((1.0, 0, math.inf), (10.0, 1, math.inf), horizon_s=end_s))
    assert found.trained == 800
    assert found.recovering_s == pytest.approx(9 + 20.25)


def test_a_restart_takes_repaired_machines_in_and_others_do_so_only_if_they_rejoin():
    failures = timed((1.0, 0, 5.0), (1000.0, 1, math.inf), horizon_s=2000.0)
    assert run(FROM_CHECKPOINT, failures).replicas == 3
    assert run(COMPUTE_LOST, failures).replicas == 2
    back = run(COMPUTE_LOST, failures, Plan(rejoins=True))
    assert back.replicas == 3
    gone_s = back.owned_gpu_s / 8 - back.live_gpu_s / 2 / 4
    # One replica is missing for about 10 of the first seconds, another one for the last thousand.
    assert 0.25 * 1000 < gone_s < 0.25 * 1012


def test_a_machine_that_fails_while_it_is_not_in_use_strikes_nobody():
    failures = timed((1.0, 0, 50.0), (60.0, 0, 70.0), (61.0, 3, math.inf), horizon_s=500.0)
    found = run(COMPUTE_LOST, failures)
    assert (found.failures, found.replicas) == (2, 2)
    # Yet it is broken: 49 s, 10 s and to the end.
    assert found.healthy_gpu_s == pytest.approx(500 * 8 - (49 + 10 + 439) * 2)


def test_a_spare_that_has_failed_is_used_after_its_repair_alone():
    policy = Always(REPLACE)
    failures = timed((1.0, 4, 100.0), (200.0, 0, math.inf), horizon_s=400.0)
    found = simulate(job(), failures, policy, Plan(spares=1))
    assert policy.seen[0].spares == 1
    assert (found.replicas, found.failures) == (4, 1)
    with pytest.raises(BadValueError, match="0 spares"):
        simulate(job(), timed((1.0, 4, 100.0), (50.0, 0, math.inf)), policy, Plan(spares=1))


def test_a_failure_while_a_checkpoint_is_written_spoils_it():
    plan = Plan(checkpoint_every=2)
    struck_s = 2 * STEP_S + 0.5
    found = run(FROM_CHECKPOINT, timed((struck_s, 0, math.inf), horizon_s=struck_s + 20.25), plan)
    assert found.trained == 0
    # Neither is it there where the time is up in the middle of the restart.
    assert run(FROM_CHECKPOINT, timed((struck_s, 0, math.inf), horizon_s=struck_s + 10.0), plan).trained == 0
    kept = run(COMPUTE_LOST, timed((struck_s, 0, math.inf), horizon_s=struck_s + 0.75), plan)
    assert kept.trained == 16


def test_the_last_replica_goes_on_alone_and_without_it_the_run_is_over():
    rows = [(10.0 * place, place, math.inf) for place in range(3)]
    assert run(COMPUTE_LOST, timed(*rows, horizon_s=10_000.0)).replicas == 1
    over = run(COMPUTE_LOST, timed(*rows, (40.0, 3, math.inf), horizon_s=10_000.0))
    assert (over.replicas, over.trained) == (0, 0)
    # With a checkpoint it waits for the first machine that comes back.
    waits = run(
        FROM_CHECKPOINT,
        timed(*rows, (40.0, 3, 500.0), horizon_s=10_000.0),
        Plan(checkpoint_every=1),
    )  # fmt: skip
    assert waits.replicas == 1
    assert waits.trained > 0


def test_a_batch_that_shrinks_stays_small():
    found = run(LEAVE_OUT, steps(2, 0.5, 0.5), Plan(keeps_batch=False))
    # 8, then 6 of 8, then 6, then 4 of 6.
    assert (found.trained, found.wanted, found.dropped) == (24, 32, 4)


@pytest.mark.parametrize("bad", [Plan(checkpoint_every=-1), Plan(spares=-1)])
def test_a_plan_that_is_none_is_refused(bad):
    with pytest.raises(BadValueError, match="counts steps and spares"):
        run(COMPUTE_LOST, steps(2, 0.5), bad)


@pytest.mark.parametrize("answer", ["", "pray", REPLACE])
def test_an_answer_that_is_none_is_refused(answer):
    with pytest.raises(BadValueError, match="cannot do"):
        run(answer, steps(2, 0.5))


def test_time_with_checkpoints_and_memoryless_failures_is_dalys_within_two_per_cent():
    large = job(replicas=16, microbatches=32, restart_s=30.0, detect_s=0.0, checkpoint_s=5.0)
    step_s = large.step_s(32, 16)
    for mtbf_s, every in ((600.0, 10), (600.0, 40), (3000.0, 30), (300.0, 14)):
        # A machine that is back at once: the job is whole after every restart.
        runs = [
            simulate(large, poisson_failures(16, mtbf_s * 16, 0.0, 4e6, stream(seed, "daly")), Always(FROM_CHECKPOINT),
                     Plan(checkpoint_every=every))
            for seed in range(2)
        ]  # fmt: skip
        ratio = sum(run.time_s for run in runs) / sum(run.steps * step_s for run in runs)
        assert ratio == pytest.approx(daly_time_ratio(every * step_s, 5.0, 30.0, mtbf_s), rel=0.02)


def test_the_interval_that_is_best_in_simulation_wastes_as_little_as_youngs_within_two_per_cent():
    large = job(replicas=16, microbatches=32, restart_s=30.0, detect_s=0.0, checkpoint_s=5.0)
    step_s = large.step_s(32, 16)
    failures = poisson_failures(16, 1200.0 * 16, 0.0, 4e6, stream(0, "young"))
    times = {
        every: simulate(large, failures, Always(FROM_CHECKPOINT), Plan(checkpoint_every=every)).steps
        for every in (2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 64, 96)
    }
    young = round(young_interval_s(5.0, 1200.0) / step_s)
    at_young = simulate(large, failures, Always(FROM_CHECKPOINT), Plan(checkpoint_every=young)).steps
    assert at_young >= 0.98 * max(times.values())
    assert min(times, key=times.get) in (2, 4, 96)


@given(
    rows=st.lists(st.tuples(st.floats(0, 300), st.integers(0, 5), st.floats(0, 100)), max_size=12),
    answer=st.sampled_from([each for each in ANSWERS if each != REPLACE]),
    plan=st.builds(Plan, checkpoint_every=st.integers(0, 5), spares=st.integers(0, 2), keeps_batch=st.booleans(),
                   rejoins=st.booleans()),
)  # fmt: skip
def test_books_balance_whatever_fails(rows, answer, plan):
    failures = timed(*sorted((time_s, machine, time_s + away_s) for time_s, machine, away_s in rows), horizon_s=250.0)
    found = run(answer, failures, plan)
    assert 0 <= found.trained <= found.wanted <= found.steps * 8
    assert found.trained <= found.computed
    assert found.live_gpu_s <= found.owned_gpu_s + 1e-6
    assert 0 <= found.healthy_gpu_s <= found.owned_gpu_s + 1e-6
    assert found.time_s <= 250.0 + 1e-6
    assert found.failures <= len(rows)
    # Whatever happens, no run is faster than one in which nothing does.
    assert found.trained <= run(answer, timed(horizon_s=250.0)).trained


def drawn(seed):
    """A random job, its failures, an answer and a plan; no two times are equal."""
    draws = np.random.default_rng(seed)
    replicas = int(draws.integers(1, 7))
    of = job(
        replicas=replicas, gpus=int(draws.integers(1, 5)), microbatches=replicas * int(draws.integers(1, 5)),
        microbatch_s=draws.uniform(0.05, 2), gradient_bytes=draws.uniform(0, 4e9), snapshot_s=draws.uniform(0, 0.3),
        **{name: draws.choice([0.0, 0.3, 3.0, 30.0]) * draws.uniform(0.5, 1)
           for name in ("detect_s", "regroup_s", "copy_s", "checkpoint_s", "restart_s")},
    )  # fmt: skip
    plan = Plan(
        checkpoint_every=int(draws.choice([0, 1, 2, 7])), spares=int(draws.choice([0, 0, 1, 3])),
        keeps_batch=bool(draws.random() < 0.5), snapshots=bool(draws.random() < 0.5),
        rejoins=bool(draws.random() < 0.5),
    )  # fmt: skip
    horizon_s = draws.choice([0.5, 50.0, 400.0]) * draws.uniform(0.5, 1)
    count = int(draws.choice([0, 1, 5, 20, 60]))
    longest_s = draws.choice([0.0, 5.0, 100.0, math.inf])
    rows = sorted(
        (time_s, int(draws.integers(replicas + plan.spares + 1)),
         math.inf if longest_s == math.inf else time_s + draws.uniform(0, longest_s))
        for time_s in draws.uniform(0, 1.2 * horizon_s, count)
    )  # fmt: skip
    return of, rows, horizon_s, str(draws.choice(ANSWERS)), plan


class OrRestart(Always):
    """Replaces while there are spares."""

    def answer(self, loss):
        return FROM_CHECKPOINT if self.given == REPLACE and not loss.spares else self.given


def books(found):
    return [found.steps, found.trained, found.wanted, found.computed, found.dropped, found.failures, found.replicas,
            found.time_s, found.recovering_s, found.live_gpu_s, found.healthy_gpu_s, found.owned_gpu_s]  # fmt: skip


def test_books_are_those_of_a_walk_step_by_step():
    deaths = 0
    for seed in range(400):
        of, rows, horizon_s, answer, plan = drawn(seed)
        walk = Walk(of, rows, horizon_s, answer, plan)
        walk.go()
        found = simulate(of, timed(*rows, horizon_s=horizon_s), OrRestart(answer), plan, broken_gpus=1)
        assert books(found) == pytest.approx(walk.books(1)), (seed, answer, plan)
        deaths += walk.deaths
    assert deaths > 1000


def test_who_dies_while_others_join_takes_back_no_time():
    # Joining takes from 7 s to 47.5 s; a replica dies at 8 s.
    failures = timed((0.5, 3, 6.0), (8.0, 0, math.inf), horizon_s=200.0)
    found = run(COMPUTE_LOST, failures, Plan(checkpoint_every=1, rejoins=True), copy_s=40.0)
    walk = Walk(job(copy_s=40.0), [(0.5, 3, 6.0), (8.0, 0, math.inf)], 200.0, COMPUTE_LOST,
                Plan(checkpoint_every=1, rejoins=True))  # fmt: skip
    walk.go()
    assert books(found) == pytest.approx(walk.books(2))
    assert found.time_s == 200.0


def test_a_machine_that_fails_again_before_it_is_used_only_stays_away_for_longer():
    # Both are away at 2 s; the second would be back at 30 s, but for a failure at 20 s.
    failures = timed((1.0, 0, 50.0), (2.0, 1, 30.0), (20.0, 1, 90.0), horizon_s=200.0)
    found = run(FROM_CHECKPOINT, failures, Plan(checkpoint_every=1), replicas=2, restart_s=0.0)
    assert found.failures == 2
    assert found.replicas == 1


def test_a_repaired_replica_joins_at_the_next_step_however_long_a_checkpoint_takes():
    # Three replicas do steps from 0.5 s on; the fourth is back at 40 s.
    failures = timed((0.0, 3, 40.0), horizon_s=60.0)
    runs = [run(SKIP_STEP, failures, Plan(rejoins=True), checkpoint_s=each) for each in (0.0, 25.0)]
    assert books(runs[0]) == books(runs[1])
    assert runs[0].replicas == 4
