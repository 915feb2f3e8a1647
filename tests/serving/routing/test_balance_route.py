"""BalanceRoute: the checks of its dossier, its forecasts and its placements."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.routing.balance_route import (
    GEOMETRIC,
    LOGISTIC,
    NONE,
    ORACLE,
    BalanceRoute,
    _best_size,
    forecast,
    score,
)
from wavetank.serving.routing.baselines import FewestKVTokens, FewestRequests, RandomWorker, RoundRobin
from wavetank.serving.routing.power_of_two import PowerOfTwo
from wavetank.serving.routing.vllm_default import VLLMDefault
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.simulate import simulate
from wavetank.sim.rng import stream
from wavetank.workloads import RequestTrace, generate_requests

KINDS = ("none", "geometric", "logistic", "oracle")
BR0 = BalanceRoute(horizon_steps=0)


def imbalance(loads):
    return len(loads) * np.max(loads) - np.sum(loads)


@st.composite
def decisions(draw, roomy=False):
    """Draw what makes up a decision: workers, waiting requests and decoding requests, as plain lists."""
    n = draw(st.integers(1, 7))
    small = st.integers(0, 5)
    each = lambda values: st.lists(values, min_size=n, max_size=n)  # noqa: E731
    alive = draw(
        st.lists(
            st.tuples(st.integers(0, n - 1), st.integers(1, 900), st.integers(1, 60), st.integers(1, 40)), max_size=8
        )
    )
    held = np.zeros(n)
    count = np.zeros(n, np.int64)
    for worker, prompt, generated, _ in alive:
        held[worker] += prompt + generated - 1
        count[worker] += 1
    view = {
        "kv_tokens": held,
        "running": count,
        "slots": count + draw(each(small)),
        "waiting": draw(each(st.integers(0, 1))),
        "sent_requests": draw(each(st.integers(0, 1))),
        "waiting_tokens": draw(each(st.sampled_from([0, 300]))),
        "sent_tokens": draw(each(st.sampled_from([0, 200]))),
        "kv_capacity_tokens": np.full(n, 1e9) if roomy else held + draw(each(st.integers(0, 4000))),
    }
    prompts = draw(st.lists(st.integers(1, 2000), max_size=14))
    waited = draw(st.lists(st.sampled_from([0, 5, 300]), min_size=len(prompts), max_size=len(prompts)))
    return n, view, prompts, waited, alive


def free_slots(view):
    return np.maximum(view.slots - view.running - view.waiting - view.sent_requests, 0)


class TestCheck1TheScoreIsTheFallOfTheImbalance:
    @given(st.lists(st.integers(0, 10**6), min_size=1, max_size=8), st.integers(0, 7), st.integers(1, 10**6))
    def test_on_random_loads_it_equals_the_recomputed_difference(self, loads, worker, size):
        worker %= len(loads)
        after = list(loads)
        after[worker] += size
        margin = max(loads) - loads[worker]
        assert score(float(size), float(margin), len(loads) - 1.0) == imbalance(loads) - imbalance(after)

    def test_a_request_that_fits_the_margin_scores_its_size(self):
        # Loads 10, 4, 7: the imbalance falls from 9 to 3.
        assert score(6.0, 6.0, 2.0) == 6.0

    def test_one_that_does_not_fills_the_margin_and_costs_all_others_the_rest(self):
        # Loads 10, 4, 7 to 10, 14, 7: the imbalance rises from 9 to 11.
        assert score(10.0, 6.0, 2.0) == -2.0

    def test_alpha_is_the_price_of_the_overflow(self):
        assert score(10.0, 6.0, 0.5) == 4.0


class TestCheck2SymmetricPools:
    @given(st.integers(1, 8), st.integers(1, 12), st.integers(0, 5000), st.integers(1, 3000), st.integers(0, 20))
    def test_equal_sizes_on_equal_loads_leave_at_most_one_request_for_each_other_worker(
        self, workers, pool, placed, n, slots, load, size, waiting
    ):
        view = workers(n, kv_tokens=float(load), slots=slots)
        loads = np.full(n, float(load))
        for worker in placed(BR0, view, pool([size] * waiting)):
            if worker >= 0:
                loads[worker] += size
        assert imbalance(loads) <= (n - 1) * size

    def test_a_lone_worker_has_no_imbalance_and_takes_all_it_has_slots_for(self, workers, pool, placed):
        assert sorted(placed(BR0, workers(1, slots=2), pool([9, 5, 7]))) == [-1, 0, 0]


class TestCheck3Limits:
    @given(decisions(), st.sampled_from(KINDS), st.floats(0, 1))
    @settings(max_examples=200)
    def test_a_horizon_of_zero_is_br_0_decision_by_decision(self, workers, pool, active, placed, case, kind, discount):
        n, view, prompts, waited, alive = case
        other = BalanceRoute(horizon_steps=0, termination=kind, discount=discount, mean_output_tokens=3.0)
        seen = workers(n, **view), pool(prompts, waited), active(*alive)
        assert placed(other, *seen) == placed(BR0, *seen)

    @given(decisions(), st.sampled_from(KINDS), st.integers(1, 20))
    @settings(max_examples=200)
    def test_a_discount_of_zero_is_br_0_decision_by_decision(self, workers, pool, active, placed, case, kind, horizon):
        n, view, prompts, waited, alive = case
        other = BalanceRoute(horizon_steps=horizon, termination=kind, discount=0.0, mean_output_tokens=3.0)
        seen = workers(n, **view), pool(prompts, waited), active(*alive)
        assert placed(other, *seen) == placed(BR0, *seen)

    def test_a_horizon_changes_decisions(self, workers, pool, active, placed):
        # Worker 0 is a little heavier now and empty in two steps.
        view = workers(2, kv_tokens=[110.0, 100.0], running=1, slots=2)
        alive = active((0, 100, 11, 2), (1, 90, 11, 50))
        far = BalanceRoute(horizon_steps=16, termination="oracle", discount=1.0)
        assert placed(BR0, view, pool([50]), alive) == [1]
        assert placed(far, view, pool([50]), alive) == [0]

    def test_whole_runs_agree_at_the_limits_and_differ_beyond(self):
        requests = generate_requests(rate_per_s=60.0, n_requests=400, seed=1)
        cluster = Cluster(workers=4, group_size=4, max_running=16, sync_s=1e-3)
        finish_s = [
            simulate(requests, cluster, router).finish_s
            for router in (
                BR0,
                BalanceRoute(horizon_steps=0, termination="oracle", discount=0.3),
                BalanceRoute(horizon_steps=8, termination="oracle", discount=0.0),
                BalanceRoute(horizon_steps=8, termination="oracle", discount=0.9),
            )
        ]
        assert np.array_equal(finish_s[0], finish_s[1])
        assert np.array_equal(finish_s[0], finish_s[2])
        assert not np.array_equal(finish_s[0], finish_s[3])


ROUTERS = st.builds(
    BalanceRoute,
    horizon_steps=st.sampled_from([0, 1, 6]),
    termination=st.sampled_from(KINDS),
    discount=st.sampled_from([0.0, 0.9, 1.0]),
    alpha=st.sampled_from([None, 0.0, 0.5, 30.0]),
    patience_steps=st.sampled_from([0, 5, 200]),
)


class TestCheck4WorkConservation:
    @given(decisions(roomy=True), ROUTERS)
    @settings(max_examples=200)
    def test_with_room_in_the_caches_as_many_are_placed_as_there_are_slots(
        self, workers, pool, active, placed, case, router
    ):
        n, given_view, prompts, waited, alive = case
        view = workers(n, **given_view)
        where = placed(router, view, pool(prompts, waited), active(*alive))
        assert sum(w >= 0 for w in where) == min(len(prompts), free_slots(view).sum())

    @given(decisions(), ROUTERS)
    @settings(max_examples=200)
    def test_no_worker_gets_more_than_its_slots_and_its_cache_take_and_none_is_left_free_that_could_take_one(
        self, workers, pool, active, placed, case, router
    ):
        n, given_view, prompts, waited, alive = case
        view = workers(n, **given_view)
        where = np.array(placed(router, view, pool(prompts, waited), active(*alive)), np.int64)
        room = view.kv_capacity_tokens - view.kv_tokens - view.waiting_tokens - view.sent_tokens
        left = [prompt for prompt, w in zip(prompts, where, strict=True) if w < 0]
        for worker in range(n):
            taken = [prompt for prompt, w in zip(prompts, where, strict=True) if w == worker]
            late = [p for p, w, w_steps in zip(prompts, where, waited, strict=True)
                    if w == worker and w_steps > router.patience_steps]  # fmt: skip
            assert len(taken) <= free_slots(view)[worker]
            # Only what was passed over too often may have to wait for room at the worker.
            assert len(taken) == len(late) or sum(taken) <= room[worker]
            if len(taken) < free_slots(view)[worker]:
                assert all(prompt > room[worker] - sum(taken) for prompt in left)

    @given(decisions(), ROUTERS)
    def test_a_decision_depends_on_what_it_is_shown_and_leaves_that_alone(
        self, workers, pool, active, placed, case, router
    ):
        n, given_view, prompts, waited, alive = case
        seen = workers(n, **given_view), pool(prompts, waited), active(*alive)
        before = [array.copy() for part in seen for array in part]
        assert placed(router, *seen) == placed(router, *seen)
        assert all(
            np.array_equal(a, b, equal_nan=True) for a, b in zip(before, [x for p in seen for x in p], strict=True)
        )

    def test_a_placed_request_never_moves_and_every_request_is_served_once(self):
        prompts = stream(2, "prompts").permutation(np.arange(100, 400))
        requests = RequestTrace(
            arrival_s=np.arange(300) * 5e-3, prompt_tokens=prompts, output_tokens=np.tile([20, 50, 90], 100)
        )
        placements = []

        class Noting(BalanceRoute):
            def place(self, view, pool, active, state, parameters, placed):
                count = BalanceRoute.place(view, pool, active, state, parameters, placed)
                placements.extend(zip(pool.prompt_tokens[placed >= 0].tolist(), placed[placed >= 0], strict=True))
                return count

        cluster = Cluster(workers=4, group_size=4, max_running=8, kv_capacity_tokens=2500)
        run = simulate(requests, cluster, Noting())
        assert run.preemptions.sum() > 0
        assert len(placements) == 300
        assert dict(placements) == dict(zip(prompts.tolist(), run.worker, strict=True))

    def test_a_slot_without_room_is_not_masked_by_and_does_not_mask_another(self, workers, pool, placed):
        view = workers(2, slots=4, kv_capacity_tokens=[10.0, 1000.0])
        assert placed(BR0, view, pool([50, 60])) == [1, 1]


class TestCheck6IndependentReplicas:
    def test_routing_hardly_changes_the_throughput_of_independent_replicas_at_moderate_load(self):
        requests = generate_requests(rate_per_s=60.0, n_requests=6000, seed=3)
        cluster = Cluster(workers=8)
        routers = (
            RoundRobin(), RandomWorker(), FewestRequests(), FewestKVTokens(), PowerOfTwo(), VLLMDefault(), BR0,
            BalanceRoute(),
        )  # fmt: skip
        runs = [simulate(requests, cluster, router).metrics() for router in routers]
        assert 1 - runs[0]["idle_share"] > 0.3
        rates = [run["throughput_tokens_per_s"] for run in runs]
        assert max(rates) / min(rates) < 1.02


class TestBestSize:
    @given(
        st.lists(st.floats(0, 50), min_size=1, max_size=8),
        st.floats(0, 1),
        st.sampled_from([0.0, 0.4, 1.0, 7.0]),
    )
    @settings(max_examples=200)
    def test_no_size_on_a_fine_grid_scores_more(self, margins, discount, alpha):
        margins = np.array(margins)
        weights = discount ** np.arange(margins.size)
        weights[0] = 1.0

        def total(size):
            return sum(w * score(size + h, m, alpha) for h, (w, m) in enumerate(zip(weights, margins, strict=True)))

        best = total(_best_size(margins, weights, alpha))
        grid = np.concatenate([np.arange(-10.0, 60.0, 0.1), margins - np.arange(margins.size)])
        assert best >= max(total(size) for size in grid) - 1e-9 * margins.size * 100

    def test_with_one_margin_it_is_the_margin(self):
        assert _best_size(np.array([37.0]), np.ones(1), 3.0) == 37.0

    def test_of_two_margins_a_large_alpha_takes_the_tighter_and_a_small_one_the_wider(self):
        margins, weights = np.array([30.0, 51.0]), np.ones(2)
        assert _best_size(margins, weights, 3.0) == 30.0
        assert _best_size(margins, weights, 0.5) == 50.0


def placed_slowly(router, view, prompts, alive):
    """Apply the two stages with no heap and no bisection: the emptiest worker, then the request that scores best."""
    n = view.running.size
    alpha = n - 1.0 if router.alpha is None else router.alpha
    loads = np.empty((n, router.horizon_steps + 1))
    kind = KINDS.index(router.termination) if router.horizon_steps else 0
    forecast(view, alive, (NONE, GEOMETRIC, LOGISTIC, ORACLE)[kind], router.parameters(), loads)
    ahead = np.arange(router.horizon_steps + 1)
    weights = router.discount**ahead
    free = free_slots(view)
    room = view.kv_capacity_tokens - view.kv_tokens - view.waiting_tokens - view.sent_tokens
    where = [-1] * len(prompts)
    open_workers = {g for g in range(n) if free[g] > 0}
    while open_workers and -1 in where:
        g = min(open_workers, key=lambda g: loads[g] @ weights)
        margins = loads.max(axis=0) - loads[g]
        fitting = [i for i, prompt in enumerate(prompts) if where[i] < 0 and prompt <= room[g]]
        if not fitting:
            open_workers.remove(g)
            continue
        totals = [
            sum(w * score(prompts[i] + h, m, alpha) for h, (w, m) in enumerate(zip(weights, margins, strict=True)))
            for i in fitting
        ]
        if where.count(-1) <= sum(free[g] for g in open_workers):
            # Slots are left for all: the longest first, the oldest of equal ones.
            totals = [prompts[i] for i in fitting]
        best = fitting[int(np.argmax(totals))]
        where[best] = g
        loads[g] += prompts[best] + ahead
        room[g] -= prompts[best]
        free[g] -= 1
        if not free[g]:
            open_workers.remove(g)
    return where


@pytest.mark.parametrize("alpha", [None, 0.3])
@pytest.mark.parametrize("horizon", [0, 1, 5])
@pytest.mark.parametrize("termination", KINDS)
def test_heap_and_bisection_place_what_the_two_stages_say(workers, pool, active, placed, termination, horizon, alpha):
    router = BalanceRoute(
        horizon_steps=horizon, termination=termination, discount=0.8, mean_output_tokens=6.0, alpha=alpha
    )
    rng = stream(0, "placements", termination, horizon)
    for _ in range(40):
        # One worker alone is no question: nothing it takes can wait for others.
        n = int(rng.integers(2, 8))
        rows = [
            (int(rng.integers(n)), float(rng.integers(1, 400)), float(rng.integers(1, 40)), float(rng.integers(1, 8)))
            for _ in range(int(rng.integers(0, 12)))
        ]
        alive = active(*rows)
        held, count = rng.uniform(0, 300, n), np.bincount(alive.worker, minlength=n)
        np.add.at(held, alive.worker, alive.prompt_tokens + alive.generated_tokens - 1)
        view = workers(
            n, kv_tokens=held, running=count, slots=count + rng.integers(0, 4, n),
            kv_capacity_tokens=held + rng.uniform(0, 2500, n),
        )  # fmt: skip
        # Fractions of tokens, so that there are no ties.
        prompts = rng.uniform(1, 900, int(rng.integers(0, 12)))
        assert placed(router, view, pool(prompts), alive) == placed_slowly(router, view, prompts, alive)


class TestForecast:
    """Two workers: 100 tokens of one request and 40 of two; 30 tokens of one request are on their way to the second."""

    def loads(self, workers, router, alive, kind):
        view = workers(2, kv_tokens=[100.0, 40.0], running=[1, 2], waiting=[0, 1], waiting_tokens=[0.0, 30.0])
        loads = np.full((2, router.horizon_steps + 1), np.nan)
        forecast(view, alive, kind, router.parameters(), loads)
        return loads.tolist()

    def test_when_nobody_ends_loads_grow_by_a_token_a_request_and_step(self, workers, active):
        router = BalanceRoute(horizon_steps=3, termination="none")
        assert self.loads(workers, router, active(), NONE) == [[100, 101, 102, 103], [70, 73, 76, 79]]

    def test_what_was_sent_counts_like_what_waits(self, workers, active):
        view = workers(1, sent_requests=2, sent_tokens=50.0)
        loads = np.empty((1, 3))
        forecast(view, active(), NONE, BalanceRoute().parameters(), loads)
        assert loads.tolist() == [[50, 52, 54]]

    def test_geometric_a_share_of_the_running_requests_ends_in_every_step(self, workers, active):
        router = BalanceRoute(horizon_steps=2, termination="geometric", mean_output_tokens=4.0)
        found = self.loads(workers, router, active(), GEOMETRIC)
        assert found[0] == pytest.approx([100, 0.75 * 101, 0.75**2 * 102])
        # What is still on its way does not end.
        assert found[1] == pytest.approx([40 + 30, 0.75 * 42 + 31, 0.75**2 * 44 + 32])

    def test_an_oracle_drops_each_request_with_its_last_token(self, workers, active):
        router = BalanceRoute(horizon_steps=4, termination="oracle")
        alive = active((0, 91, 10, 2), (1, 11, 10, 1), (1, 16, 5, 9))  # resident 100, 20 and 20
        assert self.loads(workers, router, alive, ORACLE) == [[100, 101, 0, 0, 0], [70, 52, 54, 56, 58]]

    def test_logistic_spreads_the_probability_of_the_horizon_evenly_over_its_steps(self, workers, active):
        # log-odds 0.1 + 0.5 * ln(1 + 10) - 0.2 * ln(91) of ending within 2 steps.
        router = BalanceRoute(horizon_steps=2, termination="logistic", logistic=(0.1, 0.5, -0.2))
        found = self.loads(workers, router, active((0, 91, 10, 7)), LOGISTIC)
        ends = 1 / (1 + np.exp(-(0.1 + 0.5 * np.log(11) - 0.2 * np.log(91))))
        stays = np.sqrt(1 - ends)
        assert found[0] == pytest.approx([100, stays * 101, stays**2 * 102])
        assert found[1] == pytest.approx([70, 73, 76])

    def test_a_sure_end_is_no_overflow(self, workers, active):
        router = BalanceRoute(horizon_steps=2, termination="logistic", logistic=(1e6, 0.0, 0.0))
        found = self.loads(workers, router, active((0, 91, 10, 7)), LOGISTIC)
        assert found[0] == pytest.approx([100, 0, 0], abs=1e-3)


class TestPlacement:
    def test_the_worker_with_the_largest_margin_takes_the_largest_request_that_fits_it(self, workers, pool, placed):
        view = workers(3, kv_tokens=[1000.0, 400.0, 900.0], slots=[0, 1, 0])
        assert placed(BR0, view, pool([700, 500, 601, 600, 50])) == [-1, -1, -1, 1, -1]

    def test_an_overflow_is_chosen_when_it_scores_more_than_what_fits(self, workers, pool, placed):
        # Margin 600 of two workers: 10 fits and scores 10; 700 does not and scores 600 - 1 * 100.
        view = workers(2, kv_tokens=[1000.0, 400.0], slots=[0, 1])
        assert placed(BR0, view, pool([10, 700])) == [-1, 1]
        assert placed(BalanceRoute(horizon_steps=0, alpha=6.0), view, pool([10, 700])) == [1, -1]

    def test_when_nothing_fits_the_smallest_overflow_is_taken(self, workers, pool, placed):
        view = workers(2, kv_tokens=[500.0, 500.0], slots=[1, 0])
        assert placed(BR0, view, pool([300, 200, 250])) == [-1, 0, -1]

    def test_the_oldest_of_equal_sizes_goes_first(self, workers, pool, placed):
        view = workers(2, kv_tokens=[500.0, 0.0], slots=[0, 2])
        assert placed(BR0, view, pool([100, 100, 100])) == [1, 1, -1]

    def test_margins_shrink_as_requests_are_placed(self, workers, pool, placed):
        # 600 to worker 1 (margin 1000), then worker 2 has the largest margin, then 1 again.
        view = workers(3, kv_tokens=[1000.0, 0.0, 300.0], slots=[0, 4, 4])
        assert placed(BR0, view, pool([600, 650, 350])) == [2, 1, 1]

    def test_waiting_and_sent_requests_take_slots(self, workers, pool, placed):
        view = workers(3, slots=2, running=[1, 0, 0], waiting=[1, 1, 0], sent_requests=[0, 1, 1])
        assert placed(BR0, view, pool([5, 5])).count(2) == 1
        assert set(placed(BR0, view, pool([5, 5]))) == {2, -1}

    def test_what_was_sent_since_the_refresh_is_load_though_the_view_is_stale(self, workers, pool, placed):
        # As the view has it worker 1 is the lighter one; the 800 tokens just sent there make it the heavier.
        stale = {"kv_tokens": [500.0, 100.0], "age_s": 0.09}
        assert placed(BR0, workers(2, **stale), pool([50])) == [1]
        assert placed(BR0, workers(2, **stale, sent_tokens=[0.0, 800.0]), pool([50])) == [0]

    def test_a_request_passed_over_for_longer_than_the_patience_goes_next(self, workers, pool, placed):
        view = workers(2, kv_tokens=[1000.0, 400.0], slots=[0, 1])
        router = BalanceRoute(horizon_steps=0, patience_steps=10)
        assert placed(router, view, pool([5000, 600], waited_steps=[10, 0])) == [-1, 1]
        assert placed(router, view, pool([5000, 600], waited_steps=[11, 0])) == [1, -1]

    def test_the_oldest_of_several_overdue_requests_goes_next(self, workers, pool, placed):
        view = workers(2, kv_tokens=[1000.0, 400.0], slots=[0, 1])
        router = BalanceRoute(horizon_steps=0, patience_steps=10)
        assert placed(router, view, pool([9, 5000, 600, 20], waited_steps=[3, 12, 50, 11])) == [-1, 1, -1, -1]

    def test_an_overdue_request_goes_to_the_least_loaded_worker_that_has_room_for_it(self, workers, pool, placed):
        view = workers(3, kv_tokens=[100.0, 400.0, 300.0], kv_capacity_tokens=[500.0, 2000.0, 2000.0], slots=1)
        router = BalanceRoute(horizon_steps=0, patience_steps=10)
        assert placed(router, view, pool([1500], waited_steps=[99])) == [2]

    def test_an_overdue_request_that_no_cache_has_room_for_waits_where_most_room_is(self, workers, pool, placed):
        view = workers(2, kv_tokens=[600.0, 400.0], slots=2, kv_capacity_tokens=1000.0)
        router = BalanceRoute(horizon_steps=0, patience_steps=10)
        where = placed(router, view, pool([900, 300, 200, 100], waited_steps=[99, 0, 0, 0]))
        # Worker 1 takes it and nothing besides; worker 0 has room for one more or two small ones.
        assert where[0] == 1
        assert 1 not in where[1:]
        assert 0 in where[1:]

    def test_a_request_that_outgrows_what_others_leave_of_every_cache_is_served_all_the_same(self):
        # Two workers of 2,000 tokens, always filled by prompts of 400; the one of 1,900 fits only beside nobody.
        arrival_s = np.sort(np.append(np.arange(3000) * 4e-3, 0.501))
        prompts = np.where(arrival_s == 0.501, 1900, 400)
        requests = RequestTrace(arrival_s=arrival_s, prompt_tokens=prompts, output_tokens=np.full(3001, 20))
        cluster = Cluster(
            workers=2, group_size=2, max_running=8, step_time=FittedStepTime(overhead_s=5e-3), refresh_s=0.0,
            kv_capacity_tokens=2000,
        )  # fmt: skip
        router = BalanceRoute(horizon_steps=0, patience_steps=20)
        assert simulate(requests, cluster, router).ttft_s[prompts == 1900].max() < 2.0

    def test_margins_are_below_the_envelope_of_the_workers_own_group(self, workers, pool, placed):
        # The heaviest worker of the other group makes room for nothing here.
        view = workers(4, kv_tokens=[1000.0, 900.0, 300.0, 250.0], slots=[0, 0, 0, 1])
        one, two = BalanceRoute(horizon_steps=0), BalanceRoute(horizon_steps=0, group_workers=2)
        assert placed(one, view, pool([60, 700])) == [-1, 3]
        assert placed(two, view, pool([60, 700])) == [3, -1]

    def test_a_group_as_large_as_the_cluster_or_larger_changes_nothing(self, workers, pool, placed):
        view = workers(4, kv_tokens=[1000.0, 900.0, 300.0, 250.0], slots=[1, 1, 1, 1])
        for group in (4, 9):
            seen = placed(BalanceRoute(horizon_steps=0, group_workers=group), view, pool([60, 700]))
            assert seen == placed(BR0, view, pool([60, 700]))

    def test_no_request_is_passed_over_for_ever(self):
        # 8 slots serve 320 of the 500 short prompts that come a second; the long one comes when all are taken.
        arrival_s = np.sort(np.append(np.arange(4000) * 2e-3, 0.501))
        prompts = np.where(arrival_s == 0.501, 3000, 50)
        requests = RequestTrace(arrival_s=arrival_s, prompt_tokens=prompts, output_tokens=np.full(4001, 5))
        cluster = Cluster(
            workers=4, group_size=4, max_running=2, step_time=FittedStepTime(overhead_s=5e-3), pool_window=64,
            max_batched_tokens=4096, refresh_s=0.0,
        )  # fmt: skip
        waits_s = [
            simulate(requests, cluster, BalanceRoute(horizon_steps=0, patience_steps=patience)).ttft_s
            for patience in (20, 10**9)
        ]
        # 64 shorter ones are always in the window beside it.
        guarded_s, unguarded_s = (wait_s[prompts == 3000].max() for wait_s in waits_s)
        assert guarded_s < 0.5
        assert unguarded_s > 10


class TestFitting:
    def test_each_classifier_takes_what_it_needs_from_the_past(self):
        past = generate_requests(rate_per_s=1.0, n_requests=500, seed=9)
        geometric = BalanceRoute(termination="geometric").fitted_to(past)
        assert geometric.mean_output_tokens == past.output_tokens.mean()
        logistic = BalanceRoute(termination="logistic").fitted_to(past)
        assert logistic.logistic != BalanceRoute().logistic
        assert logistic.mean_output_tokens == BalanceRoute().mean_output_tokens

    @pytest.mark.parametrize("router", [BR0, BalanceRoute(termination="none"), BalanceRoute(termination="oracle")])
    def test_a_router_that_predicts_nothing_stays_as_it_is(self, router):
        assert router.fitted_to(generate_requests(rate_per_s=1.0, n_requests=5, seed=0)) == router

    def test_only_those_that_look_at_single_requests_are_shown_them(self):
        assert [BalanceRoute(termination=kind).reads_active for kind in KINDS] == [False, False, True, True]
        assert not BalanceRoute(horizon_steps=0, termination="oracle").reads_active
