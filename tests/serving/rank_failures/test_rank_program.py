"""A rank's program, alone in this process: it says what one process says, and minds fences and letters."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.rank_failures.agreement import Join, Propose
from wavetank.serving.rank_failures.rank_program import FencedError, Interrupted, RankProgram, memory_of
from wavetank.serving.rank_failures.small_model import Shape, SmallModel, alone, expert_weights

SHAPE = Shape(hidden=8, inner=16, experts=4)


class FakeRank:
    """A rank whose launcher has sent all commands beforehand."""

    def __init__(self, size: int = 1) -> None:
        self.number, self.size = 0, size
        self.shared: Any = np.zeros(memory_of(SHAPE, size, 8, 4), np.uint8)
        self.commands: list[Any] = []
        self.said: list[Any] = []
        self.points: list[str] = []

    def command(self, timeout_s: float) -> Any:
        return self.commands.pop(0) if self.commands else None

    def report(self, value: Any) -> None:
        self.said.append(value)
        tokens = [each for each in self.said if each[0] == "tokens"]
        if len(tokens) == 12:
            self.commands.append(["stop"])

    def point(self, name: str, **at: int) -> None:
        self.points.append(name)

    def expect(self, *given: Any) -> None:
        self.points.append(f"planned {given}")


def program(rank: FakeRank, folder: Path, **given: Any) -> RankProgram:
    for expert in range(SHAPE.all_experts):
        np.save(folder / f"expert-{expert}.npy", expert_weights(SHAPE, expert))
    settings: dict[str, Any] = {
        "slots": 8, "tokens": 4, "replicas": 1, "repair": "experts", "host": False, "disk": True, "timeout_s": 5.0,
        "incarnation": 0, "folder": str(folder),
    }  # fmt: skip
    return RankProgram(rank, SHAPE, **{**settings, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize("constant", [False, True])
def test_it_says_what_one_process_says_with_tables_and_with_constants(tmp_path: Path, constant: bool) -> None:
    rank = FakeRank()
    whole = alone(SmallModel(SHAPE), [7, 8], 14)
    rank.commands = [["request", 5, [7, 8], whole[:2], 14], ["expect", "repair", "kill", 0.0]]
    found = program(rank, tmp_path, constant=constant)
    assert found.run() == 24
    said = [each[3][0] for each in rank.said if each[0] == "tokens"]
    assert said == [[5, number, whole[number]] for number in range(2, 14)]
    assert "planned ('repair', 'kill', 0.0)" in rank.points
    assert {"load", "apply", "repaired", "placed", "experts", "computed", "done"} <= set(rank.points)


def test_slots_of_experts_that_are_nowhere_are_left_out(tmp_path: Path) -> None:
    rank = FakeRank()
    found = program(rank, tmp_path, repair="nothing")
    found.begin()
    found.held[3] = -1
    found.agreement.holdings = {0: tuple(found.held)}
    found.settle()
    assert found.slots_of(np.array([[2, 3]], np.int64)).tolist() == [[2, -1]]
    assert rank.said[-1][4] == 1


def test_a_fence_and_a_letter_interrupt(tmp_path: Path) -> None:
    rank = FakeRank(2)
    found = program(rank, tmp_path)
    found.agreement.mask, found.restored = 1, 1
    found.look()
    found.board.fence(1, 1)
    found.look()
    assert not found.agreement.needed
    found.board.send(1, 0, 0, Join(0))
    found.board.send(1, 1, 0, Join(1))
    with pytest.raises(Interrupted):
        found.look()
    # The letter of the fenced process is not read; that of the new one makes this rank propose.
    assert found.agreement.arrived == {1: 1} and found.board.head(1, 0) == 1
    found.board.fence(0, 1)
    with pytest.raises(FencedError):
        found.look()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("wavetank.serving.rank_failures.rank_program.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_who_gives_no_sign_of_life_is_reported_once(tmp_path: Path, clock: list[float]) -> None:
    rank = FakeRank(2)
    found = program(rank, tmp_path, timeout_s=1.0)
    found.board.beat(1)
    for _ in range(11):
        found.take()
        assert rank.said == []
        clock[0] += 0.1
    for _ in range(3):
        found.take()
        clock[0] += 0.1
    assert rank.said == [["late", 1, 0]]


def test_who_stood_still_itself_takes_nobody_for_late(tmp_path: Path, clock: list[float]) -> None:
    rank = FakeRank(2)
    found = program(rank, tmp_path, timeout_s=1.0)
    found.board.beat(1)
    found.take()
    clock[0] += 50.0
    for _ in range(9):
        found.take()
        clock[0] += 0.1
    assert rank.said == []


def test_a_rank_that_reads_a_long_prompt_gives_signs_of_life(tmp_path: Path) -> None:
    rank = FakeRank()
    found = program(rank, tmp_path)
    rank.commands = [["request", 5, [7] * 3000, [], 1]]
    found.commands()
    assert len(found.requests) == 1 and int(found.board.beats[0]) >= 3000 // 1000


def test_a_build_with_fixed_members_looks_at_nothing_and_says_the_same(tmp_path: Path) -> None:
    rank = FakeRank()
    rank.commands = [["request", 5, [7, 8], [], 2]]
    found = program(rank, tmp_path)
    found.begin()
    found.settle()
    found.commands()
    found.fixed, beats = True, int(found.board.beats[0])
    for _ in range(4):
        found.step()
    said = [each[3][0][2] for each in rank.said if each[0] == "tokens"]
    assert said == alone(SmallModel(SHAPE), [7, 8], 2) and int(found.board.beats[0]) == beats


def test_a_new_process_asks_again_until_it_takes_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = FakeRank(2)
    found = program(rank, tmp_path, incarnation=1)
    found.begin()
    monkeypatch.setattr("wavetank.serving.rank_failures.rank_program._ASK_S", 0.0)
    found._ask()
    found._ask()
    assert [found.board.read(1, 0, number) for number in range(found.board.head(1, 0))] == [(1, Join(1))] * 2
    found.agreement.epoch = 2
    found._ask()
    assert found.board.head(1, 0) == 2


def test_ranks_share_memory(tmp_path: Path) -> None:
    rank = FakeRank()
    rank.shared = None
    with pytest.raises(BadValueError):
        program(rank, tmp_path)


def test_letters_of_a_fenced_process_are_not_read(tmp_path: Path) -> None:
    rank = FakeRank(2)
    found = program(rank, tmp_path)
    found.board.fence(1, 1)
    found.board.send(1, 0, 0, Propose(7, 0b10))
    found.take()
    assert found.agreement.promised[0] < 7
    found.board.send(1, 1, 0, Propose(7, 0b11))
    found.take()
    assert found.agreement.promised == (7, 1)


def test_a_slot_whose_load_was_interrupted_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = program(FakeRank(), tmp_path)
    found.begin()
    assert found.held[3] == 3

    def interrupted() -> None:
        raise Interrupted

    monkeypatch.setattr(found, "look", interrupted)
    with pytest.raises(Interrupted):
        found._load(3, 3, look=True)
    assert found.held[3] == -1


def test_a_step_whose_members_changed_says_nothing(tmp_path: Path) -> None:
    rank = FakeRank()
    rank.commands = [["request", 5, [7, 8], [], 2]]
    found = program(rank, tmp_path)
    found.begin()
    found.settle()
    found.commands()
    found.step()
    found.board.fence(0, 1)
    with pytest.raises(FencedError):
        found.step()
    assert not [each for each in rank.said if each[0] == "tokens"]


def test_a_request_that_is_forgotten_between_layers_does_not_come_back(tmp_path: Path) -> None:
    rank = FakeRank()
    rank.commands = [["request", number, [7, number], [], 9] for number in range(2)]
    found = program(rank, tmp_path)
    found.begin()
    found.settle()
    found.commands()
    found.step()
    rank.commands = [["forget", 0]]
    found.commands()
    for _ in range(4):
        found.step()
    assert [each.number for each in found.requests] == [1]
    said = [token for each in rank.said if each[0] == "tokens" for token in each[3]]
    assert said == [[1, place, token] for place, token in enumerate(alone(SmallModel(SHAPE), [7, 1], 2))]


def test_more_requests_than_a_step_has_room_for_take_turns(tmp_path: Path) -> None:
    rank = FakeRank()
    rank.commands = [["request", number, [7, number], [], 9] for number in range(6)]
    found = program(rank, tmp_path)
    found.begin()
    found.settle()
    found.commands()
    for _ in range(3 * SHAPE.layers):
        found.step()
    assert min(each.said for each in found.requests) >= 1 and len(found.requests) == 6


def test_a_rank_waits_until_all_have_their_weights_and_makes_no_step_of_an_epoch_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, looked = program(FakeRank(2), tmp_path), []
    found.begin()

    def look() -> None:
        looked.append(found.port.step)
        found.board.complete(1, 1)

    with monkeypatch.context() as patch:
        patch.setattr(found, "look", look)
        found.settle()
    assert looked == [0] and found.port.step > 0
    found.look()
    found.agreement.epoch, found.agreement.promised = 2, (2, -1)
    with pytest.raises(Interrupted):
        found.look()
