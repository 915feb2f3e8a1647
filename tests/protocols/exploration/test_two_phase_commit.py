from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from wavetank.check.explore import Environment, explore
from wavetank.errors import BadValueError
from wavetank.protocols.exploration.two_phase_commit import TwoPhaseCommit
from wavetank.sim.events import simulate

# The specification TwoPhase, written down once more without nodes: manager, prepared, resources, messages.
Spec = tuple[str, frozenset[int], tuple[str, ...], frozenset[object]]


def following(state: Spec) -> Iterator[Spec]:
    manager, prepared, resources, messages = state
    count = len(resources)

    def become(resource: int, new: str) -> tuple[str, ...]:
        return (*resources[:resource], new, *resources[resource + 1 :])

    if manager == "init":
        yield "aborted", prepared, resources, messages | {"abort"}
        if len(prepared) == count:
            yield "committed", prepared, resources, messages | {"commit"}
    for resource in range(count):
        if manager == "init" and resource in messages:
            yield manager, prepared | {resource}, resources, messages
        if resources[resource] == "working":
            yield manager, prepared, become(resource, "prepared"), messages | {resource}
            yield manager, prepared, become(resource, "aborted"), messages
        if "commit" in messages:
            yield manager, prepared, become(resource, "committed"), messages
        if "abort" in messages:
            yield manager, prepared, become(resource, "aborted"), messages


def all_of(count: int) -> set[Spec]:
    first: Spec = ("init", frozenset(), ("working",) * count, frozenset())
    seen, waiting = {first}, [first]
    while waiting:
        for state in following(waiting.pop()):
            if state not in seen:
                seen.add(state)
                waiting.append(state)
    return seen


def orbit(state: Spec) -> frozenset[Spec]:
    manager, prepared, resources, messages = state
    found = set()
    for order in itertools.permutations(range(len(resources))):
        found.add(
            (
                manager,
                frozenset(order[each] for each in prepared),
                tuple(resources[order.index(place)] for place in range(len(resources))),
                frozenset(order[each] if isinstance(each, int) else each for each in messages),
            )
        )
    return frozenset(found)


PERSISTENT = Environment(channels="set")


@pytest.mark.parametrize(("managers", "states"), [(3, 288), (5, 8832)])
@pytest.mark.parametrize("order", ["breadth-first", "depth-first"])
def test_the_published_numbers_of_states_are_found(managers: int, states: int, order: str) -> None:
    found = explore(TwoPhaseCommit(), managers + 1, environment=PERSISTENT, order=order)
    assert (found.outcome, found.states) == ("holds", states)
    assert len(all_of(managers)) == states


@pytest.mark.parametrize("managers", [2, 3, 4])
def test_symmetry_keeps_one_state_of_each_orbit(managers: int) -> None:
    found = explore(TwoPhaseCommit(), managers + 1, environment=PERSISTENT, symmetry=True)
    assert found.states == len({orbit(state) for state in all_of(managers)})


def test_symmetry_keeps_fewer_states_than_sorting_does() -> None:
    found = explore(TwoPhaseCommit(), 6, environment=PERSISTENT, symmetry=True)
    assert found.states == 314
    # What Stateright keeps of the same 8,832 states.
    assert found.states <= 665


def test_a_manager_that_does_not_wait_for_all_is_found_out_in_seven_steps() -> None:
    found = explore(TwoPhaseCommit(missing=1), 4, environment=PERSISTENT)
    assert found.outcome == "violated"
    assert found.counterexample is not None
    assert len(found.counterexample.actions) == 7
    assert "committed and node" in found.violation


def test_the_same_class_runs_in_rounds() -> None:
    run = simulate(TwoPhaseCommit(), size=4, until=20)
    assert run.decisions[0, 0] in ("committed", "aborted")
    assert TwoPhaseCommit().violation(run.snapshot()) == ""


def test_a_transaction_has_resources() -> None:
    with pytest.raises(BadValueError):
        explore(TwoPhaseCommit(), 1)
    assert TwoPhaseCommit().max_faults(4) == 0
