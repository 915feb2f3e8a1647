"""Study consistency-models."""

from __future__ import annotations

import itertools
import math

import pytest

from wavetank.check.consistency.engine import Judgement
from wavetank.errors import BadValueError
from wavetank.protocols.histories import study_models
from wavetank.protocols.histories.stores import CausalStore, LastWriterWinsStore, PrimaryStore
from wavetank.protocols.histories.study_models import ConsistencyModels


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


def test_a_history_that_is_not_judged_in_time_says_nothing(monkeypatch):
    """A slow machine takes figures away and never turns one into another."""
    in_time = dict.fromkeys(ConsistencyModels().models, Judgement(outcome="holds"))
    late = in_time | {"causal": Judgement(outcome="undecided")}
    answers = itertools.chain([in_time, in_time, late], itertools.repeat(in_time))
    monkeypatch.setattr(study_models, "judge_all", lambda *_, **__: next(answers))
    rows = ConsistencyModels(histories=4).measure(PrimaryStore(), 1).rows
    shares = {name: value for name, value, at in rows if name.startswith("allowed_")}
    assert math.isnan(shares.pop("allowed_causal"))
    assert set(shares.values()) == {1.0}
