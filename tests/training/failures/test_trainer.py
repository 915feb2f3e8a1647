"""Training that survives the death of replicas: in threads at every bucket, and in processes with a real SIGKILL."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.live.membership import Decision, Membership
from wavetank.live.rank_process import GroupBrokenError

torch = pytest.importorskip("torch", reason="needs the library torch")

from tests.training.failures.resilient_work import built, train, trained  # noqa: E402

from wavetank.live.ranks import Fault, Ranks  # noqa: E402
from wavetank.training.failures.quotas import majors  # noqa: E402
from wavetank.training.failures.trainer import ResilientTrainer  # noqa: E402

STEPS, COUNT = 3, 7


class Died(BaseException):
    """The thread of a replica that was killed."""


class World:
    """Replicas as threads: a sum that a death leaves half done, as a ring's is, and the real votes."""

    def __init__(self, size: int, deaths: dict[tuple[int, int, int], int]) -> None:
        self.membership = Membership(size)
        self.deaths = deaths
        self.changed = threading.Condition()
        self.given: dict[tuple[int, ...], dict[int, Any]] = {}
        self.decisions: dict[int, Decision] = {}

    def all_reduce(self, rank: int, tensor: Any, at: tuple[int, int, int]) -> None:
        key = (self.membership.epoch, *at)
        dying = self.deaths.get(at)
        with self.changed:
            parts = self.given.setdefault(key, {})
            parts[rank] = tensor.clone()
            if rank == dying:
                self.membership.lose(rank)
            self.changed.notify_all()
            members = self.membership.members
            assert self.changed.wait_for(lambda: len(parts) == len(members), 20)
        total = sum(parts[each] for each in members)
        if dying in members:
            if rank == dying:
                raise Died
            half = (tensor.numel() + rank) // 2
            tensor[:half] = total[:half]
            raise GroupBrokenError("broken")
        tensor.copy_(total)

    def agree(self, rank: int, well: bool) -> Decision:
        with self.changed:
            self.decisions.pop(rank, None)
            self.membership.vote(rank, well, 0.0)
            decision = self.membership.decide()
            if decision is not None:
                self.decisions = dict.fromkeys(decision.members, decision)
                self.changed.notify_all()
            assert self.changed.wait_for(lambda: rank in self.decisions, 20)
            return self.decisions.pop(rank)


