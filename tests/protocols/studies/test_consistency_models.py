"""Study consistency-models."""

from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.consistency.stores import CausalStore, LastWriterWinsStore, PrimaryStore
from wavetank.protocols.studies.consistency_models import ConsistencyModels


def figures(store, **settings):
    rows = ConsistencyModels(histories=6, **settings).measure(store, 1).rows
    return {metric: value for metric, value, at in rows if not at}, {
        at["model"]: value for metric, value, at in rows if at
    }


def test_stores_land_where_they_belong():
    primary, by_model = figures(PrimaryStore())
    assert primary["allowed_linearizable"] == 1.0
    assert set(by_model.values()) == {1.0}
    assert primary["availability"] < 1.0
    assert primary["staleness_s"] == 0.0
    causal, _ = figures(CausalStore())
    assert (causal["allowed_causal_convergence"], causal["allowed_linearizable"]) == (1.0, 0.0)
    assert causal["availability"] == 1.0
    assert causal["staleness_s"] > 0.0


def test_skewed_clocks_are_eventual_and_not_causal():
    found, _ = figures(LastWriterWinsStore())
    assert found["allowed_eventual"] == 1.0
    assert found["allowed_causal"] < 1.0
    assert found["all_three"] == 0


def test_equal_seeds_give_equal_figures():
    assert figures(CausalStore()) == figures(CausalStore())


def test_the_table_needs_its_models():
    with pytest.raises(BadValueError, match="needs these models"):
        ConsistencyModels(models=("causal",)).check()
    ConsistencyModels().check()
