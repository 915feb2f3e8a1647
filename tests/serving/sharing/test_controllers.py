"""Controllers."""

import json

import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.serving.sharing.controllers import AgentAndCritic, GreedyMoves, LoadBalancing, Still, possible_moves
from wavetank.serving.sharing.interface import Move

FULL = ((0, 5.0, 0.1, 0.5), (0, 4.0, 0.1, 0.5))


def decided(system, view):
    return system.controller(0, None).decide(view)


@pytest.mark.parametrize(
    "system", [AgentAndCritic(), AgentAndCritic(critic="fluid"), AgentAndCritic(critic="none"), GreedyMoves(),
               GreedyMoves(critic="learned"), LoadBalancing(), LoadBalancing(when_late=0.9)],
)  # fmt: skip
def test_a_full_node_beside_an_empty_one_is_helped(view, system):
    found = decided(system, view(ai=FULL))
    assert found and {move.to for move in found} == {"n1"}


@pytest.mark.parametrize("system", [AgentAndCritic(), AgentAndCritic(agent="random"), GreedyMoves(), LoadBalancing(),
                                    LoadBalancing(when_late=0.9)])  # fmt: skip
def test_nodes_with_little_to_do_are_left_alone(view, system):
    assert decided(system, view(ai=((0, 0.2, 0.1, 5.0), (1, 0.2, 0.1, 5.0)), fulfilled=1.0)) == []


def test_the_critic_keeps_what_a_random_agent_loses(view):
    some = view(ai=((0, 0.2, 0.1, 5.0), (1, 0.2, 0.1, 5.0)), fulfilled=1.0)
    loose = AgentAndCritic(agent="random", critic="none").controller(0, None)
    assert sum(len(loose.decide(some)) for _ in range(20)) > 5
    strict = AgentAndCritic(agent="random").controller(0, None)
    assert sum(len(strict.decide(some)) for _ in range(20)) == 0


def test_with_endless_downtime_nothing_moves(view):
    full = view(ai=FULL, downtime_s=float("inf"))
    for system in (AgentAndCritic(), AgentAndCritic(agent="random"), GreedyMoves(), GreedyMoves(critic="learned")):
        assert decided(system, full) == []


def test_a_threshold_holds_moves_back(view):
    assert decided(AgentAndCritic(threshold=1e9), view(ai=FULL)) == []
    assert decided(GreedyMoves(threshold=1e9), view(ai=FULL)) == []


def test_nobody_moves_a_service_twice_or_to_where_there_is_no_memory(view):
    found = decided(GreedyMoves(), view(ai=FULL))
    assert len({move.service for move in found}) == len(found)
    assert decided(GreedyMoves(), view(ai=FULL, memory_gb=5.5)) == []
    assert possible_moves(view(ai=FULL, memory_gb=5.5)) == []


def test_recorded_answers_move_services_and_wrong_names_are_left_out(view, tmp_path):
    answers = [
        {"moves": [{"service": "s9", "to": "n1"}, {"service": "s0", "to": "n1"}]}, "nonsense",
        {"moves": [{"service": "s1", "to": "mars"}]},
    ]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(json.dumps(each)) + "\n" for each in answers))
    controller = AgentAndCritic(agent=f"recorded:{tmp_path}/a.jsonl").controller(0, None)
    assert controller.decide(view(ai=FULL)) == [Move(service="s0", to="n1")]
    # Nonsense, a wrong name, and then no answer any more.
    assert [controller.decide(view(ai=FULL)) for _ in range(3)] == [[], [], []]


def test_what_does_not_exist_is_named(tmp_path):
    with pytest.raises(BadValueError, match="language model"):
        AgentAndCritic(agent="gpt").controller(0, None)
    with pytest.raises(BadFileError):
        AgentAndCritic(agent=f"recorded:{tmp_path}/none").controller(0, None)
    assert Still().controller(0, None) is None
