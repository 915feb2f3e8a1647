import pytest

from wavetank.errors import BadFileError, DataUnavailableError
from wavetank.protocols.sessions.examples import example
from wavetank.protocols.sessions.global_types import GlobalType, global_type, globals_of
from wavetank.protocols.sessions.parser import parse_protocols, read_protocols
from wavetank.protocols.sessions.projection import payload_text, project_all
from wavetank.protocols.sessions.refinements import check_refinements
from wavetank.protocols.sessions.syntax import IllFormedError
from wavetank.workloads import datasets


def local_types(body, *, unfolds=False, reach=True, pragmas=""):
    text = f"{pragmas}protocol P(role A, role B, role C) {{ {body} }}"
    protocol = global_type(parse_protocols(text, path="p.nuscr"), unfolds=unfolds)
    machines = project_all(protocol, reach=reach)
    return {role: machine.local_type() for role, machine in machines.items()}


def refused(body, **how):
    with pytest.raises(IllFormedError) as caught:
        local_types(body, **how)
    assert caught.value.rule == "projection"
    return caught.value.problem


def test_a_bystander_merges_the_branches_it_hears_of_under_different_labels():
    found = local_types("choice at A { a from A to B; x from B to C; } or { b from A to B; y from B to C; }")
    assert found["A"] == "{ B!a().end + B!b().end }"
    assert found["C"] == "{ B?x().end & B?y().end }"


def test_a_bystander_that_sends_the_same_in_every_branch_need_not_know():
    found = local_types("choice at A { a from A to B; x from C to B; } or { b from A to B; x from C to B; }")
    assert found["C"] == "B!x().end"


def test_a_role_that_a_loop_leaves_out_is_done():
    found = local_types("m from A to B; rec X { choice at A { a from A to C; continue X; } or { b from A to C; } }")
    assert found["B"] == "A?m().end"


def test_a_role_may_wait_while_others_loop():
    found = local_types("rec X { choice at A { a from A to B; continue X; } or { b from A to B; x from A to C; } }")
    assert found["C"] == "A?x().end"


def test_equal_states_become_one():
    found = local_types("choice at A { a from A to B; x from B to A; } or { b from A to B; x from B to A; }")
    assert found["A"] == "{ B!a().X1 + B!b().X1 }\nX1 = B?x().end"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("choice at A { a from A to B; } or { b from A to B; x from B to C; }", "in one branch it is done"),
        ("choice at A { a from A to B; x from C to B; } or { b from A to B; y from C to B; }", "must send the same"),
        (
            "choice at A { a from A to B; x from C to B; } or { b from A to B; y from B to C; }",
            "in one branch it sends",
        ),
        (
            "choice at A { a from A to B; x from A to C; } or { b from A to B; y from B to C; }",
            "waits for 'x' from 'A'",
        ),
        (
            "choice at A { a from A to B; x(int) from B to C; } or { b from A to B; x(bool) from B to C; }",
            "carries (int)",
        ),
        (
            "rec X { choice at A { a from A to B; continue X; } or { b from A to B; x from C to A; } }",
            "whether the others have left their loop",
        ),
        (
            "choice at A { a from A to B; } or { b from A to B; "
            "mix { x from B to C; } or interrupt by C { y from C to B; } }",
            "in one branch",
        ),
    ],
)
def test_branches_that_look_alike_are_refused(body, why):
    assert why in refused(body)


LOOP_ON_ONE_SIDE = (
    "choice at A { a from A to B; x from A to C; } or { rec X { b from A to B; y from A to C; continue X; } }"
)


def test_a_loop_is_merged_with_no_loop_only_when_asked_to():
    assert "in a loop in one branch only" in refused(LOOP_ON_ONE_SIDE)
    found = local_types(LOOP_ON_ONE_SIDE, unfolds=True)
    assert found["C"].startswith("{ A?x().end & A?y()")


