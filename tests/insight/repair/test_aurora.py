"""The agent: exact beliefs, twins against drawn causes, gates that never add an action, cases with missing readings."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from tests.insight.repair.made import small

from wavetank.errors import BadValueError
from wavetank.insight.repair.aurora import Aurora, FittedAurora, escalated, packed, with_priors
from wavetank.insight.repair.interface import LEVELS, MECHANISMS, NAMES, SYMPTOMS, WORSE
from wavetank.insight.repair.networks import overlap, posterior
from wavetank.insight.repair.simulated_service import graph
from wavetank.insight.repair.study import decided

FAULTS = 3
INNER = range(FAULTS, FAULTS + len(MECHANISMS))
OUTER = range(FAULTS + len(MECHANISMS), len(NAMES) - 1)
OK = len(NAMES) - 1


def fitted(wrong=0, **settings):
    return Aurora(**settings).fitted(small(wrong=wrong).learning)


def observed(agent, count=40):
    cases = small().cases
    return agent.levels(*cases.shown())[:count]


@pytest.mark.parametrize("wrong", [0, 3])
def test_beliefs_from_blankets_are_the_posterior_given_everything(wrong):
    agent, whole = fitted(wrong), fitted(wrong, inference="full")
    levels = observed(agent)
    near, far = agent.believe(levels), whole.believe(levels)
    np.testing.assert_allclose(near.beliefs, far.beliefs, rtol=0, atol=1e-12)
    for row, belief, energy in zip(levels[:10], far.beliefs, far.energy, strict=False):
        evidence = {node: int(row[node]) for node in range(FAULTS, len(NAMES))}
        table, log = posterior(agent.network, (2, 1, 0), evidence)
        np.testing.assert_allclose(belief, table.ravel(), rtol=0, atol=1e-12)
        assert energy * len(evidence) == pytest.approx(-log, abs=1e-9)


def test_free_energy_of_blankets_is_the_surprise_of_mechanisms():
    agent = fitted()
    levels = observed(agent, 10)
    for row, energy in zip(levels, agent.believe(levels).energy, strict=True):
        _, log = posterior(agent.network, (0,), {node: int(row[node]) for node in INNER})
        assert energy * len(MECHANISMS) == pytest.approx(-log, abs=1e-9)


def twin_by_enumeration(agent, row, beliefs, action):
    """Gain and harm by the definition: every set of faults, every turn of mechanisms and symptoms."""
    network, better, hurt = agent.network, 0.0, 0.0

    def table(node, state):
        return network.tables[node][tuple(state[each] for each in network.parents[node])]

    for config in range(8):
        faults = [config >> each & 1 for each in range(FAULTS)]
        after = [0 if each == action else fault for each, fault in enumerate(faults)]
        was = [*faults, *row[FAULTS:].tolist()]
        inner = [overlap(table(node, was), table(node, [*after, *was[FAULTS:]]), was[node]) for node in INNER]
        for turn in itertools.product(range(3), repeat=len(MECHANISMS)):
            weight = beliefs[config] * np.prod([of[level] for of, level in zip(inner, turn, strict=True)])
            if weight == 0:
                continue
            would = [*after, *turn, *was[OUTER[0] :]]
            outer = [overlap(table(node, was), table(node, would), was[node]) for node in OUTER]
            for symptoms in itertools.product(range(3), repeat=len(SYMPTOMS)):
                chance = weight * np.prod([of[level] for of, level in zip(outer, symptoms, strict=True)])
                if chance == 0:
                    continue
                turned = [*after, *turn, *symptoms, was[OK]]
                better += chance * overlap(table(OK, was), table(OK, turned), was[OK])[1]
                hurt += chance * any(
                    (symptoms[place] - was[node]) * WORSE[place] > 0 for place, node in enumerate(OUTER)
                )
    return better - row[OK], hurt


@pytest.mark.parametrize("wrong", [0, 3])
def test_gain_and_harm_are_those_of_the_twin_by_enumeration(wrong):
    agent = fitted(wrong)
    levels = observed(agent, 3)
    believed = agent.believe(levels)
    action = np.array([0, 1, 2])
    ahead = agent.outlook(levels, believed.beliefs, action)
    for row, belief, each, gain, harm in zip(levels, believed.beliefs, action, ahead.gain, ahead.harm, strict=True):
        wanted = twin_by_enumeration(agent, row, belief, each)
        assert (gain, harm) == pytest.approx(wanted, abs=1e-9)


def test_removing_what_is_not_there_changes_nothing():
    agent = fitted()
    levels = observed(agent, 20)
    nothing = np.zeros((20, 8))
    nothing[:, 0] = 1.0
    ahead = agent.outlook(levels, nothing, np.zeros(20, np.int64))
    np.testing.assert_allclose(ahead.gain, 0, atol=1e-12)
    np.testing.assert_allclose(ahead.harm, 0, atol=1e-12)
    # Nothing is foretold of a repair of what nobody believes in.
    assert (ahead.energy == np.inf).all()


def test_above_certainty_nothing_is_done_and_everything_is_handed_on():
    decisions = decided(fitted(certainty=1.01), small().cases)
    assert not decisions.acts.any()


def test_gates_that_are_wide_open_are_no_gates():
    wide = fitted(certainty=0.0, margin=-1.0, gain=-1.0, harm=1.0, entropy=1.0, energy_max=1e9)
    np.testing.assert_array_equal(decided(wide, small().cases).acts, decided(fitted(gates="none"), small().cases).acts)
    assert decided(wide, small().cases).acts.all()


@pytest.mark.parametrize(
    ("name", "wider_to_narrower"),
    [("certainty", (0.0, 0.5, 0.85, 0.95, 1.01)), ("energy_max", (1e9, 1.5, 1.0, 0.7, 0.3)),
     ("gain", (-1.0, 0.0, 0.3, 0.9)), ("harm", (1.0, 0.3, 0.05, 0.0)), ("entropy", (1.0, 0.5, 0.1))],
)  # fmt: skip
def test_a_narrower_gate_never_adds_an_action(name, wider_to_narrower):
    before = None
    for value in wider_to_narrower:
        acts = decided(fitted(**{name: value}), small().cases).acts
        if before is not None:
            assert not (acts & ~before).any()
        before = acts
    assert before.sum() < len(before)


def test_both_gates_act_where_each_alone_does():
    both, causal, energy = (decided(fitted(gates=gates), small().cases).acts for gates in ("both", "causal",
                                                                                           "free-energy"))  # fmt: skip
    assert both.any()
    assert not (both & ~(causal & energy)).any()


def test_at_full_mixing_diagnosis_is_chance_and_the_agent_abstains():
    cases = small(mixing=1.0).cases
    agent = Aurora().fitted(small(mixing=1.0).learning)
    decisions = decided(agent, cases)
    single = cases.present.sum(axis=1) == 1
    right = cases.present[np.arange(len(single)), decisions.action]
    assert right[single].mean() == pytest.approx(1 / 3, abs=0.06)
    assert decisions.acts.mean() < 0.01


def test_a_missing_reading_hands_the_case_on_and_stops_nobody():
    agent, careless = fitted(), fitted(gates="none")
    readings, slo_ok = small().cases.shown()
    readings = readings.copy()
    acts = agent.decide(readings, slo_ok).acts
    for gone in (np.nan, np.inf, -np.inf):
        readings[:, 4] = gone
        assert not agent.decide(readings, slo_ok).acts.any()
        assert careless.decide(readings, slo_ok).acts.all()
    assert acts.any()
    blind = careless.believe(agent.levels(np.full_like(readings, np.nan), slo_ok))
    np.testing.assert_allclose(blind.faults, [[agent.network.tables[each][1] for each in range(3)]] * len(readings))


def test_several_windows_multiply_and_the_prior_counts_once():
    agent = fitted()
    readings, slo_ok = small().cases.shown()
    once = agent.over_windows(readings[:, None], slo_ok[:, None])
    np.testing.assert_allclose(once.beliefs, agent.believe(agent.levels(readings, slo_ok)).beliefs, atol=1e-12)
    twice = agent.over_windows(np.repeat(readings[:, None], 2, axis=1), np.repeat(slo_ok[:, None], 2, axis=1))
    prior = agent.over_windows(np.full((1, 1, 9), np.nan), slo_ok[:1, None]).beliefs
    squared = once.beliefs**2 / prior
    np.testing.assert_allclose(twice.beliefs, squared / squared.sum(axis=1, keepdims=True), atol=1e-10)


def test_cases_in_which_it_acts_come_first_then_the_likelier_ones():
    decisions = decided(fitted(), small().cases)
    assert decisions.sure[decisions.acts].min() > decisions.sure[~decisions.acts].max()
    alone = decided(fitted(gates="none"), small().cases)
    np.testing.assert_allclose(decisions.sure - decisions.acts, alone.sure - 1, atol=1e-12)


def test_the_tier_above_takes_no_action_again():
    agent, cases = fitted(), small().cases
    own = decided(agent, cases)
    later = escalated(agent, cases, own)
    assert later.acts.any()
    assert not (own.acts & later.acts).any()


def test_the_limit_is_a_share_of_rightly_diagnosed_validation_cases():
    agent = fitted(quantile=0.8)
    cases = small().learning.validation
    believed = agent.believe(agent.levels(*cases.shown()))
    right = cases.present[np.arange(len(cases.present)), believed.faults.argmax(axis=1)]
    assert np.mean(believed.energy[right] <= agent.limit) == pytest.approx(0.8, abs=0.01)


def test_priors_are_those_of_cases():
    agent, cases = fitted(), small().learning.train
    wanted = (cases.present[:, 1].sum() + 1) / (len(cases.present) + 2)
    assert with_priors(agent.network, cases).tables[1][1] == pytest.approx(wanted)
    assert agent.network.tables[1][1] == pytest.approx(wanted)


def test_packed_tables_are_the_tables():
    network = fitted(3).network
    tables, offsets, parents, strides = packed(network)
    draws = np.random.default_rng(0)
    for _ in range(200):
        node = int(draws.integers(len(NAMES)))
        state = [int(draws.integers(each)) for each in LEVELS]
        at = offsets[node] + sum(
            stride * state[parent] for parent, stride in zip(parents[node], strides[node], strict=True) if parent >= 0
        )
        row = network.tables[node][tuple(state[each] for each in network.parents[node])]
        assert tables[at + state[node]] == row[state[node]]


def test_bad_graphs_settings_and_readings_are_refused():
    learning = small().learning
    with pytest.raises(BadValueError, match="these variables"):
        Aurora().fitted(learning._replace(parents=graph()[:-1]))
    with pytest.raises(BadValueError, match="these variables"):
        Aurora().fitted(learning._replace(parents=((1,), *graph()[1:])))
    for bad in ({"certainty": -1.0}, {"certainty": float("nan")}, {"quantile": 2.0}, {"prior": 0.0}):
        with pytest.raises(BadValueError):
            Aurora(**bad)
    agent = fitted()
    with pytest.raises(BadValueError, match="one reading of each kind"):
        agent.decide(np.zeros((2, 8)), np.ones(2, np.bool_))
    assert isinstance(replace(Aurora(), gates="none").fitted(learning), FittedAurora)
