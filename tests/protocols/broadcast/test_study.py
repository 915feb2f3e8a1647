from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.ledger import catalog
from wavetank.protocols.broadcast.amortized import Amortized
from wavetank.protocols.broadcast.study import ReliableBroadcast
from wavetank.study.study import build_study

SMALL = ReliableBroadcast(nodes=(7,), payload_bytes=(1024, 65_536), broadcasts=12, runs=20, fault_nodes=(4, 5))


def figures(name: str, study: ReliableBroadcast = SMALL) -> dict[str, list[tuple[float, dict[str, float | str]]]]:
    found: dict[str, list[tuple[float, dict[str, float | str]]]] = {}
    for metric, value, at in study.measure(catalog.system(name).build(), 0).rows:
        found.setdefault(metric, []).append((value, at))
    return found


@pytest.mark.parametrize("name", catalog.built_in().plain_run(ReliableBroadcast.name))
def test_every_system_is_measured_by_every_metric(name: str) -> None:
    found = figures(name)
    assert set(found) == {metric.name for metric in ReliableBroadcast.metrics}
    assert [at for _, at in found["bytes_per_delivery"]] == [
        {"nodes": 7, "payload_bytes": 1024},
        {"nodes": 7, "payload_bytes": 65_536},
    ]
    assert found["adversarial_runs"] == [(20, {})]


def test_a_payload_in_every_message_costs_what_it_costs() -> None:
    # Send to 6, echo and ready of 7 to 6 each, over 7 deliveries of each broadcast.
    value, _ = figures("bracha")["bytes_per_delivery"][1]
    assert value == pytest.approx((6 + 2 * 7 * 6) * 65_536 / 7, rel=0.001)


def test_protocols_with_quorums_break_nothing_and_take_their_rounds() -> None:
    for name in ("amortized-brb", "hash-bracha", "bracha", "coded-broadcast"):
        found = figures(name)
        assert [found[f"{each}_violations"][0][0] for each in ("agreement", "totality", "validity", "other")] == [0] * 4
        assert found["lone_rounds"][0][0] == (2 if name == "amortized-brb" else 3)
    assert figures("amortized-brb")["slope_over_bound"][1][0] < 1.05


def test_equal_seeds_give_equal_figures() -> None:
    assert SMALL.measure(Amortized(), 3).rows == SMALL.measure(Amortized(), 3).rows


def test_settings_come_from_text() -> None:
    study = build_study(ReliableBroadcast, {"nodes": "4,7", "runs": "0", "payload_bytes": "1000"})
    assert isinstance(study, ReliableBroadcast)
    assert study.nodes == (4, 7)
    assert "adversarial_runs" not in figures("bracha", study)


@pytest.mark.parametrize("settings", [{"nodes": (), "runs": 0}, {"payload_bytes": ()}, {"fault_nodes": ()}])
def test_settings_that_measure_nothing_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(BadValueError):
        ReliableBroadcast(**settings).check()  # type: ignore[arg-type]
