from __future__ import annotations

import pytest

from wavetank.check.explore.counterexample import Path, follow, shortened
from wavetank.check.explore.environment import Environment
from wavetank.check.explore.parts import Action
from wavetank.check.explore.system import System
from wavetank.errors import BadValueError
from wavetank.protocols.exploration.two_phase_commit import Abort, Prepared, TwoPhaseCommit

PREPARE_1 = Action("timer", 1, -1, "prepare")
PREPARED_1 = Action("deliver", 0, 1, Prepared())
ABORT_0 = Action("timer", 0, -1, "abort")


def system() -> System:
    return System(TwoPhaseCommit(), 3, environment=Environment(drops=1, crashes=1))


def test_a_replay_tells_what_each_step_did() -> None:
    path = follow(system(), [PREPARE_1, PREPARED_1, ABORT_0, Action("deliver", 1, 0, Abort())])
    assert [step.sent for step in path.steps] == [((0, Prepared()),), (), ((1, Abort()), (2, Abort())), ()]
    assert path.steps[2].decided == ((0, "aborted"),)
    assert path.snapshot().nodes[1].state == "aborted"  # type: ignore[attr-defined]
    assert path.snapshot(0).nodes[1].state == "working"  # type: ignore[attr-defined]
    assert path.actions[0] == PREPARE_1


def test_an_action_that_cannot_happen_is_refused_with_what_can() -> None:
    with pytest.raises(BadValueError) as caught:
        follow(system(), [ABORT_0, PREPARED_1])
    assert caught.value.where == "action 2 of 2"
    assert "timer at 1: prepare" in (caught.value.allowed or ())
    assert follow(system(), [ABORT_0, PREPARED_1], skip=True).actions == [ABORT_0]


def test_a_message_to_a_node_that_is_down_is_told_as_lost() -> None:
    path = follow(system(), [PREPARE_1, Action("crash", 0), PREPARED_1])
    assert [step.lost for step in path.steps] == [False, False, True]
    dropped = follow(system(), [PREPARE_1, Action("drop", 0, 1, Prepared())])
    assert dropped.steps[1].sent == ()
    assert dropped.system.network_of(dropped.rows[-1]) == []


def test_a_run_is_shortened_to_what_is_needed() -> None:
    def bad(path: Path) -> bool:
        return path.snapshot().nodes[0].prepared[1]  # type: ignore[attr-defined, no-any-return]

    long = [Action("timer", 2, -1, "prepare"), PREPARE_1, Action("deliver", 0, 2, Prepared()), PREPARED_1, ABORT_0]
    short = shortened(system(), long, bad)
    assert short == [PREPARE_1, PREPARED_1]
    assert bad(follow(system(), short))
