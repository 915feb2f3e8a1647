"""torchft as a contender: what it answers, and what its lighthouse may wait."""

from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.ledger import catalog
from wavetank.training.failures.interface import SKIP_STEP, Loss
from wavetank.training.failures.peers import Torchft


def test_torchft_throws_the_failed_step_away() -> None:
    assert Torchft().answer(Loss(1, 0, 0)) == SKIP_STEP


def test_the_heartbeat_is_torchfts_own_unless_it_is_shortened() -> None:
    assert Torchft().heartbeat_s == 5.0
    assert catalog.system("torchft-quick").build().heartbeat_s == 0.5
    with pytest.raises(BadValueError):
        catalog.system("torchft").build(heartbeat_s=0.0)
