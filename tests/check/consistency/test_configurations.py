"""The table of models and its partial order."""

from __future__ import annotations

import itertools

import pytest

from wavetank.check.consistency.configurations import _ORDERS_LESS, MODELS, Configuration, implied, model, weaker
from wavetank.errors import UnknownNameError

CHAIN = ("linearizable", "sequential", "causal", "pram", "read-your-writes")


def test_there_are_at_least_thirty_named_models():
    assert len(MODELS) >= 30
    assert all(each.says for each in MODELS.values())


def test_no_two_models_are_the_same_point():
    points = [
        (m.closure, m.ordering, m.respects, m.timeliness, m.value, m.per_key)
        for m in MODELS.values()
        if m.name not in ("read-uncommitted", "strict-serializable", "strong-session-serializable")
    ]
    assert len(set(points)) == len(points)


def test_the_order_is_reflexive_and_transitive():
    names = list(MODELS)
    follows = implied()
    for name in names:
        assert weaker(MODELS[name], MODELS[name])
        for weak in follows[name]:
            assert set(follows[weak]) <= {*follows[name], name}, (name, weak)


def test_linearizable_implies_sequential_implies_causal_implies_pram_implies_the_session_guarantees():
    follows = implied()
    for strong, weak in itertools.pairwise(CHAIN):
        assert weak in follows[strong]
        assert strong not in follows[weak]
    assert {"read-your-writes", "monotonic-reads", "monotonic-writes"} <= set(follows["pram"])
    assert "writes-follow-reads" in follows["causal"]


@pytest.mark.parametrize(
    ("one", "other"),
    [("causal", "causal-convergence"), ("pram", "cache"), ("serializable", "linearizable"), ("eventual", "causal"),
     ("snapshot-isolation", "sequential"), ("fork-linearizable", "sequential"), ("eventual", "sequential")],
)  # fmt: skip
def test_incomparable_models_stay_so(one, other):
    assert one not in implied()[other] or other not in implied()[one]


def test_serializability_and_isolation_levels_are_ordered_as_in_the_textbooks():
    follows = implied()
    chain = ("strict-serializable", "strong-session-serializable", "serializable", "snapshot-isolation",
             "prefix-consistent", "read-atomic", "monotonic-atomic-view", "read-committed",
             "read-uncommitted")  # fmt: skip
    for strong, weak in itertools.pairwise(chain):
        assert weak in follows[strong], (strong, weak)
    assert "parallel-snapshot-isolation" in follows["strong-session-snapshot-isolation"]
    assert "transactional-causal" in follows["strong-session-snapshot-isolation"]


def test_update_serializability_lies_between_serializable_and_read_atomic():
    follows = implied()
    assert {name for name in follows if "update-serializable" in follows[name]} >= {
        "serializable", "strong-session-serializable", "strict-serializable",
    }  # fmt: skip
    assert {"read-atomic", "monotonic-atomic-view", "read-committed"} <= set(follows["update-serializable"])
    for other in ("prefix-consistent", "snapshot-isolation", "parallel-snapshot-isolation", "transactional-causal"):
        assert other not in follows["update-serializable"]
        assert "update-serializable" not in follows[other]


def readable(store: Configuration, reader: Configuration) -> bool:
    """Return whether data written under ``store`` can be read honestly under ``reader``.

    The reader must not promise a closure that the store did not keep, nor an order that the store did not fix.
    Timeliness and value are promises of the moment and do not count.
    """
    same_order = reader.ordering == store.ordering or reader.ordering in _ORDERS_LESS[store.ordering]
    return same_order and reader.closure <= store.supplied and reader.respected <= store.respected


def ratchet(*stores: str) -> set[str]:
    """Return the models under which data can still be read that went through several stores, one after another."""
    return {name for name, each in MODELS.items() if all(readable(model(store), each) for store in stores)}


def test_what_a_sequential_store_wrote_can_be_read_causally_and_not_the_other_way_round():
    assert readable(model("sequential"), model("causal"))
    assert not readable(model("causal"), model("sequential"))
    # The order respects causes, so that it supplies closure that a plain total order does not.
    assert readable(model("sequential"), model("weak-causal"))
    assert not readable(model("strong-eventual"), model("weak-causal"))


def test_readability_does_not_ask_for_timeliness():
    assert readable(model("weak-causal"), model("timed-causal"))
    assert not weaker(model("timed-causal"), model("weak-causal"))


def test_a_level_lost_in_a_migration_is_not_regained():
    straight = ratchet("linearizable")
    detour = ratchet("linearizable", "pram", "linearizable")
    assert detour < straight
    assert "causal" in straight
    assert "causal" not in detour
    assert "pram" in detour
    assert detour == ratchet("pram", "linearizable")


def test_an_unknown_model_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        model("linearisable")
    assert caught.value.nearest == "linearizable"