class Member:
    """One replica's view of the world."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number, self.members = world, number, world.membership.members

    def all_reduce(self, tensor: Any, **at: int) -> None:
        self.world.all_reduce(self.number, tensor, (at["step"], at["bucket"], at["attempt"]))

    def agree(self, well: bool) -> Decision:
        decision = self.world.agree(self.number, well)
        self.members = decision.members
        return decision

    def point(self, name: str, **at: int) -> None:
        pass


def play(size: int, deaths: dict[tuple[int, int, int], int], **options: Any) -> dict[int, tuple[list[Any], Any]]:
    world, found = World(size, deaths), {}
    trainers = [built(Member(world, number), **options) for number in range(size)]
    # Torch's seed is one for all threads of a process, so that microbatches take turns.
    turn = threading.Lock()
    for trainer in trainers:
        trainer._accumulate = locked(turn, trainer._accumulate)  # type: ignore[method-assign]

    def run(number: int) -> None:
        try:
            found[number] = trained(trainers[number], STEPS, COUNT)
        except Died:
            return

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


def locked(turn: threading.Lock, call: Any) -> Any:
    def under(*arguments: Any) -> None:
        with turn:
            call(*arguments)

    return under


@pytest.fixture(scope="module")
def alone() -> Any:
    """Return the parameters after a run in which nothing happens, on one replica."""
    return trained(built(), STEPS, COUNT)[1]


BUCKETS = 4


def test_the_model_has_the_buckets_that_the_tests_kill_in() -> None:
    assert len(built()._buckets) == BUCKETS - 1


class Timed:
    """The last of two replicas, with a clock of its own: a second per sum and per microbatch."""

    def __init__(self) -> None:
        self.number, self.members, self.now_s, self.sums = 0, (0, 1), 0.0, 0

    def all_reduce(self, tensor: Any, **at: int) -> None:
        self.now_s += 1.0
        self.sums += 1
        if at["attempt"] == 1 and at["bucket"] == 1:
            self.members = (0,)
            raise GroupBrokenError("broken")

    def agree(self, well: bool) -> Decision:
        self.now_s += 100.0
        return Decision(well, 1, self.members, () if well else (1,))

    def point(self, name: str, **at: int) -> None:
        self.now_s += 1.0


def test_a_recovery_lasts_until_the_gradients_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Timed()
    monkeypatch.setattr("wavetank.training.failures.trainer.time.monotonic", lambda: group.now_s)
    report = built(group).step(range(6))
    assert group.sums == 2 + BUCKETS
    # Two votes, three lost microbatches, all sums again.
    assert report.recovery_s == 100.0 + 3.0 + BUCKETS + 100.0


@pytest.mark.parametrize("bucket", range(BUCKETS))
@pytest.mark.parametrize("dying", [0, 2])
def test_a_death_at_any_bucket_leaves_the_parameters_of_a_run_without_failure(
    alone: Any, bucket: int, dying: int
) -> None:
    found = play(3, {(1, bucket, 1): dying})
    assert set(found) == {0, 1, 2} - {dying}
    for reports, parameters in found.values():
        assert np.abs(parameters - alone).max() < 1e-10
        assert [report.attempts for report in reports] == [1, 2, 1]
        # At most what died is computed again: nobody computes a microbatch of a step twice.
        assert all(len(set(report.computed)) == len(report.computed) for report in reports)
    for step in range(STEPS):
        done = [each for reports, _ in found.values() for each in reports[step].computed]
        assert len(done) == len(set(done))


def test_without_the_copies_the_parameters_are_wrong(alone: Any) -> None:
    found = play(3, {(1, 1, 1): 0}, rollback=False)
    assert all(np.abs(parameters - alone).max() > 1e-6 for _, parameters in found.values())


def test_two_deaths_in_one_step_and_a_last_survivor(alone: Any) -> None:
    found = play(3, {(1, 1, 1): 0, (1, 2, 2): 1})
    ((reports, parameters),) = found.values()
    assert np.abs(parameters - alone).max() < 1e-10
    assert [report.attempts for report in reports] == [1, 3, 1]
    assert set(reports[1].computed) == set(range(COUNT, 2 * COUNT))


def test_quotas_with_spares_give_the_same_parameters(alone: Any) -> None:
    for _, parameters in play(3, {(0, 0, 1): 1}, quota=majors).values():
        assert np.abs(parameters - alone).max() < 1e-10


def test_a_gradient_that_is_not_finite_names_its_microbatch_and_changes_nothing() -> None:
    trainer = built()
    good = trainer.microbatches
    trainer.microbatches = lambda model, each: good(model, each) * (float("nan") if each == 3 else 1.0)
    before = [each.detach().clone() for each in trainer.model.parameters()]
    with pytest.raises(BadValueError, match=r"step 0 is not finite") as caught:
        trainer.step(range(5))
    assert "[3]" in str(caught.value)
    assert all(torch.equal(old, new) for old, new in zip(before, trainer.model.parameters(), strict=True))
    assert trainer.step([0, 1]).step == 0


@pytest.mark.parametrize("ids", [[], [1, 1]])
def test_a_step_without_different_microbatches_is_refused(ids: list[int]) -> None:
    with pytest.raises(BadValueError, match="different microbatches"):
        built().step(ids)


def test_a_model_that_trains_nothing_is_refused() -> None:
    model = torch.nn.Linear(1, 1).requires_grad_(False)
    with pytest.raises(BadValueError, match="parameters that are trained"):
        ResilientTrainer(model, None, lambda model, each: None)


def test_processes_that_are_killed_while_they_sum_leave_the_parameters_of_a_run_without_failure(alone: Any) -> None:
    faults = [
        Fault(rank=0, point="in flight", at={"step": 0, "bucket": 1}),
        Fault(rank=2, point="in flight", at={"step": 2, "bucket": 3}),
    ]
    with Ranks(train, 3, arguments={"steps": STEPS, "count": COUNT}, faults=faults, timeout_s=20.0) as ranks:
        outcomes = ranks.wait(150.0)
    assert [outcome.ended for outcome in outcomes] == ["died", "returned", "died"]
    parameters, reports = outcomes[1].value
    assert np.abs(parameters - alone).max() < 1e-10
    assert reports[0][0] == [1, 2]
    assert reports[-1][0] == [1]
