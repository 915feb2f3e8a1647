"""Views and moves."""

import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.serving.sharing.interface import Move, radio_shares


def test_a_move_changes_one_place_and_memory_follows(view):
    before = view()
    after = before.after(Move(service="s0", to="n1"))
    assert before.placement == (0, 1, 0) and after.placement == (0, 1, 1)
    assert before.free_gb(0) == 14 and after.free_gb(0) == 19 and after.free_gb(1) == 14


@pytest.mark.parametrize("move", [Move(service="s0", to="n0"), Move(service="s1", to="n1")])
def test_moves_that_cannot_be_made_are_refused(view, move):
    from dataclasses import replace

    two = view(ai=((0, 1.0, 0.1, 1.0), (0, 1.0, 0.1, 1.0)))
    with pytest.raises(BadValueError):
        replace(two, moving=(False, False, False, True)).after(move)


def test_no_memory_and_unknown_names_are_refused(view):
    with pytest.raises(BadValueError, match="memory"):
        view(memory_gb=5.5).after(Move(service="s0", to="n1"))
    with pytest.raises(UnknownNameError, match="s0"):
        view().after(Move(service="S0", to="n1"))
    with pytest.raises(UnknownNameError, match="n1"):
        view().after(Move(service="s0", to="n11"))


def test_what_radio_functions_take(view):
    assert radio_shares(view(radio=((0, 0.2), (0, 0.3), (1, 0.1)))).tolist() == [[0.5, 0.5], [0.1, 0.1]]
