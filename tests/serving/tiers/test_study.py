"""The study: its figures, who is tuned on what, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.platforms import device, model
from wavetank.serving.tiers.interface import Group, Rules
from wavetank.serving.tiers.nitsum import Nitsum
from wavetank.serving.tiers.rivals import BestStatic, Clairvoyant, FixedPlan, RolesApart, TiersApart, UniformDeadlines
from wavetank.serving.tiers.study import NAMES, TieredSlo
from wavetank.study.records import Record

SMALL = TieredSlo(gpus=2, degrees=(1, 2), duration_s=30.0, pauses_s=(0.0, 30.0))


def figures_of(study, system, seed=0):
    return {metric: value for metric, value, at in study.measure(system, seed).rows if not at}


def figures(system, seed=0):
    return figures_of(SMALL, system, seed)


def test_figures_are_there_for_every_tier_and_pause_and_equal_seeds_give_equal_ones():
    rows = [row for row in SMALL.measure(Nitsum(), 0).rows if row[0] != "decision_s"]
    assert rows == [row for row in SMALL.measure(Nitsum(), 0).rows if row[0] != "decision_s"]
    assert {at["tier"] for metric, _, at in rows if metric == "tier_share"} == set(NAMES)
    assert [at["pause_s"] for metric, _, at in rows if metric == "goodput_by_pause_per_s"] == [0.0, 30.0]
    values = {metric: value for metric, value, at in rows if not at}
    assert values["misplaced"] == 0 < values["goodput_per_s"]
    assert values["worst_tier_share"] <= values["within_share"] <= 1


def test_no_system_has_more_goodput_than_what_is_offered_or_than_hindsight():
    requests = SMALL.requests(0)
    offered = (requests.arrival_s >= 10).sum() / 20
    knows = figures(Clairvoyant())["goodput_per_s"]
    for system in (Nitsum(), Nitsum(planner="exact"), BestStatic(), UniformDeadlines()):
        found = figures(system)
        assert 0 < found["goodput_per_s"] <= min(offered, knows)
        assert found["goodput_per_s"] / offered == pytest.approx(found["within_share"])


def test_hindsight_has_at_least_what_the_plan_chosen_on_other_requests_has(monkeypatch):
    useless = FixedPlan(plan=(Group(2, 1),), rules=Rules(spills=False))
    monkeypatch.setattr(Clairvoyant, "hindsight", lambda *_: [useless])
    stays = figures(BestStatic(), 1)["goodput_per_s"]
    assert 0 < stays == figures(Clairvoyant(), 1)["goodput_per_s"]


@pytest.mark.parametrize(
    ("system", "given"), [(TiersApart(), {"gpus": 2, "degrees": (1, 2)}), (RolesApart(), {"gpus": 1, "degrees": (1,)})]
)
def test_gpus_that_cannot_be_divided_as_a_system_does_are_refused_by_name(system, given):
    with pytest.raises(BadValueError, match=type(system).__name__):
        replace(SMALL, **given).measure(system, 0)


def test_one_gpu_serves_and_so_does_one_group_of_the_highest_degree():
    for given in ({"gpus": 1, "degrees": (1,)}, {"gpus": 8, "degrees": (8,), "load": 0.4}):
        found = figures_of(replace(SMALL, pauses_s=(), **given), Nitsum())
        assert found["misplaced"] == 0 < found["goodput_per_s"]


def test_goodput_is_within_what_the_arithmetic_of_prompts_allows():
    crowded = replace(SMALL, load=8.0)
    requests, peak = crowded.requests(0), device("H100-SXM").bf16_flops_per_s
    # GPU seconds of each prompt at the full rate, cheapest first, into all there are until the run ends.
    least_s = np.sort(2.0 * model("Qwen3-14B").dense_parameters * requests.prompt_tokens / peak)
    room = np.searchsorted(np.cumsum(least_s), 2 * (30.0 + 60.0))
    assert room < requests.tier.size
    assert figures_of(crowded, Clairvoyant(seconds=(10,)))["goodput_per_s"] * 20 <= room


def test_shares_of_the_clairvoyant_plans_gain_are_by_seed_and_only_where_there_is_one():
    values = {"best-static": (50.0, 50.0), "clairvoyant": (60.0, 50.5), "nitsum": (58.0, 50.2)}
    records = [
        Record("tiered-slo", system, seed, "goodput_per_s", value, "", "simulated", {})
        for system, both in values.items() for seed, value in enumerate(both)
    ]  # fmt: skip
    found = {(each.system, each.seed): each.value for each in SMALL.conclude(records)}
    assert found == {("best-static", 0): 0.0, ("clairvoyant", 0): 1.0, ("nitsum", 0): pytest.approx(0.8)}
    assert SMALL.conclude(records[:2]) == []


def test_plans_that_stay_are_tuned_on_other_requests_than_they_serve(monkeypatch):
    past, served = SMALL.requests(0, past=True), SMALL.requests(0)
    assert past.arrival_s.size != served.arrival_s.size or (past.arrival_s != served.arrival_s).any()
    seen = []
    serve = TieredSlo._served
    monkeypatch.setattr(TieredSlo, "_served", lambda self, *given: seen.append(given[0]) or serve(self, *given))
    SMALL.tuned(UniformDeadlines(), 0)
    assert len(seen) == 2 and all((each.arrival_s == past.arrival_s).all() for each in seen)
    assert SMALL.tuned(Nitsum(), 0) == Nitsum()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"ttft_s": (1.0, 2.0)}, "one objective for each tier"),
        ({"tpot_s": (0.001, 0.1, 0.3)}, "No group keeps"),
        ({"model": "Llama-3.1-70B"}, "full copy"),
        ({"gpus": 6}, "power of two"),
        ({"degrees": (1, 16)}, "KV heads"),
    ],
)
def test_what_cannot_be_served_is_refused_before_any_trial(wrong, says):
    with pytest.raises(BadValueError, match=says):
        TieredSlo(**wrong).check()
    TieredSlo().check()


def test_what_is_assumed_is_said():
    assert "29.5 GB" in " ".join(SMALL.notes())
    assert "100 ms" in SMALL.opening()[1] and "15 ms" in SMALL.opening()[0]
