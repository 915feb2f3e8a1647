"""Sequential objects: what each answers."""

from __future__ import annotations

import msgspec
import pytest

from wavetank.check.consistency.objects import OBJECTS, encode, frozen, object_of
from wavetank.errors import BadValueError, UnknownNameError
from wavetank.sim.history import History, Operation


def op(action, value=None, result=None, returned=1.0, key=""):
    return Operation(process="p", action=action, key=key, value=value, result=result, invoked=0.0, returned=returned)


def states(name, *operations, initial=None):
    """Apply operations one after another; None from the first impossible one on."""
    kind = OBJECTS[name]
    state = kind.initial(initial)
    for operation in operations:
        state = kind.step(state, operation)
        if state is None:
            return None
    return state


@pytest.mark.parametrize(
    ("name", "operations", "possible"),
    [
        ("register", [op("write", 1), op("read", result=1)], True),
        ("register", [op("read", result=None)], True),
        ("register", [op("write", 1), op("read", result=True)], False),
        ("register", [op("write", 1), op("cas", [1, 2], True), op("read", result=2)], True),
        ("register", [op("write", 1), op("cas", [1, 2], False)], False),
        ("register", [op("write", 1), op("cas", [3, 2], False), op("read", result=1)], True),
        ("register", [op("write", 1), op("cas", [1, 2], None), op("read", result=2)], True),
        ("kv", [op("append", "a"), op("append", "b"), op("read", result="ab")], True),
        ("kv", [op("append", "a"), op("write", "c"), op("read", result="c")], True),
        ("list", [op("append", 1), op("append", 2), op("read", result=[1, 2])], True),
        ("list", [op("append", 1), op("read", result=[])], False),
        ("mutex", [op("acquire"), op("release"), op("acquire")], True),
        ("mutex", [op("acquire"), op("acquire")], False),
        ("mutex", [op("release")], False),
        ("queue", [op("enqueue", 1), op("enqueue", 2), op("dequeue", result=1)], True),
        ("queue", [op("enqueue", 1), op("enqueue", 2), op("dequeue", result=2)], False),
        ("queue", [op("dequeue", result=None)], True),
        ("stack", [op("push", 1), op("push", 2), op("pop", result=2)], True),
        ("set", [op("add", 1), op("add", 2), op("remove", 1), op("read", result=[2])], True),
        ("counter", [op("increment"), op("increment", 4), op("read", result=5)], True),
        ("multi-register", [op("transaction", [["write", "x", 1]], [["write", "x", 1]]),
                            op("transaction", [["read", "x", None]], [["read", "x", 1]])], True),
        ("multi-register", [op("transaction", [["read", "y", None]], [["read", "y", 1]])], False),
        ("multi-register", [op("transaction", [["write", "x", 1]], False),
                            op("transaction", [["read", "x", None]], [["read", "x", None]])], True),
    ],
)  # fmt: skip
def test_an_object_allows_what_one_copy_would_answer(name, operations, possible):
    assert (states(name, *operations) is not None) == possible


def test_what_never_returned_allows_any_result():
    assert states("queue", op("enqueue", 1), op("dequeue", returned=None)) == ()
    assert states("register", op("read", returned=None)) == (None,)


@pytest.mark.parametrize("name", OBJECTS)
def test_a_pure_operation_changes_no_state(name):
    kind = OBJECTS[name]
    made = [op("write", 1), op("append", "a"), op("enqueue", 1), op("push", 1), op("add", 1), op("increment"),
            op("acquire"), op("transaction", [["write", "x", 1]], [["write", "x", 1]])]  # fmt: skip
    asked = [op("read", result=None), op("read", result=1), op("read", result=""), op("read", result=[1]),
             op("cas", [1, 1], True), op("cas", [7, 1], False), op("dequeue"), op("pop"),
             op("transaction", [["read", "x", None]], [["read", "x", 1]])]  # fmt: skip
    checked = 0
    for first in [None, *made]:
        if first is not None and (first.action not in kind.actions or (name == "kv" and first.value == 1)):
            continue
        if name == "list" and first is not None and first.action == "write":
            continue
        state = kind.initial(None) if first is None else kind.step(kind.initial(None), first)
        for one in asked:
            texts = isinstance(one.result, str) if name == "kv" else isinstance(one.result, list)
            if one.action not in kind.actions or (
                name in ("kv", "list", "set") and one.result is not None and not texts
            ):
                continue
            after = kind.step(state, one)
            checked += 1
            assert not kind.pure(one) or after in (None, state)
    assert checked or name == "mutex"


def test_true_and_one_are_different_values():
    assert frozen(True) != frozen(1)
    assert frozen([1, {"a": 2}]) == frozen((1, {"a": 2}))


def test_the_store_is_found_from_the_operations():
    def found(*operations):
        named = [msgspec.structs.replace(each, process=str(at)) for at, each in enumerate(operations)]
        return object_of(History(operations=tuple(named))).name

    assert found(op("read"), op("cas", [1, 2], True)) == "register"
    assert found(op("append", "a")) == "kv"
    assert found(op("append", 3)) == "list"
    assert found(op("acquire")) == "mutex"
    assert found(op("transaction", [])) == "multi-register"
    assert found(op("increment")) == "counter"


def test_stores_and_actions_that_do_not_exist_are_refused():
    history = History(operations=(op("acquire"),))
    with pytest.raises(UnknownNameError) as caught:
        object_of(history, "mutexx")
    assert caught.value.nearest == "mutex"
    with pytest.raises(BadValueError, match="no such operation"):
        object_of(history, "queue")
    with pytest.raises(BadValueError, match="No store") as odd:
        object_of(History(operations=(op("acquier"),)))
    assert odd.value.nearest == "acquire"


def test_values_that_fit_no_store_are_refused():
    with pytest.raises(BadValueError, match="holds strings"):
        encode(OBJECTS["kv"], [op("write", 3)], None)


def test_equal_strings_have_equal_fingerprints_however_they_came_about():
    encoded, _ = encode(
        OBJECTS["kv"], [op("write", "ab"), op("read", result="ab"), op("read", result="abc"), op("read", result="")], ""
    )
    assert encoded.left[0].tolist() == encoded.expected[1].tolist() != encoded.expected[2].tolist()
    assert encoded.expected[3].tolist() == list(encoded.initial[:2])
    # What begins another text shares its prefixes.
    assert encoded.chains[1] == encoded.chains[2]
