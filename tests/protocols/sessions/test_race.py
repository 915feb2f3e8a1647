from wavetank.protocols.sessions.mixed_choice import MixedChoice
from wavetank.protocols.sessions.race import run_race
from wavetank.protocols.sessions.referee_choice import RefereeChoice
from wavetank.protocols.sessions.untagged_timeouts import UntaggedTimeouts


def test_an_uncontested_race_is_one_message_and_one_delay():
    end = run_race(MixedChoice().race(), wishes=(0.0, 5.0), delays=(1.0,))
    assert end == (1, 1.0, True, 0, 0, False)


def test_a_crossing_is_two_messages_and_one_delay():
    end = run_race(MixedChoice().race(), wishes=(0.0, 0.5), delays=(1.0, 1.0))
    assert end == (2, 1.0, True, 0, 1, True)


def test_the_referee_takes_four_messages_and_two_delays():
    end = run_race(RefereeChoice().race(), wishes=(0.0, 0.5), delays=(1.0,) * 4)
    assert (end.messages, end.latency, end.agreed, end.leftovers) == (4, 2.0, True, 0)


def test_the_referee_lets_the_one_win_whose_wish_came_first():
    plan = RefereeChoice().race()
    for wishes, winner in (((0.0, 0.5), "data"), ((0.5, 0.0), "stop")):
        sides = dict(plan.branches)
        assert run_race(plan, wishes, (1.0,) * 4).agreed
        assert plan.verdict[winner][0][1] in {label for _, _, label in sides}


def test_without_tags_a_crossing_ends_on_two_branches_with_two_messages_left():
    end = run_race(UntaggedTimeouts().race(), wishes=(0.0, 0.5), delays=(1.0, 1.0))
    assert end == (2, 0.0, False, 2, 0, True)


def test_messages_keep_their_order_between_the_same_two_roles():
    # The referee's wishes would overtake each other only between different pairs.
    end = run_race(RefereeChoice().race(), wishes=(0.0, 0.0), delays=(3.0, 1.0, 0.1, 0.1))
    assert end.agreed
