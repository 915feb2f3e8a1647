"""Agents, and answers that nobody should trust."""

import json

import pytest

from wavetank.errors import BadValueError
from wavetank.live.language_model import Function, NoAnswerError
from wavetank.serving.sharing.agents import MOST_MOVES, Asked, AtRandom, Scripted, prompt_of, read_moves
from wavetank.serving.sharing.interface import Move

GOOD = '{"moves": [{"service": "s0", "to": "n1"}]}'


def test_the_script_helps_the_service_that_fulfils_least(view):
    full = view(ai=((0, 5.0, 0.1, 0.5),))
    assert Scripted().propose(full)[0] == Move(service="s0", to="n1")
    assert Scripted().propose(view(ai=((0, 5.0, 0.1, 0.5),), fulfilled=0.99)) == []


def test_random_moves_depend_on_the_seed_alone(view):
    some = view(ai=((0, 1.0, 0.1, 1.0), (1, 1.0, 0.1, 1.0)))
    first, again, other = ([agent.propose(some) for _ in range(5)] for agent in (AtRandom(1), AtRandom(1), AtRandom(2)))
    assert first == again != other


@pytest.mark.parametrize("answer", [GOOD, f"Here you are:\n```json\n{GOOD}\n```\nGood luck!"])
def test_moves_are_read_with_words_around(answer):
    assert read_moves(answer) == [Move(service="s0", to="n1")]


@pytest.mark.parametrize(
    "answer",
    ["", "no", "[]", "{}", "{", "}{", '{"moves": 3}', '{"moves": [3]}', '{"moves": [{"service": "s0"}]}',
     '{"moves": [{"service": 1, "to": "n1"}]}', '{"moves": {"service": "s0", "to": "n1"}}', "{" * 3000 + "}" * 3000,
     '{"moves": [' + "9" * 5000 + "]}", '{"moves": NaN}', "\x00{\x00}", '{"a": ' * 600 + "1" + "}" * 600],
)  # fmt: skip
def test_nonsense_is_refused(answer):
    with pytest.raises(BadValueError):
        read_moves(answer)


def test_no_more_moves_are_read_than_are_allowed():
    many = json.dumps({"moves": [{"service": f"s{i}", "to": "n0"} for i in range(50)]})
    assert len(read_moves(many)) == MOST_MOVES


def test_a_language_model_sees_names_and_answers_moves(view):
    seen = []

    def answer(question):
        seen.append(question)
        return GOOD

    assert Asked(Function(answer)).propose(view()) == [Move(service="s0", to="n1")]
    assert "n1" in seen[0] and "s0" in seen[0] and "r1" in seen[0]
    assert prompt_of(view()) == seen[0]


def test_answers_that_do_not_come_or_cannot_be_read_propose_nothing(view):
    def late(question):
        raise NoAnswerError("too late")

    for function in (late, lambda question: "I would rather not."):
        agent = Asked(Function(function))
        assert agent.propose(view()) == [] and agent.unread == 1
