"""What the papers are known by: every headline is entered, and decided by claims or left open for a reason."""

from __future__ import annotations

from wavetank.ledger import catalog
from wavetank.ledger.catalog import STATUSES, Claim, PaperEntry


def deciding(paper: PaperEntry) -> list[Claim]:
    """Return the claims of a paper's systems that name a headline."""
    systems = [entry for entry in catalog.built_in() if entry.paper == paper.name]
    return [claim for entry in systems for claim in entry.claims if claim.headline]


def test_a_paper_has_at_least_two_headlines_with_names_of_their_own(paper: PaperEntry) -> None:
    names = [headline.name for headline in paper.headlines]
    assert len(names) >= 2
    assert len(set(names)) == len(names)
    assert all(headline.says for headline in paper.headlines)


def test_a_headline_has_either_a_claim_or_a_status_with_a_reason(paper: PaperEntry) -> None:
    decided = {claim.headline for claim in deciding(paper)}
    for headline in paper.headlines:
        assert (headline.name in decided) != bool(headline.status), headline.name
        assert bool(headline.status) == bool(headline.why), headline.name
        assert not headline.status or headline.status in STATUSES


def test_a_claims_headline_is_one_of_its_systems_paper(claim: Claim) -> None:
    if claim.headline:
        found = catalog.built_in()
        paper = found.papers[found.systems[claim.system].paper]
        assert claim.headline in {headline.name for headline in paper.headlines}


def test_a_goal_decides_no_headline(claim: Claim) -> None:
    assert claim.basis != "goal" or not claim.headline


def test_every_claim_of_a_papers_system_but_a_goal_decides_a_headline(paper: PaperEntry) -> None:
    systems = [entry for entry in catalog.built_in() if entry.paper == paper.name]
    for entry in systems:
        for claim in entry.claims:
            assert claim.headline or claim.basis == "goal", claim.says
