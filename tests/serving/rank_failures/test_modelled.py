"""The model of a wide instance: sums of bytes over rates, written down once more."""

from __future__ import annotations

import math

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.rank_failures.eep import PartialRecovery
from wavetank.serving.rank_failures.interface import Rates
from wavetank.serving.rank_failures.modelled import EXPERT_BYTES, EXPERTS, LAYERS, OTHER_BYTES, WideInstance
from wavetank.serving.rank_failures.rivals import FullRestart, GroupRestart, MaskOnly

RATES = Rates(peer_bytes_per_s=50 * 10**9, host_bytes_per_s=25 * 10**9, disk_bytes_per_s=2 * 10**9)


def test_a_restart_loads_all_weights_of_a_host_from_its_disk() -> None:
    wide = WideInstance(ranks=32, replicas=1, rates=RATES, detect_s=1, start_s=30, capture_s=30, group_s=20)
    host = 8 * (OTHER_BYTES + 8 * LAYERS * EXPERT_BYTES)
    assert OTHER_BYTES + EXPERTS * LAYERS * EXPERT_BYTES == 671 * 10**9
    down = FullRestart().downtime(wide)
    assert down.pause_s == pytest.approx(81 + host / 2e9) and down.rejoin_s == 0 and down.recovered_s == down.pause_s


def test_what_two_replicas_save_one_without_them_loads_from_hosts_or_the_disk() -> None:
    wide = WideInstance(ranks=32, failed=1, replicas=2, rates=RATES, detect_s=1.0)
    bundle = LAYERS * EXPERT_BYTES
    mask, ours = MaskOnly().downtime(wide).pause_s, PartialRecovery().downtime(wide).pause_s
    assert ours == mask == pytest.approx(1 + 3 * 31 * 20e-6)
    # Eight bundles, each to a rank of its own.
    assert PartialRecovery(replicas=1).downtime(wide).pause_s == pytest.approx(mask + bundle / 25e9)
    assert PartialRecovery(replicas=1, host=False).downtime(wide).pause_s == pytest.approx(mask + 8 * bundle / 2e9)


def test_a_group_waits_for_the_replacement_and_few_ranks_for_their_throughput() -> None:
    wide = WideInstance(ranks=32, failed=1, rates=RATES)
    group, ours = GroupRestart().downtime(wide), PartialRecovery().downtime(wide)
    assert group.pause_s == pytest.approx(81 + wide.own_bytes / 25e9)
    assert ours.recovered_s == ours.pause_s
    many = PartialRecovery().downtime(WideInstance(ranks=32, failed=2, rates=RATES))
    assert many.recovered_s == pytest.approx(61 + wide.own_bytes / 25e9 + many.rejoin_s)
    assert many.rejoin_s > ours.rejoin_s > 0


@pytest.mark.parametrize(
    "given", [{"failed": 32}, {"failed": 0}, {"ranks": 1}, {"start_s": -1.0}, {"group_s": math.nan}]
)
def test_what_is_no_loss_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(BadValueError):
        WideInstance(**given)  # type: ignore[arg-type]
