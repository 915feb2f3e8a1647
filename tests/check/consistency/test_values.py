"""Values that operations cannot have are refused by line, in every format."""

from __future__ import annotations

import json

import pytest

from wavetank.check.consistency.check import HistoryCheck
from wavetank.check.consistency.engine import judge, judge_all
from wavetank.check.consistency.files import read_history
from wavetank.check.consistency.recordings import parse_recording
from wavetank.check.consistency.rules import judge_rule
from wavetank.check.report import Budget
from wavetank.errors import BadFileError, BadValueError
from wavetank.sim.history import History, Operation

HEADER = {"format": "wavetank-history", "version": 1}


def operation(action, value=None, result=None, **more):
    return {"process": "0", "action": action, "value": value, "result": result, "invoked": 0.0, "returned": 1.0, **more}


ODD = {
    "a counter's sum": [operation("increment", "a"), operation("read", process="1", result=3)],
    "a count that is true": [operation("increment", 1), operation("read", process="1", result=True)],
    "a count of nothing": [operation("increment", 1), operation("read", process="1")],
    "a set": [operation("add", 1), operation("read", process="1", result=5)],
    "a list": [operation("append", 1), operation("read", process="1", result=5)],
    "a string": [operation("append", "a"), operation("read", process="1", result=5)],
    "a swap": [operation("cas", 5, True)],
    "a swap's answer": [operation("cas", [1, 2], 7)],
    "a transaction": [operation("transaction", 5)],
    "a short step": [operation("transaction", [["read", "x"]], [["read", "x"]])],
    "an unknown step": [operation("transaction", [["swap", "x", 1]], [["swap", "x", 1]])],
    "a list as an action": [operation("transaction", [[[], "x", 1]])],
    "a number as a key": [operation("transaction", [["read", 1, None]], [["read", 1, None]])],
    "other steps than asked": [operation("transaction", [["append", "x", 1]], [["read", "x", 1]])],
    "more steps than asked": [operation("transaction", [["read", "x", None]], [["read", "x", 1], ["read", "y", 1]])],
    "a transaction's answer": [operation("transaction", [["read", "x", None]], 7)],
}


@pytest.mark.parametrize("name", ODD)
def test_values_that_cannot_be_are_refused_by_line(tmp_path, name):
    path = tmp_path / "odd.jsonl"
    path.write_text("\n".join(map(json.dumps, [HEADER, *ODD[name]])))
    with pytest.raises(BadFileError) as caught:
        read_history(path)
    assert f"line {1 + len(ODD[name])}" in caught.value.where or "line 2" in caught.value.where
    assert caught.value.given and caught.value.allowed
    history = History(operations=tuple(Operation(**each) for each in ODD[name]))
    for ask in (lambda: judge(history, "linearizable"), lambda: judge_all(history)):
        with pytest.raises(BadValueError, match="value"):
            ask()


@pytest.mark.parametrize(
    ("events", "line"),
    [
        ([("add", "1", "1"), ("read", "nil", "1"), ("read", "nil", "nil")], 6),
        ([("increment", '"a"', '"a"'), ("read", "nil", "1")], 2),
        ([("add", "1", "1"), ("read", "nil", "[1]"), ("read", "nil", "5")], 6),
        ([("enqueue", "1", "1"), ("drain", "nil", "1")], 4),
        ([("append", "1", "1"), ("read", "nil", "5")], 4),
    ],
)
def test_recordings_with_such_values_are_refused_by_line(events, line):
    text = "".join(
        f"{{:process 0 :type :{kind} :f :{action} :value {value}}}\n"
        for action, asked, told in events
        for kind, value in (("invoke", asked), ("ok", told))
    )
    with pytest.raises(BadFileError) as caught:
        parse_recording(text, "x")
    assert caught.value.where == f"x, line {line}, column 1"


@pytest.mark.parametrize(
    ("rule", "rows"),
    [
        ("counter", [operation("increment", []), operation("read", result=1)]),
        ("pn-counter", [operation("read", result="1")]),
        ("set-full", [operation("read", result=1)]),
        ("total-queue", [operation("drain", result=1)]),
        ("kafka", [operation("log", [["send", "x"]])]),
        ("kafka", [operation("log", [["poll"]], [["poll", {"x": [["a", 1]]}]])]),
        ("kafka", [operation("log", [["poll"]], [["poll", {"x": [1]}]])]),
    ],
)
def test_rules_refuse_what_they_cannot_judge(tmp_path, rule, rows):
    history = History(operations=tuple(Operation(**row) for row in rows[:1]))
    with pytest.raises(BadValueError, match="value"):
        judge_rule(history, rule)
    path = tmp_path / "odd.jsonl"
    path.write_text("\n".join(map(json.dumps, [HEADER, *rows[:1]])))
    with pytest.raises(BadFileError, match="value"):
        HistoryCheck(models=(rule,)).check(path, Budget())


def test_a_store_named_later_refuses_as_well(tmp_path):
    path = tmp_path / "registers.jsonl"
    path.write_text(
        "\n".join(map(json.dumps, [HEADER, operation("write", 5), operation("read", result=5, process="1")]))
    )
    with pytest.raises(BadFileError, match="value") as caught:
        HistoryCheck(store="list").check(path, Budget())
    assert "operation 0" in caught.value.where


def test_lists_are_empty_at_first_whatever_registers_hold():
    steps = [["append", "x", 1], ["read", "x", [1]]]
    row = operation("transaction", [["append", "x", 1], ["read", "x", None]], steps)
    history = History(operations=(Operation(**row),), initial=0)
    assert judge_all(history)["fork-linearizable"].outcome == "holds"


def test_a_key_that_is_written_and_appended_to_is_judged():
    steps = [["write", "x", 2], ["append", "x", 3], ["read", "x", [2, 3]]]
    row = operation("transaction", [*steps[:2], ["read", "x", None]], steps)
    assert judge(History(operations=(Operation(**row),)), "strict-serializable").outcome in ("holds", "undecided")
