import pytest

from wavetank.protocols.sessions.global_types import global_type
from wavetank.protocols.sessions.parser import parse_protocols
from wavetank.protocols.sessions.refinements import check_refinements
from wavetank.protocols.sessions.syntax import IllFormedError


def check(body, *pragmas):
    words = ", ".join(("RefinementTypes", *pragmas))
    module = parse_protocols(f"(*# {words} #*)\nprotocol P(role A, role B, role C) {{\n{body}\n}}", path="p.nuscr")
    check_refinements(global_type(module), module)


@pytest.mark.parametrize(
    ("body", "problem", "column"),
    [
        ("m(x: int{42}) from A to B;", "This is int; a condition must be bool.", 10),
        ("m(x: int{y = x}) from A to B;", "No value named 'y' was sent before this.", 10),
        ("m(x: int{x = true}) from A to B;", "This is bool; the right side of a comparison must be int.", 14),
        ("m(x: int{len(x) > 0}) from A to B;", "This is int; what follows 'len' must be string.", 14),
        ("m(x: int{not x}) from A to B;", "This is int; what follows 'not' must be bool.", 14),
        ("rec X [n<A>: int = true] { m from A to B; continue X [1]; }", "the start of 'n' must be int", 20),
        ("rec X [n<A>: int = 0] { m from A to B; continue X [true]; }", "the next value of 'n' must be int", 52),
        ("rec X [n<A>: int = 0] { m from A to B; continue X; }", "The loop 'X' has 1 variables.", 40),
        ("rec X [n<C>: int = 0] { m(k: int) from A to B; continue X [k]; }", "'C' does not know the value of 'k'.", 60),
        ("rec X [n<A>: (n: int{n >= 0}) = 0] { m from A to B; continue X [n - 1]; }", "need not fulfil", 67),
        ("rec X [n<A>: (n: int{n > 0}) = 0] { m from A to B; continue X [n]; }", "need not fulfil", 32),
    ],
)
def test_what_makes_no_sense_is_reported_with_its_place(body, problem, column):
    with pytest.raises(IllFormedError) as caught:
        check(body)
    assert problem in caught.value.problem
    assert caught.value.where == f"p.nuscr, line 3, column {column}"
    assert caught.value.rule == "refinement"


def test_sound_conditions_pass():
    check("rec X [n<A>: (n: int{n >= 0}) = 0] { m(k: int{k = n && not (k < 0)}) from A to B; continue X [n + 1]; }")
    check('m(s: string{len(s) >= 2 || s = "a"}, b: bool{b = true}) from A to B; k(t: int{t <> -1}) from B to A;')


def test_who_judges_a_condition_must_know_its_values():
    body = "m(x: int) from A to B; k(y: int{y = x}) from B to C;"
    check(body)
    check(body, "SenderValidateRefinements")
    with pytest.raises(IllFormedError, match="'C' does not know the value of 'x'"):
        check(body, "ReceiverValidateRefinements")


def test_conditions_that_nothing_fulfils_are_found_when_asked_for():
    body = "m(x: int{x > 0}) from A to B; k(y: int{y > x && y < 0}) from B to A;"
    check(body)
    with pytest.raises(IllFormedError, match="No value fulfils"):
        check(body, "ValidateRefinementSatisfiability")


def test_a_protocol_that_values_can_stop_is_found_when_asked_for():
    stuck = "m(x: int{x >= 0}) from A to B; k(y: int{y = x && y > 0}) from B to A;"
    goes_on = "m(x: int{x > 0}) from A to B; k(y: int{y = x && y > 0}) from B to A;"
    check(stuck)
    check(goes_on, "ValidateRefinementProgress")
    with pytest.raises(IllFormedError, match="may get stuck"):
        check(stuck, "ValidateRefinementProgress")


def test_a_value_sent_twice_under_one_name_means_the_later_one():
    check(
        "m(x: int{x > 0}) from A to B; m2(x: bool{x = true}) from B to A; k(y: int{y > 0}) from A to B;",
        "ValidateRefinementSatisfiability",
        "ValidateRefinementProgress",
    )


def test_nothing_is_checked_in_a_file_that_does_not_ask_for_it():
    module = parse_protocols("protocol P(role A, role B) { m(x: int{nonsense}) from A to B; }")
    check_refinements(global_type(module), module)
