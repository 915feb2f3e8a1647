"""Every sum against a count by hand, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from wavetank.errors import WavetankError
from wavetank.serving.exchange.interface import Task
from wavetank.serving.exchange.reference import Routed, dense
from wavetank.serving.exchange.relay_free import RelayFree
from wavetank.serving.exchange.table import ExpertTable
from wavetank.serving.exchange.together import Together
from wavetank.serving.exchange.workload import slopes
from wavetank.serving.experts.counting import count, homes_of, main_device
from wavetank.serving.experts.interface import Batch, Numbers, RoutingTrace, Seen
from wavetank.serving.experts.plans import Composed, InTurns
from wavetank.serving.experts.rivals import contiguous
from wavetank.serving.experts.traces import Generated

TRACE = Generated(requests=13, tokens=7, layers=2, experts=8, per_token=3, vocabulary=30, topics=3).trace(5)


def by_hand(experts: Numbers, homes: Numbers, trace: RoutingTrace, devices: int) -> tuple[int, int, float, float]:
    local = visits = 0
    sent = routed = 0.0
    owners = np.repeat(np.arange(trace.requests), np.diff(trace.starts))
    for layer in range(trace.layers):
        for round_ in range(-(-trace.requests // devices)):
            moved, served = np.zeros((2, devices)), np.zeros(devices)
            for token in np.flatnonzero(owners // devices == round_):
                home = homes[layer, token]
                others = set()
                for expert in trace.routes[layer, token]:
                    there = experts[layer, expert]
                    served[there] += 1
                    if there == home:
                        local += 1
                    else:
                        others.add(int(there))
                        moved[0, home] += 1
                        moved[1, there] += 1
                visits += len(others)
            sent += moved.max()
            routed += served.max()
    return local, visits, sent, routed


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_sums_are_those_of_a_count_by_hand(devices: int) -> None:
    draws = np.random.default_rng(devices)
    experts = np.stack([draws.permutation(np.arange(8) % devices) for _ in range(2)])
    homes = draws.integers(0, devices, TRACE.routes.shape[:2])
    got = count(experts, homes, TRACE, devices)
    assert (got.local, got.visits, got.busiest_sent, got.busiest_routed) == by_hand(experts, homes, TRACE, devices)
    assert got.pairs == TRACE.routes.size
    assert got.homes.sum() == homes.size


def test_routes_that_leave_are_the_rows_that_an_exchange_moves_between_ranks() -> None:
    draws, devices = np.random.default_rng(3), 4
    experts = np.stack([draws.permutation(np.arange(8) % devices) for _ in range(2)])
    homes = draws.integers(0, devices, TRACE.routes.shape[:2])
    got = count(experts, homes, TRACE, devices)
    task = Task(ranks=devices, slots=2, hidden=16, tokens=homes.shape[1], choices=3)
    moved = {"dispatch": 0, "combine": 0}
    for layer in range(2):
        table = ExpertTable(8, devices, 2)
        table.change(expert_of=np.argsort(experts[layer], kind="stable"))
        steps = []
        for device in range(devices):
            routes = TRACE.routes[layer, homes[layer] == device]
            numbers = draws.standard_normal((len(routes), 16)).astype(np.float32)
            steps.append([Routed(numbers, routes, np.ones(routes.shape, np.float32))])
        together = Together(RelayFree(), task, table, slopes)
        sums = together.run(steps)
        assert all(np.array_equal(sums[each][0], dense(steps[each][0], slopes, task)) for each in range(devices))
        for port in together.ports:
            for part in moved:
                moved[part] += port.traffic[part].far_bytes
    assert moved["dispatch"] == moved["combine"] == (got.pairs - got.local) * task.row_bytes > 0


def test_one_device_keeps_all_and_chance_one_of_them() -> None:
    big = Generated(requests=100, tokens=60, affinity=0.0, experts=16, per_token=4).trace(0)
    for devices, share in ((1, 1.0), (4, 0.25), (8, 0.125)):
        plan = Composed(contiguous(big, devices), InTurns(devices))
        for whole in (True, False):
            homes = homes_of(plan, big, devices, whole_requests=whole, clairvoyant=False)
            got = count(plan.experts, homes, big, devices)
            assert got.local / got.pairs == pytest.approx(share, abs=0.01)


def test_the_main_device_is_the_first_of_those_with_most() -> None:
    assert main_device(np.array([[0, 1, 1], [2, 0, 2], [2, 1, 0]]), 3).tolist() == [1, 2, 0]


@dataclass(frozen=True, eq=False)
class Fixed:
    experts: Numbers
    answer: Numbers

    def send(self, waiting: Sequence[Seen]) -> Numbers:
        return self.answer[: len(waiting)]

    def split(self, layer: int, batch: Batch) -> Numbers:
        return np.resize(self.answer, len(batch.tokens))


@pytest.mark.parametrize("answer", [[0, 0, 1, 1], [0, 1, 2, 4], [0, 1, -1, 2]])
def test_a_plan_that_overloads_or_invents_devices_is_refused(answer: list[int]) -> None:
    plan = Fixed(contiguous(TRACE, 4), np.array(answer))
    for whole in (True, False):
        with pytest.raises(WavetankError, match="A plan"):
            homes_of(plan, TRACE, 4, whole_requests=whole, clairvoyant=False)


@dataclass(frozen=True, eq=False)
class Watching:
    experts: Numbers
    seen: list[tuple[int, bool]]

    def send(self, waiting: Sequence[Seen]) -> Numbers:
        self.seen.extend((len(each.prompt), each.routes is not None) for each in waiting)
        return np.arange(len(waiting)) % 2

    def split(self, layer: int, batch: Batch) -> Numbers:
        self.seen.append((int(batch.before.max(initial=-1)), batch.routes is not None))
        return np.arange(len(batch.tokens)) % 2


@pytest.mark.parametrize("clairvoyant", [False, True])
def test_only_prompts_and_earlier_layers_are_shown_unless_a_rule_may_know_more(clairvoyant: bool) -> None:
    plan = Watching(contiguous(TRACE, 2), [])
    homes = homes_of(plan, TRACE, 2, whole_requests=True, clairvoyant=clairvoyant, waiting=2)
    assert plan.seen == [(5, clairvoyant)] * 13
    assert homes[0, ::7].tolist() == ([0, 1] * 7)[:13]
    plan = Watching(contiguous(TRACE, 2), [])
    homes_of(plan, TRACE, 2, whole_requests=False, clairvoyant=clairvoyant)
    assert {found for _, found in plan.seen} == {clairvoyant}
    assert [main for main, _ in plan.seen[:2]] == [-1, 1]
