import pytest

from wavetank.protocols.sessions.examples import NAMES, example
from wavetank.protocols.sessions.global_types import global_type
from wavetank.protocols.sessions.parser import parse_protocols
from wavetank.protocols.sessions.syntax import IllFormedError
from wavetank.protocols.sessions.wellformed import check_well_formed


def check(body, *, reach=True):
    text = f"protocol P(role p, role q, role s) {{\n{body}\n}}"
    protocol = global_type(parse_protocols(text, path="p.nuscr"))
    odd = check_well_formed(protocol, reach=reach)
    return protocol, odd


def refused(body):
    with pytest.raises(IllFormedError) as caught:
        check(body)
    return caught.value


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_keep_all_rules(name):
    assert check_well_formed(global_type(parse_protocols(example(name)))) == []


def test_a_mix_finds_its_optimist():
    protocol, _ = check("mix { a from p to q; } or interrupt by q { b from q to p; }")
    assert (protocol.mixes[1].optimist, protocol.mixes[1].arbiter) == ("p", "q")


@pytest.mark.parametrize(
    ("body", "rule", "place"),
    [
        ("rec X { continue X; }", "guarded recursion", "line 2, column 9"),
        ("rec X { choice at p { continue X; } or { a from p to q; } }", "guarded recursion", "column 23"),
        ("do P(p, q, s);", "guarded recursion", "line 2, column 1"),
        ("rec X { mix { continue X; } or interrupt by q { b from q to p; } }", "guarded recursion", "column 15"),
        ("choice at p { a from p to q; } or { b from q to p; }", "choice", "line 2, column 37"),
        ("choice at p { a from p to q; } or { }", "choice", "line 2, column 1"),
        ("choice at p { a from p to q; } or { a from p to q; b from q to p; }", "distinct labels", "column 37"),
        ("choice at p { a from p to q; }", "choice", "line 2, column 1"),
        ("mix { a from p to s; } or interrupt by q { b from q to p; }", "mix", "line 2, column 7"),
        ("mix { a from p to q; } or interrupt by q { b from q to s; }", "mix", "line 2, column 44"),
        ("mix { a from p to q; } or interrupt by q { b from p to q; }", "mix", "line 2, column 44"),
        ("mix { } or interrupt by q { b from q to p; }", "mix", "line 2, column 1"),
    ],
)
def test_a_broken_rule_is_named_with_its_place(body, rule, place):
    error = refused(body)
    assert error.rule == rule
    assert str(error.where).endswith(place)


def test_a_choice_with_one_branch_is_odd_but_allowed_inside_something_larger():
    _, odd = check("choice at p { a from p to q; } b from q to p;")
    assert odd == ["a choice with one branch, p.nuscr, line 2, column 1"]


RIGHT_LEAVES_S_OUT = "mix { a from p to q; note from p to s; } or interrupt by q { b from q to p; }"


def test_rule_a_who_takes_part_on_the_left_is_informed_on_the_right():
    error = refused(RIGHT_LEAVES_S_OUT)
    assert error.rule == "reach (a)"
    assert "'s'" in error.problem
    assert error.hint == "send a message from q to s on the right side"
    check(RIGHT_LEAVES_S_OUT, reach=False)
    check("mix { a from p to q; n from p to s; } or interrupt by q { b from q to p; c from p to s; }")


def test_rule_a_nobody_acts_on_the_right_before_being_informed():
    error = refused(
        "mix { a from p to q; n from q to s; } or interrupt by q { b from q to p; early from s to q; c from q to s; }"
    )
    assert error.rule == "reach (a)"


def test_rule_b_no_label_can_mean_either_side():
    body = "mix { a from p to q; go from q to s; } or interrupt by q { b from q to p; go from q to s; }"
    error = refused(body)
    assert error.rule == "disjoint labels (b)"
    assert "line 2" in error.problem


def test_rule_b_lets_labels_be_used_again_once_the_side_is_known():
    check("mix { a from p to q; x from q to p; y from p to q; } or interrupt by q { b from q to p; y from p to q; }")


def test_rule_c_nothing_irreversible_before_the_left_side_is_settled():
    early = (
        'mix { a from p to q; pay from p to s; @"irreversible"\n ok from q to p; } '
        "or interrupt by q { b from q to p; no from p to s; }"
    )
    late = (
        'mix { a from p to q; ok from q to p; pay from p to s; @"irreversible"\n } '
        "or interrupt by q { b from q to p; no from p to s; }"
    )
    assert refused(early).rule == "irreversible (c)"
    check(late)


def test_rule_c_holds_after_the_mix_too():
    error = refused('mix { a from p to q; } or interrupt by q { b from q to p; } pay from p to s; @"irreversible"')
    assert error.rule == "irreversible (c)"
