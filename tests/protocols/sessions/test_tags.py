from hypothesis import given
from hypothesis import strategies as st

from wavetank.protocols.sessions.tags import (
    NO_TAG,
    Mark,
    agree,
    begun,
    joined,
    passes,
    relation,
    sides_of,
    switched,
    turns_of,
    without,
)

histories = st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["left", "right"])), max_size=12)


def tag_of(history):
    tag = NO_TAG
    for mix, side in history:
        tag = begun(tag, mix, side)
    return tag


def naive(mine, theirs):
    known = {(mix, turn): right for mix, turn, right in sides_of(mine)}
    for mix, turn, right in sides_of(theirs):
        if known.get((mix, turn), right) != right:
            return ("stale" if known[mix, turn] else "overrides"), mix, turn
    return ("fits" if {each[:2] for each in sides_of(theirs)} <= set(known) else "ahead"), 0, 0


def test_turns_in_a_row_are_one_mark():
    assert tag_of([(1, "left")] * 1000) == (Mark(1, 1, 1000, False),)
    assert tag_of([(1, "left"), (1, "left"), (1, "right")]) == (Mark(1, 1, 2, False), Mark(1, 3, 3, True))


def test_right_overrides_left_and_left_never_overrides_right():
    left, right = tag_of([(1, "left")]), tag_of([(1, "right")])
    assert relation(left, right) == ("overrides", 1, 1)
    assert relation(right, left) == ("stale", 1, 1)
    assert not agree(left, right)


@given(histories, histories)
def test_the_first_difference_decides(one, other):
    assert tuple(relation(tag_of(one), tag_of(other))) == naive(tag_of(one), tag_of(other))


@given(histories, st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["left", "right"])), max_size=5))
def test_joining_a_later_tag_gives_all_it_says(history, more):
    earlier, later = tag_of(history), tag_of([*history, *more])
    assert joined(earlier, later) == later
    assert joined(later, earlier) == later
    assert relation(later, earlier).how == "fits"


@given(histories, st.data())
def test_switching_gives_up_the_turn_and_all_after_it(history, data):
    tag = tag_of(history)
    lefts = [(mix, turn) for mix, turn, right in sides_of(tag) if not right]
    if not lefts:
        return
    mix, turn = data.draw(st.sampled_from(lefts))
    after = switched(tag, mix, turn)
    assert list(sides_of(after))[-1] == (mix, turn, True)
    before = list(sides_of(tag))
    assert list(sides_of(after))[:-1] == before[: before.index((mix, turn, False))]
    assert relation(after, tag).how == "stale"


@given(histories, st.integers(1, 3))
def test_forgetting_a_turn_renames_the_later_ones(history, mix):
    tag = tag_of(history)
    if turns_of(tag, mix):
        after = without(tag, mix, 1)
        assert turns_of(after, mix) == turns_of(tag, mix) - 1
        assert [each for each in sides_of(after) if each[0] != mix] == [
            each for each in sides_of(tag) if each[0] != mix
        ]
        first = next(position for position, each in enumerate(history) if each[0] == mix)
        assert after == tag_of(history[:first] + history[first + 1 :])


def test_a_message_from_beyond_a_mix_is_not_the_one_waited_for():
    later = tag_of([(1, "left"), (1, "right")])
    assert not passes(NO_TAG, later, [(1, "right")])
    assert passes(NO_TAG, later, [(1, "left")])
    assert passes(tag_of([(1, "left")]), later, [(1, "right")])
    assert passes(NO_TAG, NO_TAG, [(1, "right")])
