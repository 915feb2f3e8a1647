import pytest

from wavetank.protocols.sessions import global_types
from wavetank.protocols.sessions.global_types import (
    Communication,
    GlobalType,
    global_type,
    globals_of,
)
from wavetank.protocols.sessions.parser import parse_protocols
from wavetank.protocols.sessions.syntax import IllFormedError


def refused(text, name=""):
    with pytest.raises(IllFormedError) as caught:
        global_type(parse_protocols(text, path="p.nuscr"), name)
    return caught.value


def labels(protocol: GlobalType):
    return [each.label for each in protocol.communications()]


def test_what_follows_a_choice_is_one_node_for_all_branches():
    text = "protocol P(role A, role B) { choice at A { a from A to B; } or { b from A to B; } c from B to A; }"
    protocol = global_type(parse_protocols(text))
    assert sorted(labels(protocol)) == ["a", "b", "c"]
    branches = [each for each in protocol.communications() if each.label in "ab"]
    assert branches[0].after == branches[1].after


def test_calls_with_changed_roles_are_expanded_until_they_repeat():
    text = "protocol P(role A, role B) { ping from A to B; pong from B to A; do P(B, A); }"
    protocol = global_type(parse_protocols(text))
    pairs = {(each.sender, each.receiver, each.label) for each in protocol.communications()}
    assert pairs == {("A", "B", "ping"), ("B", "A", "pong"), ("B", "A", "ping"), ("A", "B", "pong")}


def test_equal_calls_share_one_expansion():
    calls = " or ".join(f"{{ m{number} from A to B; do Q(A, B); }}" for number in range(50))
    text = f"protocol P(role A, role B) {{ choice at A {calls} }} aux protocol Q(role A, role B) {{ q from A to B; }}"
    assert labels(global_type(parse_protocols(text))).count("q") == 1


def test_a_mix_can_begin_again_what_it_stands_in():
    text = """protocol P(role A, role B) {
      mix { a from A to B; do P(A, B); } or interrupt by B { b from B to A; }
    }"""
    protocol = global_type(parse_protocols(text))
    assert len(protocol.mixes) == 1
    scopes = {each.label: each.scope for each in protocol.communications()}
    assert scopes == {"a": ((1, "left"),), "b": ((1, "right"),)}


def test_the_first_protocol_that_is_not_auxiliary_is_meant_unless_one_is_named():
    text = "aux protocol Q(role A, role B) { q from A to B; } protocol P(role A, role B) { p from A to B; }"
    module = parse_protocols(text)
    assert global_type(module).name == "P"
    assert global_type(module, "Q").name == "Q"


def test_with_nested_protocols_a_call_is_its_invitations():
    text = """(*# NestedProtocols #*)
    nested protocol N(role X, role Y; new role Z) { m from X to Z; }
    protocol P(role A, role B) { A calls N(A, B); do P(B, A); }"""
    found = globals_of(parse_protocols(text))
    assert labels(found["P"]) == ["call_A_N_A_B", "call_B_P_B_A"]
    assert found["N"].roles == ("X", "Y", "Z")


@pytest.mark.parametrize(
    ("text", "rule", "place"),
    [
        ("protocol P(role A, role B) { m from A to C; }", "roles", "line 1, column 30"),
        ("protocol P(role A, role A) { }", "roles", "line 1, column 1"),
        ("protocol P(role A, role B) { m from A to A; }", "reflexive", "line 1, column 30"),
        ("protocol P(role A, role B) { continue X; }", "recursion", "line 1, column 30"),
        (
            "protocol P(role A, role B) { rec X { m from A to B; continue X; n from A to B; } }",
            "reachable",
            "column 65",
        ),
        ("protocol P(role A, role B) { do Q(A, B); }", "names", "line 1, column 30"),
        ("protocol P(role A, role B) { do P(A); }", "arity", "line 1, column 30"),
        ("protocol P(role A, role B) { m from A to B; do P(A, A); }", "roles", "line 1, column 45"),
        ("protocol P(role A, role B) { m from A to B; do P(A, B); n from A to B; }", "tail recursion", "column 45"),
        ("protocol P(role A) { } protocol P(role A) { }", "names", "line 1, column 24"),
        ("protocol P(role A, role B) { A calls P(A, B); }", "pragma", "line 1, column 30"),
        ("nested protocol N(role A) { } protocol P(role A) { }", "pragma", "line 1, column 1"),
        ("protocol P<type T>(role A, role B) { }", "supported", "line 1, column 1"),
        ("local protocol P at A(role A, role B) { }", "supported", "line 1, column 1"),
        ("protocol P(role A, role B) { m(Q@A) from A to B; }", "supported", "line 1, column 32"),
        ("explicit global protocol P(role A, role B) { connect A to B; }", "supported", "line 1, column 46"),
        ("protocol P(role A, role B) { mix { a from A to B; } or interrupt by C { } }", "roles", "column 30"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(text, rule, place):
    error = refused(text)
    assert error.rule == rule
    assert str(error.where).startswith("p.nuscr, line 1")
    assert str(error.where).endswith(place)


def test_a_missing_name_comes_with_the_nearest():
    assert refused("protocol P(role Alice, role Bob) { m from Alic to Bob; }").nearest == "Alice"
    assert refused("protocol Pong(role A, role B) { m from A to B; }", "Ping").nearest == "Pong"


def test_protocols_of_other_modules_are_said_not_to_be_read():
    error = refused("import other.Q; protocol P(role A, role B) { do Q(A, B); }")
    assert "copy it into this file" in error.hint


def test_an_empty_file_has_no_protocol():
    assert refused("// nothing").problem == "The file has no protocol."


def test_calls_that_multiply_are_refused_before_they_fill_the_memory(monkeypatch):
    monkeypatch.setattr(global_types, "LARGEST_GRAPH_NODES", 20_000)
    protocols = [f"protocol P{level}(role A, role B) {{ " + f"do P{level + 1}(A, B); " * 8 + "}" for level in range(8)]
    text = " ".join([*protocols, "protocol P8(role A, role B) { m from A to B; }"])
    error = refused(text)
    assert (error.rule, error.allowed) == ("size", "20000 nodes")


def test_a_long_chain_of_calls_is_refused_not_a_crash():
    protocols = [
        f"protocol P{level}(role A, role B) {{ m from A to B; do P{level + 1}(A, B); }}" for level in range(500)
    ]
    assert refused(" ".join([*protocols, "protocol P500(role A, role B) { }"])).rule == "size"


def test_a_long_protocol_is_no_problem():
    text = "protocol P(role A, role B) { " + "m from A to B; " * 20_000 + "}"
    protocol = global_type(parse_protocols(text))
    assert sum(isinstance(node, Communication) for node in protocol.nodes) == 20_000
