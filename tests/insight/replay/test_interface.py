"""Every system of the study keeps the promise of the interface."""

import pytest
from tests.insight.replay.test_rivals import STEP

from wavetank.ledger import catalog


@pytest.mark.parametrize("name", catalog.built_in().plain_run("trace-replay"))
def test_a_step_takes_some_time_and_a_delay_never_makes_it_shorter(name):
    replay = catalog.system(name).build()
    plain = replay.step_s(STEP, 0, 0.0)
    assert plain == pytest.approx(0.009)
    for rank in range(2):
        assert plain <= replay.step_s(STEP, rank, 0.003) <= plain + 0.003 + 1e-9
