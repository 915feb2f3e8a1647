"""The studies of fleets: what is billed, what is served, which files they read."""

import pytest
from tests.serving.fleet.conftest import template

from wavetank.errors import BadFileError
from wavetank.serving.fleet.coral import Coral, Unpruned
from wavetank.serving.fleet.interface import FleetPlan
from wavetank.serving.fleet.rivals import DevicesFirst, FractionalBound
from wavetank.serving.fleet.study import GpuMix, GpuScarcity, templates

DEMAND = "model,requests_per_s,prompt_tokens,output_tokens,slo_ttft_s,slo_tpot_s\nLlama-3.1-8B,{rate},300,20,1,0.05\n"
PRICES = "instance,device,gpus,usd_per_hour\nh,H100-SXM,1,4\n"


@pytest.fixture
def small(tmp_path):
    (tmp_path / "demand.csv").write_text(DEMAND.format(rate=120))
    (tmp_path / "prices.csv").write_text(PRICES)
    return GpuMix(
        demand=str(tmp_path / "demand.csv"), prices=str(tmp_path / "prices.csv"), periods=3, split=False, factors=(2.0,)
    )


def figures(found):
    return {metric: value for metric, value, at in found.rows if not at}


def test_coral_serves_everything_within_the_objectives_at_the_price_of_its_instances(small):
    found = small.measure(Coral(), 0)
    values = figures(found)
    assert values["unserved_share"] == values["missed_share"] == 0.0
    assert values["within_share"] > 0.98
    bill = [value for metric, value, at in found.rows if metric == "usd_per_hour_then"]
    # Instances of 4 USD/h, and starts on top.
    assert all(value % 4.0 == 0.0 for value in bill)
    assert sum(bill) / 3 < values["usd_per_hour"] < sum(bill) / 3 + 4.0
    assert values["gpus"] == sum(bill) / 12
    (doubled,) = [value for metric, value, at in found.rows if metric == "usd_per_hour" and at]
    assert max(bill) < doubled <= 2 * max(bill)


def test_the_bound_costs_no_more_and_serves_nothing(small):
    bound = small.measure(FractionalBound(), 0)
    assert figures(bound)["usd_per_hour"] < figures(small.measure(Coral(), 0))["usd_per_hour"]
    assert "goodput_per_s" not in figures(bound)


class TooFew:
    """Half of what Coral rents."""

    def plan(self, problem):
        whole = Coral().plan(problem)
        return FleetPlan(
            instances={name: max(count // 2, 1) for name, count in whole.instances.items()},
            replicas={each: max(count // 2, 1) for each, count in whole.replicas.items()},
        )


class Boaster:
    """Believes that a replica keeps up three times what it does."""

    def plan(self, problem):
        (real,) = {each for each in problem.templates if each.gpus == 1}
        count = -(-sum(problem.demand_per_s.values()) // (3 * real.per_s))
        boast = template(real.service, 3 * real.per_s, *real.nodes)
        object.__setattr__(boast, "how", real.how)
        return FleetPlan(instances={"h": int(count)}, replicas={boast: int(count)})


def test_a_fleet_that_is_too_small_leaves_demand_unserved_and_one_that_boasts_misses_the_objectives(small):
    assert figures(small.measure(TooFew(), 0))["unserved_share"] > 0.2
    boasted = figures(small.measure(Boaster(), 0))
    assert boasted["unserved_share"] == 0.0
    assert boasted["missed_share"] > 0.3
    assert boasted["goodput_per_s"] < 0.7 * figures(small.measure(Coral(), 0))["goodput_per_s"]


def test_equal_seeds_give_equal_figures(small):
    first, again, other = (small.measure(Coral(), seed).rows for seed in (1, 1, 2))
    simulated = [row for row in first if row[0] != "plan_s"]
    assert simulated == [row for row in again if row[0] != "plan_s"]
    assert simulated != [row for row in other if row[0] != "plan_s"]


def test_plans_count_on_a_share_of_what_a_replica_keeps_up(small):
    services = tuple(small._asked())
    whole = templates(services, small._offers(), split=False, headroom=1.0)
    part = templates(services, small._offers(), split=False, headroom=0.5)
    assert [each.per_s for each in part] == [each.per_s / 2 for each in whole]


def test_scarcity_offers_less_and_asks_more():
    assert GpuScarcity().available < GpuMix().available and GpuScarcity().scale > GpuMix().scale


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_every_planner_has_a_plan_when_almost_nothing_is_to_be_had(seed):
    """HiGHS ends such programs with a solve error where counts have no bounds."""
    study = GpuScarcity()
    for planner in (DevicesFirst(), Coral(), Unpruned()):
        found = figures(study.measure(planner, seed))
        assert found["goodput_per_s"] > 0
        assert found["missed_share"] < 0.01


def test_a_file_that_is_not_there_stops_the_study_before_any_trial():
    with pytest.raises(BadFileError):
        GpuMix(demand="absent.csv").check()
    with pytest.raises(BadFileError):
        GpuMix(prices="absent.csv").check()
