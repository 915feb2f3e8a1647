"""The study ordered-languages: verdicts, states and growth of every way of building protocols."""

import pytest

from wavetank.errors import BadValueError
from wavetank.ledger import catalog
from wavetank.protocols.populations.study_languages import OrderedLanguages
from wavetank.run.comparison import compare


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return compare(
        "ordered-languages", agents=(6, 12), random_languages=6, ranker_moves=2, seeds=1, out=folder, on="here"
    )


@pytest.fixture(scope="module")
def figures(result):
    return {(r.system, r.metric, *r.at.values()): r.value for r in result.records}


def test_no_protocol_gives_a_wrong_verdict(result, figures):
    assert result.failures == ()
    for system in catalog.built_in().plain_run(OrderedLanguages.name):
        if system != "sequential-dfa":
            assert figures[system, "wrong_verdicts"] == 0


def test_comparing_ranks_reaches_exactly_the_class(figures):
    assert figures["ordered-population", "agreement_with_DA"] == 1
    assert figures["ordered-population", "share_compiled"] == figures["ordered-population", "share_in_DA"]
    assert figures["successor-protocol", "share_compiled"] == 1
    assert figures["pairing-protocol", "share_compiled"] == 0


def test_every_way_has_its_languages(figures):
    languages = {system: figures[system, "languages"] for system in catalog.built_in().plain_run(OrderedLanguages.name)}
    assert languages == {
        "ordered-population": 5, "successor-protocol": 10, "pairing-protocol": 1, "counting-protocol": 4,
        "sequential-dfa": 11,
    }  # fmt: skip


def test_states_grow_with_the_length_of_rankers(figures):
    one, two = (figures["ordered-population", "states_of_rankers", moves] for moves in (1, 2))
    assert 2 < one < two
    assert ("counting-protocol", "states_of_rankers", 1) not in figures


def test_reading_in_order_takes_one_interaction_a_letter(figures):
    assert figures["sequential-dfa", "interactions_to_stability", "some a", 12] == 12
    assert figures["sequential-dfa", "growth", "some a"] == pytest.approx(1.0)


def test_equal_seeds_give_equal_records(result, tmp_path):
    again = compare(
        "ordered-languages", agents=(6, 12), random_languages=6, ranker_moves=2, seeds=1, out=tmp_path, on="here",
        systems=("ordered-population",),
    )  # fmt: skip
    kept = [(r.metric, r.at, r.value) for r in result.records if r.system == "ordered-population"]
    assert [(r.metric, r.at, r.value) for r in again.records] == kept


def test_one_length_gives_no_slope_and_is_refused():
    with pytest.raises(BadValueError, match="two lengths"):
        OrderedLanguages(agents=(8, 8)).check()
