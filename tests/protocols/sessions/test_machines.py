from wavetank.protocols.sessions.examples import example
from wavetank.protocols.sessions.machines import Machine, State, Transition
from wavetank.protocols.sessions.mixed_choice import MixedChoice


def step(label, target, *, sends=True, partner="q"):
    return Transition(sends=sends, partner=partner, label=label, payload=(), target=target)


END = State(transitions=(), ends=True)


def test_a_state_is_what_its_transitions_do():
    assert END.kind == "end"
    assert State(transitions=(step("a", 0),)).kind == "send"
    assert State(transitions=(step("a", 0, sends=False),)).kind == "receive"
    assert State(transitions=(step("a", 0), step("b", 0, sends=False))).kind == "mixed"


def test_a_machine_knows_whom_it_talks_to():
    machine = Machine(
        protocol="P", role="p", states=(State(transitions=(step("a", 1), step("b", 1, partner="c"))), END)
    )
    assert machine.partners() == ("c", "q")
    assert [(number, each.label) for number, each in machine.transitions()] == [(0, "a"), (0, "b")]


def test_local_types_name_the_states_that_loops_come_back_to():
    machine = Machine(protocol="P", role="p", states=(State(transitions=(step("more", 0), step("last", 1))), END))
    assert machine.local_type() == "X0 = { q!more().X0 + q!last().end }"


def test_a_state_that_two_branches_share_is_written_once():
    states = (
        State(transitions=(step("a", 1), step("b", 2))),
        State(transitions=(step("c", 2),)),
        State(transitions=(step("d", 3, sends=False),)),
        END,
    )
    text = Machine(protocol="P", role="p", states=states).local_type()
    assert text == "{ q!a().q!c().X2 + q!b().X2 }\nX2 = q?d().end"


def test_the_local_types_of_the_race_show_both_sides_and_the_interrupt():
    machines = MixedChoice().machines(example("race"))
    assert machines["p"].local_type() == "{ q!data(int).end > q?stop().end }\nX2 = q?stop().end\nrace interrupted: X2"
    assert machines["q"].local_type() == "{ p?data(int).end > p!stop().end }"