def test_names_of_values_matter_only_with_refinements():
    body = "choice at A { a from A to B; x(n: int) from B to C; } or { b from A to B; x(m: int) from B to C; }"
    assert local_types(body)["C"] == "B?x(n: int).end"
    assert "carries" in refused(body, pragmas="(*# RefinementTypes #*) ")


def test_values_sent_elsewhere_keep_branches_apart_with_refinements():
    body = "choice at A { a(n: int) from A to B; x from A to C; } or { b(m: int) from A to B; x from A to C; }"
    assert "different values were sent elsewhere" in refused(body, pragmas="(*# RefinementTypes #*) ")
    local_types(body)


def test_the_two_sides_of_a_mix_may_come_from_different_roles():
    found = local_types(
        "mix { a from A to B; x from A to C; z from C to A; } or interrupt by B { b from B to A; y from B to C; }"
    )
    assert found["C"].splitlines()[0] == "{ A?x().A!z().end & B?y().end }"


def test_a_bystander_of_a_mix_waits_for_the_side_its_next_turn_takes():
    machine = project_all(global_type(parse_protocols(example("third_party"))))["s"]
    through = {each.label: each.through for each in machine.states[0].transitions}
    assert through == {"prepare": ((1, "left"),), "abandon": ((1, "right"),)}


def test_the_arbiter_is_never_interrupted():
    machines = project_all(global_type(parse_protocols(example("race"))))
    assert set(machines["p"].aborts) == {1}
    assert machines["q"].aborts == {}


def test_without_rule_a_an_end_merges_with_a_message_to_come():
    body = "mix { a from A to B; } or interrupt by B { b from B to A; y from B to C; }"
    assert "in one branch it is done" in refused(body)
    assert local_types(body, reach=False)["C"].splitlines()[0] == "{ B?y().end & end }"


def test_payloads_are_written_as_in_the_file():
    text = (
        'protocol P(role A, role B) { m(int, y: int{(x + 1) > len(y) && not true}, s: string{s = "a"}) from A to B; }'
    )
    (message,) = parse_protocols(text).protocols[0].body
    assert [payload_text(each) for each in message.payload] == [
        "int",
        "y: int{((x + 1) > len(y)) && not true}",
        's: string{s = "a"}',
    ]


# The files of nuScr, and what is known of them: folders named errors and these cases must be refused.

REJECTED = (
    "/errors/",
    "ambiguous-choice",
    "degenerate-choice",
    "reflexive-message",
    "unbound-",
    "unguarded-recursion",
    "unmergable-choice",
    "invalid-pragma",
    "broadcast.t",
    "invalid-refinement-type",
    "merge-silent",
    "progress.t/Stuck.",
    "progress-no-choice.t/Stuck.",
    "Relay2",
    "PasswordManager2",
    "type-error",
    "unknown-variable",
    "Unsatisfiable.nuscr",
    # A choice of which two roles never learn.
    "Mcrsrv",
)
MUST_PROJECT = ("/valid/", "Smtp", "Http", "TwoBuyer", "Adder", "Travel", "Calculator")


def nuscr_files():
    try:
        folder = datasets.find("session-protocols")
    except DataUnavailableError:
        return []
    return sorted(folder.rglob("*.nuscr"))


FILES = nuscr_files()


@pytest.mark.skipif(not FILES, reason="the data set session-protocols is not on this machine")
def test_the_data_set_is_whole():
    assert len(FILES) == 115


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name + "/" + path.name)
def test_every_file_of_nuscr_gets_nuscrs_verdict(path):
    problems = []
    try:
        module = read_protocols(path)
        for found in globals_of(module).values():
            try:
                if not isinstance(found, GlobalType):
                    raise found
                project_all(found)
                check_refinements(found, module)
            except IllFormedError as error:
                problems.append(error)
    except BadFileError as error:
        problems.append(error)
    name = path.as_posix()
    rejected = any(part in name for part in REJECTED) and "Clear.nuscr" not in name
    assert bool(problems) == rejected
    assert not (rejected and any(part in name for part in MUST_PROJECT))
    for problem in problems:
        assert f"{path.name}, line " in str(problem.where)
