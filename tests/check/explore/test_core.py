from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wavetank.check.explore import core
from wavetank.check.explore.environment import Environment
from wavetank.check.explore.search import Search
from wavetank.check.explore.system import System
from wavetank.check.explore.views import Views
from wavetank.protocols.exploration.two_phase_commit import TwoPhaseCommit


@given(st.dictionaries(st.integers(0, 2**62), st.integers(0, 2**31 - 1), max_size=60), st.integers(0, 2**62))
def test_the_hash_table_keeps_what_was_put(wanted: dict[int, int], other: int) -> None:
    keys, values = np.zeros(128, np.int64), np.full(128, -1, np.int32)
    core.put_keys(keys, values, np.array([*wanted], np.int64), np.array([*wanted.values()], np.int32))
    assert {key: core.find_key(keys, values, key) for key in wanted} == wanted
    assert core.find_key(keys, values, other) == wanted.get(other, -1)


def searched(environment: Environment, *, symmetry: bool = False) -> Search:
    system = System(TwoPhaseCommit(), 4, environment=environment, symmetry=symmetry)
    search = Search(system, Views(system, (), system.algorithm.violation), exact=not symmetry)
    search.run(states=10**6, seconds=60.0, depth=None, stop=lambda search: False)
    return search


def test_all_states_have_fingerprints_of_their_own() -> None:
    for channels in ("any-order", "fifo", "set"):
        search = searched(Environment(channels=channels, drops=1))
        tables = search._tables()
        prints = set()
        for state in range(search.states):
            row = np.array(search.row(state), np.int32)
            prints.add(tuple(map(int, core.fingerprint(row, row.size, search.shape, tables))))
        assert len(prints) == search.states


def test_a_renamed_state_has_the_same_fingerprint() -> None:
    system = System(TwoPhaseCommit(), 4, environment=Environment(drops=1), symmetry=True)
    search = Search(system, Views(system, (), system.algorithm.violation))
    rows = [system.initial]
    for row in rows:
        rows += [system.after(row, action) for action in system.actions(row)][: max(0, 60 - len(rows))]
    search._sync()
    for row in rows:
        prints = set()
        for place in range(len(system.permutations)):
            image = np.array(system.image(row, place), np.int32)
            prints.add(tuple(map(int, core.fingerprint(image, image.size, search.shape, search._tables()))))
        assert len(prints) == 1


def test_a_grown_table_of_fingerprints_finds_them_all() -> None:
    search = searched(Environment(channels="set"))
    size = 4 * search._found.keys.shape[0]
    keys, places = np.zeros((size, 2), np.uint64), np.zeros(size, np.int32)
    core.rehash(search._found.keys, search._found.places, keys, places)
    filled = (keys != 0).any(axis=1)
    assert filled.sum() == search.states
    assert sorted(places[filled].tolist()) == list(range(search.states))
