"""Fork-sequential consistency and fork-linearizability."""

from __future__ import annotations

from wavetank.check.consistency.forks import fits_a_tree
from wavetank.check.consistency.objects import OBJECTS
from wavetank.sim.history import Operation


def op(process, action, invoked, returned, value=None, result=None, key="x"):
    return Operation(
        process=process, action=action, key=key, value=value, result=result, invoked=invoked, returned=returned
    )


def judged(operations, *, real_time=True, in_budget=lambda: True):
    return fits_a_tree(OBJECTS["register"], operations, 0, real_time=real_time, in_budget=in_budget)[0]


# The server hides a's second write from b for good.
HIDDEN = [
    op("a", "write", 0, 1, 1), op("b", "read", 2, 3, result=1), op("a", "write", 4, 5, 2),
    op("b", "read", 6, 7, result=1),
    op("a", "read", 8, 9, result=2), op("b", "write", 10, 11, 3), op("a", "read", 12, 13, result=2),
]  # fmt: skip


def test_processes_that_part_for_good_are_explained_by_a_tree():
    outcome, tree = fits_a_tree(OBJECTS["register"], HIDDEN, 0, real_time=True, in_budget=lambda: True)
    assert outcome == "holds"
    trunk, branches = tree
    assert trunk[:2] == (0, 1)
    assert len(branches) == 2


def test_processes_that_parted_must_not_meet_again():
    joined = [*HIDDEN, op("a", "read", 14, 15, result=3)]
    assert judged(joined) == "violated"


def test_real_time_counts_only_where_it_is_asked_for():
    stale = [op("a", "write", 0, 1, 1), op("b", "read", 2, 3, result=0), op("b", "read", 4, 5, result=1)]
    assert judged(stale, real_time=False) == "holds"
    assert judged(stale, real_time=True) == "violated"


def test_an_open_operation_comes_after_what_its_process_did():
    # b saw a's open write of y, so it must see what a had done before.
    operations = [
        op("a", "write", 0, 1, 1, key="x"), op("a", "write", 2, None, 2, key="y"),
        op("b", "read", 3, 4, result=2, key="y"), op("b", "read", 5, 6, result=0, key="x"),
    ]  # fmt: skip
    assert judged(operations, real_time=False) == "violated"
    assert judged([*operations[:3], op("b", "read", 5, 6, result=1, key="x")], real_time=False) == "holds"


def test_a_spent_budget_is_undecided():
    assert judged(HIDDEN, in_budget=lambda: False) == "undecided"
