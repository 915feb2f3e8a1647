"""Figures by their formulas, on requests that were not learned from, and traffic that there is not."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.serving.experts.interface import Plan, RoutingTrace
from wavetank.serving.experts.rivals import ContiguousExperts, TrueRouting
from wavetank.serving.experts.sem_moe import SemMoE
from wavetank.serving.experts.study import ExpertPlacementStudy

SMALL = {"requests": 60, "tokens": 30, "layers": 2, "experts": 16, "per_token": 3, "topics": 6}


def figures(study: ExpertPlacementStudy, system: object) -> dict[str, float]:
    return {name: value for name, value, at in study.measure(system, 0).rows if not at}  # type: ignore[arg-type]


def test_the_figures_are_their_formulas() -> None:
    study = ExpertPlacementStudy(**SMALL, hidden=100)  # type: ignore[arg-type]
    found = figures(study, SemMoE(epochs=2))
    assert found["remote_bytes"] == pytest.approx(2 * (1 - found["local_share"]) * 3 * 100 * 2)
    assert 0 < found["visit_bytes"] <= found["remote_bytes"]
    assert found["load_ratio"] >= 1
    only = figures(ExpertPlacementStudy(**SMALL, exchange=0.0), SemMoE(epochs=2))  # type: ignore[arg-type]
    assert only["layer_time"] == pytest.approx(only["load_ratio"])


def test_even_routes_by_chance_take_about_the_time_of_one() -> None:
    study = ExpertPlacementStudy(requests=40, tokens=2_000, layers=1, experts=64, affinity=0.0)
    found = figures(study, ContiguousExperts())
    assert found["local_share"] == pytest.approx(0.25, abs=0.01)
    assert found["layer_time"] == pytest.approx(1.0, abs=0.05)


def test_learned_and_judged_requests_are_different_ones() -> None:
    study = ExpertPlacementStudy(**SMALL)  # type: ignore[arg-type]
    learned, judged = study.parts(study.trace(0), 0)
    assert len(learned) == 12
    assert sorted(learned + judged) == list(range(60))
    assert study.parts(study.trace(0), 1) != (learned, judged)


class Watching(ContiguousExperts):
    """Remembers what it learned from."""

    seen: ClassVar[list[RoutingTrace]] = []

    def fit(self, seen: RoutingTrace, devices: int, *, whole_requests: bool) -> Plan:
        self.seen.append(seen)
        return super().fit(seen, devices, whole_requests=whole_requests)


def test_a_rule_learns_from_no_request_that_it_is_judged_by(monkeypatch: pytest.MonkeyPatch) -> None:
    study = ExpertPlacementStudy(**SMALL)  # type: ignore[arg-type]
    trace = study.trace(4)
    learned, judged = study.parts(trace, 4)
    study.measure(Watching(), 4)
    # One that is allowed to know is shown the others.
    monkeypatch.setattr(Watching, "clairvoyant", True)
    study.measure(Watching(), 4)
    for got, wanted in zip(Watching.seen, (learned, judged), strict=True):
        assert np.array_equal(got.tokens, trace.part(wanted).tokens)
        assert np.array_equal(got.routes, trace.part(wanted).routes)


def test_other_numbers_of_devices_are_further_places() -> None:
    study = ExpertPlacementStudy(**SMALL, others=(2, 8))  # type: ignore[arg-type]
    rows = study.measure(ContiguousExperts(), 0).rows
    shares = {at["devices"]: value for name, value, at in rows if name == "local_share" and at}
    assert list(shares) == [2.0, 4.0, 8.0]
    assert shares[2.0] > shares[4.0] > shares[8.0]


def test_one_device_keeps_everything() -> None:
    for attention in ("data-parallel", "tensor-parallel"):
        found = figures(ExpertPlacementStudy(**SMALL, devices=1, attention=attention), SemMoE(epochs=1))  # type: ignore[arg-type]
        assert found["local_share"] == 1.0
        assert found["remote_bytes"] == found["visit_bytes"] == 0.0


def test_knowing_what_comes_keeps_more_when_more_requests_wait() -> None:
    one, many = (
        figures(ExpertPlacementStudy(**SMALL, waiting=each), TrueRouting())["local_share"]  # type: ignore[arg-type]
        for each in (1, 12)
    )
    assert many > one


def test_traffic_is_a_known_name_or_a_file(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="traffic"):
        ExpertPlacementStudy(traffic="generatd").check()
    with pytest.raises(BadValueError, match="divided equally"):
        ExpertPlacementStudy(devices=5).check()
    with pytest.raises(BadValueError, match="Nothing is left"):
        ExpertPlacementStudy(requests=10, learn=0.01).check()
    trace = ExpertPlacementStudy(**SMALL).trace(3)  # type: ignore[arg-type]
    file = tmp_path / "routes.npz"
    np.savez(file, tokens=trace.tokens, starts=trace.starts, prompts=trace.prompts, routes=trace.routes)
    study = ExpertPlacementStudy(traffic=str(file))
    study.check()
    assert list(study.data()) == [str(file)]
    assert figures(study, ContiguousExperts())["local_share"] > 0
    assert study.notes() != ExpertPlacementStudy().notes()
