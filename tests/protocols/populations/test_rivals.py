"""ppsim behind our interface: the same process, in distribution."""

import sys

import numpy as np
import pytest
from scipy import stats

from wavetank.errors import BadValueError, MissingExtraError
from wavetank.extras import install_command
from wavetank.protocols.populations.rivals import Ppsim
from wavetank.protocols.populations.simulator import PopulationBatched
from wavetank.protocols.populations.textbook import majority, matched_halves, rock_paper_scissors


def test_ppsim_and_ours_agree_in_distribution():
    pytest.importorskip("ppsim")
    protocol = rock_paper_scissors()
    start = protocol.counts({"a": 900, "b": 700, "c": 400})
    samples = [
        np.array([each.run(protocol, start, interactions=4000, seed=seed).counts[0] for seed in range(120)])
        for each in (Ppsim(), PopulationBatched())
    ]
    assert stats.ks_2samp(*samples).pvalue > 1e-4


def test_states_come_back_in_our_order():
    pytest.importorskip("ppsim")
    protocol = rock_paper_scissors()
    run = Ppsim().run(protocol, protocol.counts({"b": 990, "c": 10}), interactions=30, seed=1)
    assert run.counts.sum() == 1000
    assert run.counts[0] == 0
    assert run.counts[1] >= 990
    assert run.interactions == 30


def test_a_population_that_cannot_change_is_not_run():
    pytest.importorskip("ppsim")
    run = Ppsim().run(majority(), majority().counts({"b": 100}), interactions=1000, seed=1)
    assert (run.interactions, run.silent, run.output) == (0, True, 0)


def test_protocols_that_compare_ranks_are_refused():
    pytest.importorskip("ppsim")
    with pytest.raises(BadValueError, match="no ranks"):
        Ppsim().run(matched_halves(), matched_halves().counts("ab"), interactions=1, seed=0)


def test_without_ppsim_the_install_command_is_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "ppsim", None)
    with pytest.raises(MissingExtraError) as caught:
        Ppsim().run(majority(), majority().counts("ab"), interactions=1, seed=0)
    assert caught.value.hint == install_command("protocol-peers")
