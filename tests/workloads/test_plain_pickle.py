"""Pickles as data: what is plain comes out as pickle itself gives it, and nothing else comes out at all."""

from __future__ import annotations

import os
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadFileError
from wavetank.workloads.plain_pickle import plain_pickle

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**100), 2**100) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(PLAIN, st.integers(2, 5))
def test_plain_values_are_what_pickle_gives(value, protocol):
    assert plain_pickle(pickle.dumps(value, protocol)) == value


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("hostile-was-here",)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_that_could_run_is_read(protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in (Hostile(), [1, {"a": Hostile()}], os.system, Hostile, object(), {1, 2}, b"bytes", 1 + 2j):
        data = pickle.dumps(value, protocol)
        with pytest.raises(BadFileError):
            plain_pickle(data)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "code",
    [b"cos\nsystem\n", b"(S'echo'\nios\nsystem\n", b"}}b", b"\x82\x01", b"P1\n", b"N)\x81", b"N)R",
     b"\x8c\x02os\x8c\x06system\x93", b"I1\n", b"B\x00\x00\x00\x00", b"\x8e", b"Q", b"\x97"],
)  # fmt: skip
def test_each_instruction_that_makes_objects_is_refused(code):
    with pytest.raises(BadFileError):
        plain_pickle(b"\x80\x04" + code + b".")


def test_what_refers_to_itself_or_grows_without_end_is_refused():
    loop: list[object] = []
    loop.append(loop)
    tree: list[object] = []
    for _ in range(40):
        tree = [tree, tree]
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]
    for value in (loop, tree, deep):
        with pytest.raises(BadFileError):
            plain_pickle(pickle.dumps(value))


def test_shared_values_come_out_as_copies():
    shared = [1, 2]
    found = plain_pickle(pickle.dumps({"a": shared, "b": shared}))
    assert found == {"a": [1, 2], "b": [1, 2]} and found["a"] is not found["b"]


@pytest.mark.parametrize(
    "damage",
    [b"", b"\x80\x04", b"\x80\x09N.", b"N.N", b"(N.", b"\x80\x04.", b"X\xff\xff\xff\xff.", b"a.", b"}Nu.", b"(e.",
     b"h\x05.", b"}(Nu.", b"](K\x01K\x02t.", b"\x8a\xff.", b"\x95\xff" + b"\xff" * 7 + b"N."],
)  # fmt: skip
def test_damaged_pickles_are_refused(damage):
    with pytest.raises(BadFileError):
        plain_pickle(damage)


def test_random_bytes_and_changed_pickles_never_do_anything_else(many=20_000):
    draws = random.Random(5)
    base = pickle.dumps({"entries": [{"a": [1, (2, "x")], "b": None}], "v": "2.10"}, 2)
    for _ in range(many):
        data = bytearray(base)
        for _ in range(draws.randint(1, 4)):
            data[draws.randrange(len(data))] = draws.randrange(256)
        try:
            plain_pickle(bytes(data))
        except BadFileError:
            continue
