"""The live view: what every field means, and that the books always balance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from wavetank.serving.proxy.engine_metrics import EngineLoad
from wavetank.serving.proxy.view import Asked, LiveRequest, LiveView, PrefixMemory, WorkerAccount
from wavetank.serving.routing.interface import Arrival, WorkersView
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.simulate import simulate
from wavetank.workloads.requests import RequestTrace


def account(slots: int = 4, capacity: float = 1000.0) -> WorkerAccount:
    return WorkerAccount(slots, capacity, PrefixMemory(10.0, 100))


def sent(to: WorkerAccount, *prompts: int, now: float = 0.0) -> list[LiveRequest]:
    made = [LiveRequest(now, prompt, []) for prompt in prompts]
    for each in made:
        to.send(each, now)
    return made


def row(of: WorkerAccount) -> tuple[float, ...]:
    return (of.kv_tokens, of.running, of.waiting, of.waiting_tokens, of.sent_requests, of.sent_tokens)


class TestOwnAccounting:
    def test_what_was_sent_since_the_refresh_is_in_the_sent_fields_alone(self) -> None:
        to = account()
        sent(to, 100, 50)
        assert row(to) == (0, 0, 0, 0, 2, 150)
        to.refresh(1.0)
        assert row(to) == (150, 2, 0, 0, 0, 0)
        sent(to, 7)
        assert row(to) == (150, 2, 0, 0, 1, 7)

    def test_requests_fill_slots_then_wait_in_the_order_sent(self) -> None:
        to = account(slots=2)
        sent(to, 100, 50, 30, 20)
        to.refresh(0.0)
        assert row(to) == (150, 2, 2, 50, 0, 0)

    def test_behind_one_that_does_not_fit_all_wait_and_the_first_always_runs(self) -> None:
        to = account(capacity=100)
        sent(to, 60, 50, 10)
        to.refresh(0.0)
        assert row(to) == (60, 1, 2, 60, 0, 0)
        alone = account(capacity=100)
        sent(alone, 500)
        alone.refresh(0.0)
        assert row(alone) == (500, 1, 0, 0, 0, 0)

    def test_a_streaming_request_runs_and_grows(self) -> None:
        to = account(slots=1)
        first, second = sent(to, 100, 50)
        to.generated(second, 1)
        to.generated(second, 4)
        to.refresh(0.0)
        assert row(to) == (55, 1, 1, 100, 0, 0)
        to.done(second)
        to.refresh(0.0)
        assert row(to) == (100, 1, 0, 0, 0, 0)
        to.done(first)

    def test_a_completion_shows_at_the_next_refresh(self) -> None:
        to = account()
        [request] = sent(to, 100)
        to.refresh(0.0)
        to.done(request)
        assert row(to) == (100, 1, 0, 0, 0, 0)
        to.refresh(1.0)
        assert row(to) == (0, 0, 0, 0, 0, 0)


class TestMetrics:
    def test_the_servers_own_figures_count(self) -> None:
        to = account()
        sent(to, 100, 50)
        to.begin_look()
        to.refresh_from(EngineLoad(5, 0, 0.5, 2000.0), 3.0)
        assert row(to) == (1000, 5, 0, 0, 0, 0)
        assert (to.kv_capacity_tokens, to.refreshed_s) == (2000, 3.0)
        to.begin_look()
        to.refresh_from(EngineLoad(5, 0, 0.5, 0.0), 4.0)
        assert to.kv_capacity_tokens == 2000

    def test_what_is_sent_while_the_page_is_under_way_still_counts_as_sent(self) -> None:
        to = account()
        sent(to, 100)
        to.begin_look()
        sent(to, 30, 20)
        to.refresh_from(EngineLoad(1, 0, 0.1, 0.0), 0.0)
        assert row(to) == (100, 1, 0, 0, 2, 50)

    def test_what_a_server_that_does_not_report_its_usage_holds_is_estimated(self) -> None:
        to = account()
        first, *_ = sent(to, 100, 50, 30)
        to.generated(first, 4)
        to.begin_look()
        # The one that streams and the next in line run; the last one waits.
        to.refresh_from(EngineLoad(2, 1, math.nan, 0.0), 0.0)
        assert (to.kv_tokens, to.running, to.waiting, to.waiting_tokens) == (104 + 50, 2, 1, 30)
        # Two more run that somebody else sent: they are taken to be as long as the own ones on the mean.
        to.begin_look()
        to.refresh_from(EngineLoad(5, 0, math.nan, 0.0), 0.0)
        assert to.kv_tokens == 104 + 50 + 30 + 2 * 60

    def test_the_requests_sent_last_are_those_that_wait(self) -> None:
        to = account()
        first, *_ = sent(to, 100, 50, 30)
        to.generated(first, 1)
        to.begin_look()
        sent(to, 7)
        to.refresh_from(EngineLoad(2, 1, 0.1, 0.0), 0.0)
        assert (to.waiting, to.waiting_tokens) == (1, 30)
        # Others' requests wait as well: they are taken to be as long as the own ones on the mean.
        to.begin_look()
        to.refresh_from(EngineLoad(2, 5, 0.1, 0.0), 0.0)
        assert to.waiting_tokens == 50 + 30 + 7 + 2 * (187 / 4)


class Books(RuleBasedStateMachine):
    """Any order of events at two backends."""

    def __init__(self) -> None:
        super().__init__()
        self.accounts = [account(), account()]
        self.view = LiveView(self.accounts, reads_active=True)
        self.requests: list[tuple[LiveRequest, int]] = []
        self.now = 0.0

    @rule(worker=st.integers(0, 1), prompt=st.integers(1, 2000))
    def send(self, worker: int, prompt: int) -> None:
        request = LiveRequest(self.now, prompt, [prompt])
        self.accounts[worker].send(request, self.now)
        self.view.sent(worker)
        self.requests.append((request, worker))

    @rule(data=st.data(), tokens=st.integers(0, 50))
    def generate(self, data: Any, tokens: int) -> None:
        if self.requests:
            request, worker = data.draw(st.sampled_from(self.requests))
            self.accounts[worker].generated(request, tokens)

    @rule(data=st.data(), twice=st.booleans())
    def end(self, data: Any, twice: bool) -> None:
        if self.requests:
            number = data.draw(st.integers(0, len(self.requests) - 1))
            request, worker = self.requests.pop(number)
            self.accounts[worker].done(request)
            if twice:
                self.accounts[worker].done(request)
            # A late event of a request that is gone changes nothing.
            self.accounts[worker].generated(request, 3)

    @rule(data=st.data())
    def move(self, data: Any) -> None:
        quiet = [at for at, (request, _) in enumerate(self.requests) if not request.decoding]
        if quiet:
            at = data.draw(st.sampled_from(quiet))
            request, worker = self.requests[at]
            self.accounts[worker].done(request)
            self.accounts[1 - worker].send(request, self.now)
            self.view.sent(1 - worker)
            self.requests[at] = (request, 1 - worker)

    @rule(worker=st.integers(0, 1), step=st.floats(0.0, 20.0))
    def refresh(self, worker: int, step: float) -> None:
        self.now += step
        self.accounts[worker].refresh(self.now)
        self.view.copy_row(worker)

    @rule(worker=st.integers(0, 1), running=st.integers(0, 9), waiting=st.integers(0, 9), usage=st.floats(0, 1))
    def look(self, worker: int, running: int, waiting: int, usage: float) -> None:
        self.accounts[worker].begin_look()
        self.accounts[worker].refresh_from(EngineLoad(running, waiting, usage, 1000.0), self.now)
        self.view.copy_row(worker)

    @invariant()
    def nothing_is_negative_and_the_view_shows_the_accounts(self) -> None:
        self.view.age(self.now)
        for column in self.view.workers:
            assert not (column < 0).any()
        for worker, each in enumerate(self.accounts):
            assert self.view.workers.sent_requests[worker] == each.sent_requests
            assert self.view.workers.sent_tokens[worker] == each.sent_tokens
            assert each.in_flight == sum(at == worker for _, at in self.requests)

    def teardown(self) -> None:
        for request, worker in self.requests:
            self.accounts[worker].done(request)
        for worker, each in enumerate(self.accounts):
            each.refresh(self.now)
            self.view.copy_row(worker)
            assert row(each) == (0, 0, 0, 0, 0, 0)
        assert self.view.active.worker.size == 0


TestTheBooksBalance = Books.TestCase


class TestPrefixes:
    def test_leading_blocks_count_while_they_are_remembered(self) -> None:
        memory = PrefixMemory(10.0, 100)
        memory.sent([1, 2, 3], 0.0)
        assert memory.matched([1, 2, 3, 4], 5.0) == 3
        assert memory.matched([2, 9, 1], 5.0) == 1
        assert memory.matched([9, 1], 5.0) == 0
        memory.sent([1], 8.0)
        assert memory.matched([1, 2], 10.0) == 2
        assert memory.matched([1, 2], 10.5) == 1

    def test_the_memory_is_bounded_in_time_and_number(self) -> None:
        memory = PrefixMemory(10.0, 5)
        memory.sent(range(4), 0.0)
        memory.sent([0, 7, 8], 1.0)
        assert len(memory) == 5
        assert memory.matched([1], 1.0) == 0
        assert memory.matched([0, 2, 3, 7, 8], 1.0) == 5
        memory.sent([9], 20.0)
        assert len(memory) == 1

    def test_matches_are_shown_in_tokens_for_every_worker(self) -> None:
        accounts = [account(), account()]
        view = LiveView(accounts)
        accounts[1].send(LiveRequest(0.0, 100, [1, 2, 3]), 0.0)
        view.match(LiveRequest(0.0, 40, [1, 2, 9], 16.0), 1.0)
        assert view.workers.matched_tokens.tolist() == [0, 32]
        view.match(LiveRequest(0.0, 40, [1, 2, 3], 16.0), 1.0)
        assert view.workers.matched_tokens.tolist() == [0, 40]
        view.match(LiveRequest(0.0, 40, [], 16.0), 1.0)
        assert view.workers.matched_tokens.tolist() == [0, 0]


class TestDecoding:
    def test_the_table_holds_streaming_requests_of_the_last_refresh(self) -> None:
        accounts = [account(), account()]
        view = LiveView(accounts, reads_active=True)
        first, second, third = (*sent(accounts[0], 10, 20), *sent(accounts[1], 30))
        for request, tokens in ((first, 2), (second, 5), (third, 1)):
            accounts[request is third].generated(request, tokens)
        assert view.active.worker.size == 0
        for worker in (0, 1):
            accounts[worker].refresh(0.0)
            view.copy_row(worker)
        assert view.active.worker.tolist() == [0, 0, 1]
        assert view.active.prompt_tokens.tolist() == [20, 10, 30]
        assert view.active.generated_tokens.tolist() == [5, 2, 1]
        assert np.isnan(view.active.remaining_tokens).all()


class Remembering:
    """A router that keeps what it was shown."""

    def __init__(self) -> None:
        self.seen: list[dict[str, list[float]]] = []

    def choose(self, view: WorkersView, arrival: Arrival, state: Any, parameters: Any) -> int:
        self.seen.append({name: column.tolist() for name, column in view._asdict().items()})
        return len(self.seen) % 2

    def initial_state(self, workers: int) -> Any:
        return np.zeros(0)

    def parameters(self) -> Any:
        return np.zeros(0)


@given(gaps=st.lists(st.sampled_from([0.0, 0.01, 0.03]), min_size=2, max_size=12), prompts=st.data())
def test_before_any_token_the_live_view_is_the_simulators(gaps: list[float], prompts: Any) -> None:
    # Prefill takes longer than the trace: nobody decodes, and both lives must show the same rows.
    times = np.cumsum([0.005, *gaps])
    sizes = [prompts.draw(st.integers(5000, 9000)) for _ in times]
    cluster = Cluster(workers=2, max_running=3, kv_capacity_tokens=20_000, refresh_s=0.02, max_batched_tokens=64)
    router = Remembering()
    trace = RequestTrace(arrival_s=times, prompt_tokens=sizes, output_tokens=np.ones(len(times), np.int64))
    run = simulate(trace, cluster, router)
    assert run.first_token_s.min() > times.max()

    accounts = [WorkerAccount(3, 20_000.0, PrefixMemory(300.0, 0)) for _ in range(2)]
    view = LiveView(accounts)
    refreshed = 0.0
    for number, (time_s, size) in enumerate(zip(times, sizes, strict=True)):
        due = math.floor(round(time_s / 0.02, 9)) * 0.02
        if due > refreshed:
            refreshed = due
            for worker in (0, 1):
                accounts[worker].refresh(due)
                view.copy_row(worker)
        view.age(time_s)
        shown = {name: column.tolist() for name, column in view.workers._asdict().items()}
        expected = router.seen[number]
        # The simulator counts a request as running when a step admits it, the live view when there is room for it.
        for name in ("sent_requests", "sent_tokens", "kv_capacity_tokens", "slots", "matched_tokens"):
            assert shown[name] == expected[name], name
        both = [[each["running"][w] + each["waiting"][w] for w in (0, 1)] for each in (shown, expected)]
        assert both[0] == both[1]
        tokens = [[each["kv_tokens"][w] + each["waiting_tokens"][w] for w in (0, 1)] for each in (shown, expected)]
        assert tokens[0] == tokens[1]
        assert np.allclose(shown["age_s"], expected["age_s"], atol=1e-9)
        worker = (number + 1) % 2
        accounts[worker].send(LiveRequest(time_s, size, []), time_s)
        view.sent(worker)


class TestWhoIsShown:
    def test_a_backend_has_its_own_number_and_without_one_its_row(self) -> None:
        named = WorkerAccount(4, 1000.0, PrefixMemory(10.0, 100), identity=2**62 + 1)
        assert LiveView([account(), named, account()]).workers.identity.tolist() == [0, 2**62 + 1, 2]

    def test_an_adapter_is_there_while_own_requests_for_it_are_as_of_the_refresh_and_once_sent(self) -> None:
        accounts = [account(), account()]
        view = LiveView(accounts)

        def shown(adapter: int) -> list[int]:
            view.note_adapter(adapter)
            return view.workers.adapter_loaded.tolist()

        request = LiveRequest(0.0, 10, [], asked=Asked(adapter=3))
        assert shown(3) == [0, 0]
        accounts[1].send(request, 0.0)
        assert (shown(3), shown(4), shown(-1)) == ([0, 1], [0, 0], [0, 0])
        accounts[1].refresh(1.0)
        assert shown(3) == [0, 1]
        accounts[1].generated(request, 1)
        accounts[1].done(request)
        assert shown(3) == [0, 1]
        accounts[1].refresh_from(EngineLoad(0, 0, 0.0, 0.0), 2.0)
        assert shown(3) == [0, 0]
