"""The live watch: silence while nothing is wrong, one sentence when something is, and nothing guessed of few nodes."""

from __future__ import annotations

import math

import pytest

from wavetank.errors import BadValueError
from wavetank.insight.cluster.fleet_watch import FleetSettings, FleetWatch, Said, layer_of
from wavetank.sim.rng import stream
from wavetank.workloads.prometheus import Sample

NODES = ("n0", "n1", "n2", "n3", "n4")
TEMP = "DCGM_FI_DEV_GPU_TEMP"


def shown(number: int, odd: str = "", by: float = 0.0) -> dict[str, list[Sample]]:
    draws = stream(1, "round", number)
    found = {}
    for node in NODES:
        extra = by if node == odd else 0.0
        found[node] = [
            Sample(TEMP, (("gpu", "0"),), 60 + draws.normal() + extra, "gauge"),
            Sample("node_load1", (), 20 + draws.normal() - extra, "gauge"),
            Sample("node_intr_total", (), 1e6 + 1000.0 * number + draws.normal(), "counter"),
        ]
    return found


def watched(rounds: int, change=lambda number, values: None, **given) -> list[Said]:
    watch, said = FleetWatch(NODES, FleetSettings(learn=20, **given)), []
    for number in range(rounds):
        values: dict[str, list[Sample] | None] = dict(shown(number))
        change(number, values)
        said += watch.take(30.0 * number, values)
    return said


def test_it_says_nothing_while_nothing_is_wrong() -> None:
    assert watched(120) == []


def test_an_odd_node_is_said_once_with_its_layers() -> None:
    def change(number, values) -> None:
        if 60 <= number < 90:
            values.update(shown(number, "n3", 18.0))

    (said,) = watched(120, change)
    assert (said.node, said.label) == ("n3", "odd") and 60 * 30 < said.at_s < 80 * 30
    assert "gpu" in said.text and "host" in said.text


def test_what_all_do_together_is_not_said() -> None:
    def change(number, values) -> None:
        if number >= 60:
            for node, own in values.items():
                values[node] = [each._replace(value=each.value + 15) if each.kind == "gauge" else each for each in own]

    assert watched(120, change) == []


def test_silence_is_said_and_that_it_is_over() -> None:
    def change(number, values) -> None:
        if 40 <= number < 50:
            values["n2"] = None

    assert [(each.node, each.label, each.at_s) for each in watched(60, change)] == [
        ("n2", "silent", 42 * 30.0), ("n2", "back", 50 * 30.0),
    ]  # fmt: skip


def test_counters_that_fall_are_a_start() -> None:
    def change(number, values) -> None:
        if number >= 40:
            values["n1"] = [each._replace(value=each.value - 1.04e6) if each.kind == "counter" else each
                            for each in values["n1"]]  # fmt: skip

    assert [(each.node, each.label) for each in watched(60, change)] == [("n1", "started-again")]


def test_few_nodes_are_not_compared_and_thresholds_hold_for_one() -> None:
    watch = FleetWatch(("a",), FleetSettings(held=3))
    xid = Sample("DCGM_FI_DEV_XID_ERRORS", (), 79.0, "gauge")
    first = watch.take(0.0, {"a": [xid._replace(value=0.0)]})
    assert [each.label for each in first] == ["too-few-nodes"]
    assert [each.label for each in watch.take(30.0, {"a": [xid]})] == ["above-threshold"]
    # It goes on, and is not said again; after half an hour without it, it is.
    assert watch.take(60.0, {"a": [xid]}) == []
    assert [each.label for each in watch.take(4000.0, {"a": [xid]})] == ["above-threshold", "too-few-nodes"]


def test_values_that_are_none_and_texts_with_control_characters_do_no_harm() -> None:
    watch = FleetWatch(("a",), FleetSettings())
    bad = Sample("DCGM_FI_DEV_XID_ERRORS", (("x", "\x1b[31m"),), 79.0, "gauge")
    said = watch.take(0.0, {"a": [bad, bad._replace(value=math.nan), bad._replace(value=math.inf)]})
    assert said[0].label == "above-threshold" and "\x1b" not in said[0].text


def test_names_that_change_for_ever_fill_no_memory() -> None:
    watch = FleetWatch(("a",), FleetSettings())
    for number in range(50):
        watch.take(30.0 * number, {"a": [Sample(f"m{number}_{each}", (), 1.0, "counter") for each in range(20)]})
    assert len(watch._last["a"]) == 20


def test_layers_are_read_from_names() -> None:
    names = ("DCGM_FI_DEV_POWER", "node_nfs_rpcs_total", "node_infiniband_x", "ipmi_fan{a=nfs}", "node_load1")
    assert [layer_of(each) for each in names] == ["gpu", "storage", "network", "chassis", "host"]
    with pytest.raises(BadValueError):
        FleetSettings(threshold=float("nan"))
