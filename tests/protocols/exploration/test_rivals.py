from __future__ import annotations

import pytest

from wavetank.check.explore.environment import Environment
from wavetank.errors import BadValueError
from wavetank.protocols.consensus.raft import Raft
from wavetank.protocols.exploration.rivals import Explorer, NaiveExplorer
from wavetank.protocols.exploration.two_phase_commit import TwoPhaseCommit

ENVIRONMENTS = [
    Environment(channels="set"),
    Environment(),
    Environment(channels="fifo"),
    Environment(drops=1),
    Environment(duplicates=1),
    Environment(channels="fifo", drops=1, duplicates=1),
    Environment(drops="unlimited"),
    Environment(crashes=1),
    Environment(crashes=2, channels="set"),
    Environment(timers="when-quiet"),
    Environment(timers="never"),
    Environment(timeouts=2, drops=1),
]


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=str)
def test_the_compiled_search_counts_what_the_plain_one_counts(environment: Environment) -> None:
    plain = NaiveExplorer().count(TwoPhaseCommit(), 3, environment, 100_000)
    assert plain.complete
    for explorer in (Explorer(), Explorer(order="depth-first"), Explorer(exact=True)):
        found = explorer.count(TwoPhaseCommit(), 3, environment, 100_000)
        assert found[:4] == plain[:4]
        assert found.handler_calls < plain.handler_calls or plain.transitions == 0


@pytest.mark.parametrize("environment", [Environment(channels="set"), Environment(crashes=1, recoveries=1)], ids=str)
def test_both_find_a_counterexample_of_the_same_length(environment: Environment) -> None:
    plain = NaiveExplorer().count(TwoPhaseCommit(missing=1), 4, environment, 100_000)
    assert plain.counterexample > 0
    assert Explorer().count(TwoPhaseCommit(missing=1), 4, environment, 100_000).counterexample == plain.counterexample


def test_a_budget_ends_both() -> None:
    for explorer in (Explorer(), NaiveExplorer()):
        found = explorer.count(TwoPhaseCommit(), 6, Environment(channels="set"), 500)
        assert not found.complete
        assert 500 <= found.states < 8832


def test_the_plain_explorer_draws_nothing() -> None:
    with pytest.raises(BadValueError):
        NaiveExplorer().count(Raft(), 3, Environment(), 10)
