"""Merging: associative on sets of issues, evidence of all, a tree of the right depth."""

import functools
import math

from hypothesis import given
from hypothesis import strategies as st

from wavetank.diagnosis.findings import Evidence
from wavetank.insight.io.labels import CODES
from wavetank.insight.io.merge import Issue, Summary, merge, tree

modules = st.lists(st.sampled_from(["POSIX", "MPI-IO", "STDIO"]), max_size=2, unique=True).map(tuple)
evidence = st.lists(st.sampled_from("abc"), max_size=2, unique=True).map(
    lambda names: tuple(Evidence(name=name, value=1) for name in names)
)
issues = st.builds(
    Issue, code=st.sampled_from(CODES[:5]), shown_by=modules, not_shown_by=modules, evidence=evidence,
    citations=st.lists(st.sampled_from("xyz"), max_size=2).map(tuple),
)  # fmt: skip
summaries = st.lists(issues, max_size=4, unique_by=lambda each: each.code).map(
    lambda found: tuple(sorted(found, key=lambda each: each.code))
)


def as_sets(summary: Summary) -> list[tuple[object, ...]]:
    return [
        (
            each.code,
            set(each.shown_by),
            set(each.not_shown_by),
            {fact.key for fact in each.evidence},
            set(each.citations),
        )
        for each in summary
    ]


@given(summaries, summaries, summaries)
def test_merging_is_associative_and_commutative_on_sets(first: Summary, second: Summary, third: Summary) -> None:
    assert as_sets(merge(merge(first, second), third)) == as_sets(merge(first, merge(second, third)))
    assert as_sets(merge(first, second)) == as_sets(merge(second, first))
    assert as_sets(merge(first, first)) == as_sets(merge(first, ()))


@given(st.lists(summaries, min_size=1, max_size=9))
def test_a_tree_and_a_flat_merge_find_the_same(parts: list[Summary]) -> None:
    assert as_sets(tree(parts, merge)) == as_sets(functools.reduce(merge, parts, ()))


@given(st.integers(1, 200))
def test_a_tree_has_as_many_levels_as_the_logarithm_rounded_up(count: int) -> None:
    assert tree([0] * count, lambda first, second: 1 + max(first, second)) == math.ceil(math.log2(count))


def test_what_shows_an_issue_leads_what_does_not() -> None:
    shows = Issue(code="SML-W", shown_by=("POSIX",), says="said", evidence=(Evidence(name="a", value=1),))
    (both,) = merge((Issue(code="SML-W", not_shown_by=("MPI-IO",)),), (shows,))
    assert both.says == "said" and both.shown_by == ("POSIX",) and both.not_shown_by == ("MPI-IO",)
    assert both.evidence[0].value == 1
