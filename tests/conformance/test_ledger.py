"""Rules that every claim of the catalog keeps."""

from __future__ import annotations

import functools
import json
import math

from wavetank.ledger import catalog, claims, verdicts
from wavetank.ledger.catalog import Claim
from wavetank.study.effects import NOTHING, Effect
from wavetank.study.study import build_study


def test_a_claim_names_a_study_a_metric_and_a_rival_that_exist(claim: Claim) -> None:
    found = catalog.built_in()
    kind = found.studies[claim.study].load()
    metrics = {metric.name: metric for metric in kind.metrics}
    assert claim.metric in metrics
    assert claim.study in found.systems[claim.system].studies
    if claim.versus not in (None, "best"):
        assert claim.versus != claim.system
        assert claim.study in found.systems[claim.versus].studies
    assert all(claim.study in found.systems[each].studies for each in claim.beside)
    assert claim.system not in claim.beside


def test_a_goal_or_a_comparison_favours_the_side_that_its_metric_favours(claim: Claim) -> None:
    kind = catalog.built_in().studies[claim.study].load()
    (metric,) = (metric for metric in kind.metrics if metric.name == claim.metric)
    assert claim.better in ("lower", "higher")
    # A paper may say what harms: throughput falls with crashes.  Its claim then names the value of no effect.
    if claim.basis == "goal" or claim.versus is not None:
        assert metric.better in ("", claim.better)


def test_a_claim_is_meant_under_settings_that_the_study_has(claim: Claim) -> None:
    kind = catalog.built_in().studies[claim.study].load()
    study = build_study(kind, claim.where)
    for name, value in claim.where.items():
        kept = getattr(study, name)
        assert (list(kept) if isinstance(kept, tuple) else kept) == value


def test_a_claim_can_be_decided(claim: Claim) -> None:
    bars = [bar for bar in (claim.paper, claim.at_least, claim.at_most) if bar is not None]
    assert claim.basis == "direction" or bars
    if claim.at_least is not None and claim.at_most is not None:
        assert claim.at_least <= claim.at_most
    assert claim.says


def figures_near(claim: Claim) -> list[Effect]:
    """Return narrow and wide intervals on all sides of what a claim is judged by, as far as its metric reaches."""
    marks = {claim.neutral, claim.paper, claim.at_least, claim.at_most} - {None}
    ends = sorted({0.0, *(mark * factor for mark in marks if mark for factor in STEPS)})  # type: ignore[operator]
    ends = ends if len(ends) > 1 else [0.0, 0.5, 1.0, 2.0]
    if claim.metric in BELOW_ZERO:
        ends = sorted({*ends, *(-end for end in ends)})
    found = [Effect(low, low, high, low, high, 6) for low in ends for high in ends if low <= high]
    return [NOTHING, Effect(1.0, -math.inf, math.inf, 1.0, 1.0, 1), *found]


BELOW_ZERO = {"parasite_excess", "gain_low"}
STEPS = (1e-4, 1e-2, 0.1, 0.5, 0.9, 0.999, 1.0, 1.001, 1.01, 1.1, 1.5, 2.5, 10.0, 1e3, 1e6)


COUNTED_FROM_ZERO = {
    "silent_losses_per_10k_writes", "divergence_bytes", "torn_groups_per_look", "lost_updates", "solved_share",
    "gpu_time_saved",
}  # fmt: skip


def side(claim: Claim) -> str:
    (metric,) = (each for each in catalog.study(claim.study).load().metrics if each.name == claim.metric)
    return claim.better if metric.better else ""


def verdicts_of(claim: Claim) -> set[str]:
    if claim.basis == "goal":
        return {
            verdicts.of_goal(each, claim.at_least, claim.at_most, better=side(claim)) for each in figures_near(claim)
        }
    return {
        verdicts.of_figure(each, claim.paper, better=claim.better, neutral=claim.neutral)
        for each in figures_near(claim)
    }


def test_a_claim_can_get_every_verdict_of_its_basis(claim: Claim) -> None:
    always = {verdicts.REACHED, verdicts.UNDECIDED, verdicts.NOT_RUN}
    wanted = {
        "figure": {verdicts.CONSISTENT, verdicts.SHORT, verdicts.CONTRADICTED, verdicts.ANOTHER},
        "direction": {verdicts.CONTRADICTED},
        "goal": {verdicts.SHORT},
    }[claim.basis]
    if claim.at_least is not None and claim.at_most is not None:
        wanted = {verdicts.EXCEEDS, verdicts.SHORT} if side(claim) else {verdicts.SHORT}
        if not side(claim):
            assert verdicts.EXCEEDS not in verdicts_of(claim)
    if claim.basis == "figure" and claim.better == "lower" and not verdicts.far(claim.paper or 0.0, claim.neutral) > 0:
        # Nothing lies beyond a figure of zero.
        wanted -= {verdicts.ANOTHER}
    if claim.basis == "direction" and claim.neutral == 0 and claim.better == "higher":
        # That something occurs at all: nothing occurs less often than never.
        assert claim.metric in COUNTED_FROM_ZERO
        wanted -= {verdicts.CONTRADICTED}
    assert (always | wanted) - verdicts_of(claim) == set()


def test_a_claim_is_of_one_basis_and_says_how_close_its_quantity_is(claim: Claim) -> None:
    assert claim.level in catalog.LEVELS
    assert (claim.level == "goal") == (claim.basis == "goal")
    if claim.basis == "goal":
        assert claim.paper is None
    if claim.paper is not None:
        assert (claim.paper > claim.neutral) == (claim.better == "higher")
        assert claim.level in ("same", "elsewhere")


@functools.cache
def kept() -> tuple[claims.RunFigures, ...]:
    return tuple(claims.kept_runs())


def test_a_claim_names_the_place_of_records_that_runs_have(claim: Claim) -> None:
    at = claims.place(claim.at)
    places = {
        key[2]
        for run in kept()
        if run.concerns(claim)
        for key in run.figures
        if key[:2] == (claim.system, claim.metric)
    }
    # Where no run was at the claim's place, records along the same coordinates have to be there.
    names = {frozenset(json.loads(place)) for place in places}
    assert not places or at in places or frozenset(claim.at) in names
