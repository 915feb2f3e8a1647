"""The study stencil-machines: kinds kept apart, parts that sum up, ratios that follow from records."""

import math

import pytest

from wavetank.errors import BadValueError
from wavetank.kernels.stencils.study_machines import LARGEST, StencilMachines, crossing_side
from wavetank.ledger import catalog
from wavetank.run.comparison import compare
from wavetank.study.study import build_study


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return compare(
        "stencil-machines", stencils="star-1,box-2", sides="96,160", steps=10, rounds=1, seeds=2,
        out=tmp_path_factory.mktemp("runs"), on="here",
    )  # fmt: skip


@pytest.fixture(scope="module")
def figures(result):
    """Return (system, seed, metric, coordinates) to value."""
    found = {(r.system, r.seed, r.metric, *r.at.values()): r.value for r in result.records}
    assert len(found) == len(result.records)
    return found


def test_every_system_answers(result, figures):
    assert result.failures == ()
    assert {key[0] for key in figures} == set(catalog.built_in().plain_run(StencilMachines.name))
    assert all(not math.isnan(value) and value >= 0 for value in figures.values())


def test_what_is_measured_and_what_is_modelled_stay_apart(result):
    kinds = {record.metric: record.kind for record in result.records}
    assert {metric for metric, kind in kinds.items() if kind == "measured"} == {
        "host_s", "sweep_s", "measured_updates_per_s",
    }  # fmt: skip
    assert kinds["time_over_processor"] == kinds["updates_per_s"] == kinds["part_s"] == "modelled"
    assert kinds["mesh_cycles_ratio"] == "simulated"


def test_the_account_sums_to_the_run(figures):
    for system in ("stencil-wormhole", "wormhole-matmul", "wormhole-banded", "wormhole-resident"):
        parts = [value for key, value in figures.items() if key[:3] == (system, 0, "part_s")]
        assert len(parts) == 6
        rate = figures[system, 0, "updates_per_s", "star-1"]
        assert sum(parts) == pytest.approx(10 * 160 * 160 / rate, rel=1e-9)


def test_ratios_follow_from_the_records(figures):
    wafer, conv = (figures[name, 0, "updates_per_s", "box-2"] for name in ("stencil-wse", "convstencil-a100"))
    assert figures["stencil-wse", 0, "over_convstencil", "box-2"] == pytest.approx(wafer / conv)
    both = [figures["stencil-wse", 0, "over_convstencil", at] for at in ("star-1", "box-2")]
    assert figures["stencil-wse", 0, "over_convstencil", LARGEST] == max(both)
    plain = figures["plain-sweep", 1, "measured_updates_per_s", "star-1"]
    ratio = figures["a100-roofline", 1, "time_over_processor", "star-1"]
    assert ratio == pytest.approx(plain / figures["a100-roofline", 1, "updates_per_s", "star-1"])
    whole = figures["stencil-wormhole", 0, "time_over_processor", 160.0]
    assert figures["stencil-wormhole", 0, "time_over_processor", "star-1"] == whole
    assert whole > figures["stencil-wormhole", 0, "free_link_over_processor", 160.0]
    assert figures["stencil-wormhole", 0, "link_bytes_per_update", "star-1"] == pytest.approx(12.0)


def test_mappings_are_executed(figures):
    for key, value in figures.items():
        if key[2] == "executed_error":
            assert value == 0.0 if key[0].startswith("stencil-wse") else 0.0 < value <= 3 * 3 * 2.0**-8
        if key[2] == "mesh_cycles_ratio":
            assert value == 1.0


def test_a_part_of_the_systems_can_be_compared(tmp_path):
    result = compare(
        "stencil-machines",
        systems=["stencil-wse", "a100-roofline"],
        stencils="star-1",
        seeds=1,
        out=tmp_path,
        on="here",
    )
    assert "over_convstencil" not in {record.metric for record in result.records}


def test_runs_cross_where_what_is_saved_pays_what_is_fixed():
    # 10 J fixed; at side 100 the card takes 10 + 30 J and the processor 50 J, so 20 J are saved there.
    assert crossing_side(fixed_joules=10, card_joules=40, processor_joules=50, side=100) == pytest.approx(
        100 * math.sqrt(0.5)
    )
    assert math.isnan(crossing_side(fixed_joules=10, card_joules=70, processor_joules=50, side=100))


def test_bad_settings_are_refused():
    with pytest.raises(BadValueError):
        build_study(StencilMachines, {"stencils": "star-9"})
    with pytest.raises(BadValueError):
        build_study(StencilMachines, {"sides": "8"})
    with pytest.raises(BadValueError, match="more memory"):
        StencilMachines(sides=(1 << 20,)).check()
