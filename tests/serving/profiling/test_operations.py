"""Signatures: what is equal has one, what differs has another."""

from __future__ import annotations

import pytest

from wavetank.errors import BadFileError
from wavetank.serving.profiling.operations import Operation, canonical, checked, dimension, evaluated, is_view, tensors
from wavetank.serving.profiling.taint import CONTEXT, NUM_REQS, NUM_TOKS, Taint, of_config, of_request

TOKENS = {"NUM_TOKS": 1}


def linear(rows: object, out: int = 64, dtype: str = "float32") -> Operation:
    structure = {"a": [{"t": dtype, "d": [rows, 32]}, {"t": dtype, "d": [out, 32], "w": 1}, None]}
    return Operation("aten.linear.default", canonical(structure))


def test_a_signature_depends_on_name_shapes_and_type_and_on_nothing_else() -> None:
    assert linear(TOKENS).signature == linear(dict(TOKENS)).signature
    others = [linear(TOKENS, 65), linear({"NUM_REQS": 1}), linear(TOKENS, dtype="bfloat16"), linear(7)]
    others.append(Operation("aten.mm.default", linear(TOKENS).structure))
    assert len({each.signature for each in [linear(TOKENS), *others]}) == 6


def test_sizes_of_the_request_are_symbols_and_others_numbers() -> None:
    assert dimension(of_request(NUM_TOKS), 7) == TOKENS
    assert dimension(of_config(64), 64) == 64
    assert dimension(None, 3) == 3
    assert dimension(Taint(((NUM_TOKS, 2),), 8, -1), 391) == {"NUM_TOKS": 2, "x": 8, "+": -1}


def test_symbols_become_numbers_for_a_batch() -> None:
    structure = {"a": [{"t": "float32", "d": [{"NUM_TOKS": 2, "x": 8, "+": -1}, 4]}, [{"CONTEXT": 1}], True]}
    found = evaluated(structure, {NUM_TOKS: 3, CONTEXT: 10})
    assert found == {"a": [{"t": "float32", "d": [71, 4]}, [10], True]}


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        (linear(TOKENS), "tokens"),
        (linear({"NUM_REQS": 1}), "requests"),
        (linear(7), "once"),
        (linear({"MAX_NUM_REQS": 1}), "once"),
        (linear({"NUM_TOKS": 1, "NUM_REQS": 1}), "product"),
        (linear({"CONTEXT": 1}), "product"),
        (Operation("aten.view.default", linear(TOKENS).structure), "once"),
        (Operation("wavetank.cached_attention.default", linear(TOKENS).structure), "attention"),
    ],
)
def test_only_what_the_request_sets_is_swept(operation: Operation, kind: str) -> None:
    assert operation.kind == kind


def test_what_reinterprets_memory_is_known_by_its_whole_name() -> None:
    assert is_view("aten.view.default")
    assert not is_view("aten.index_select.default")
    assert not is_view("other.view.default")


def test_a_kept_operation_must_have_the_signature_it_was_kept_under() -> None:
    operation = linear(TOKENS)
    assert checked(operation.name, operation.structure, operation.signature, "a file") == operation
    with pytest.raises(BadFileError, match="damaged"):
        checked(operation.name, operation.structure.replace("64", "65"), operation.signature, "a file")


def test_an_operation_is_written_for_people() -> None:
    assert linear({"NUM_TOKS": 1, "x": 8}).words() == "linear(float32[8*NUM_TOKS, 32], float32[64, 32])"
    assert [each["d"] for each in tensors(linear(TOKENS).arguments)] == [[TOKENS, 32], [64, 32]]
    assert linear({"NUM_TOKS": 1}).swept == {NUM_TOKS}
    assert linear({"NUM_REQS": 1}).varies_with == {NUM_REQS}
