"""Rules that every claim of the catalog keeps."""

from __future__ import annotations

from wavetank import catalog
from wavetank.catalog import Claim
from wavetank.study import build_study


def test_a_claim_names_a_study_a_metric_and_a_rival_that_exist(claim: Claim) -> None:
    found = catalog.built_in()
    kind = found.studies[claim.study].load()
    metrics = {metric.name: metric for metric in kind.metrics}
    assert claim.metric in metrics
    assert claim.study in found.systems[claim.system].studies
    if claim.versus is not None:
        assert claim.versus != claim.system
        assert claim.study in found.systems[claim.versus].studies


def test_a_claim_favours_the_side_that_its_metric_favours(claim: Claim) -> None:
    kind = catalog.built_in().studies[claim.study].load()
    (metric,) = (metric for metric in kind.metrics if metric.name == claim.metric)
    assert claim.better in ("lower", "higher")
    assert metric.better in ("", claim.better)


def test_a_claim_is_meant_under_settings_that_the_study_has(claim: Claim) -> None:
    kind = catalog.built_in().studies[claim.study].load()
    study = build_study(kind, claim.where)
    for name, value in claim.where.items():
        kept = getattr(study, name)
        assert (list(kept) if isinstance(kept, tuple) else kept) == value


def test_a_claim_can_be_decided(claim: Claim) -> None:
    bars = [bar for bar in (claim.paper, claim.at_least, claim.at_most) if bar is not None]
    assert claim.versus is not None or bars
    if claim.at_least is not None and claim.at_most is not None:
        assert claim.at_least <= claim.at_most
    assert claim.says
