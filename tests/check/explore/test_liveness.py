from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.check.explore.liveness import Lasso, never, obliged_causes


def judged(
    edges: list[tuple[int, int, int]],
    states: int,
    *,
    holds: set[int] = frozenset(),
    optional: set[int] = frozenset(),  # type: ignore[assignment]
) -> Lasso | None:
    causes = 1 + max((cause for _, _, cause in edges), default=0)
    obliged = np.array([cause not in optional for cause in range(causes)])
    ends = np.array([not any(edge[0] == state and obliged[edge[2]] for edge in edges) for state in range(states)])
    marks = np.array([state in holds for state in range(states)])
    return never(np.array(edges, np.int32).reshape(-1, 3), marks, ends, obliged)


def test_a_run_that_ends_without_it_is_the_shortest() -> None:
    edges = [(0, 1, 0), (1, 2, 1), (0, 3, 2), (3, 4, 3)]
    assert judged(edges, 5, holds={4}) == Lasso((0, 1), ())
    assert judged(edges, 5, holds={2}) == Lasso((2, 3), ())
    assert judged(edges, 5, holds={2, 4}) is None
    assert judged(edges, 5, holds={0}) is None


def test_a_cycle_that_leaves_out_what_is_always_possible_is_not_fair() -> None:
    # 0 and 1 go round by steps 0 and 1; step 2 is possible in both and leads to 2, where it holds.
    edges = [(0, 1, 0), (1, 0, 1), (0, 2, 2), (1, 2, 2)]
    assert judged(edges, 3, holds={2}) is None
    # A fault need not happen.
    assert judged(edges, 3, holds={2}, optional={2}) == Lasso((), (0, 1))
    # Neither must a step that is possible now and then.
    assert judged(edges[:3], 3, holds={2}) == Lasso((), (0, 1))


def test_a_state_that_steps_onto_itself_is_a_cycle() -> None:
    assert judged([(0, 1, 0), (1, 1, 1)], 2) == Lasso((0,), (1,))
    assert judged([(0, 1, 0), (1, 1, 1)], 2, holds={1}) is None


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=14),
    st.sets(st.integers(1, 5), max_size=3),
    st.sets(st.integers(0, 3), max_size=2),
)
def test_what_is_found_is_a_fair_run_without_it(
    drawn: list[tuple[int, int, int]], holds: set[int], optional: set[int]
) -> None:
    # One step of a cause leads to one state.
    edges = [(source, to, cause) for (source, cause), to in {(e[0], e[2]): e[1] for e in drawn}.items()]
    found = judged(edges, 6, holds=holds, optional=optional)
    if found is None:
        return
    following = {(source, cause): to for source, to, cause in edges}
    state, visited = 0, [0]
    for cause in found.steps:
        state = following[state, cause]
        visited.append(state)
    if not found.cycle:
        assert not [edge for edge in edges if edge[0] == state and edge[2] not in optional]
    else:
        entry, around = state, set()
        for cause in found.cycle:
            around.add(state)
            state = following[state, cause]
            visited.append(state)
        assert state == entry
        for cause in {edge[2] for edge in edges} - optional - {*found.cycle}:
            assert any((each, cause) not in following for each in around)
    assert not holds & {*visited}


@pytest.mark.parametrize("obliged", [[True, False], []])
def test_losses_and_doubles_never_must_happen(obliged: list[bool]) -> None:
    found = obliged_causes(obliged).tolist()
    assert found == [each for must in obliged for each in (must, False, False)]
