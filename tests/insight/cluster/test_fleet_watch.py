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


def test_a_threshold_is_said_once_it_has_held_as_long_as_its_rule_asks() -> None:
    # Five minutes above 85 degrees by the rule; the watch scrapes once a minute.
    watch, said = FleetWatch(("a",), FleetSettings()), []
    for number in range(12):
        value = 84.0 if number == 2 else 86.0
        said += watch.take(60.0 * number, {"a": [Sample(TEMP, (("gpu", "0"),), value, "gauge")]})
    (hot,) = [each for each in said if each.label == "above-threshold"]
    assert hot.at_s == 60.0 * 8 and "86" in hot.text and "85" in hot.text
    # One wild sample of a rule that asks for three is none.
    memory = Sample("DCGM_FI_DEV_MEMORY_TEMP", (), 99.0, "gauge")
    assert [each.label for each in watch.take(900.0, {"a": [memory]})] == []


def test_many_metrics_above_one_threshold_are_one_sentence() -> None:
    xids = [
        Sample("DCGM_FI_DEV_XID_ERRORS", (("gpu", "x" * 500 + str(each)),), 79.0 + each, "gauge") for each in range(900)
    ]
    (few, said) = sorted(FleetWatch(("a",), FleetSettings()).take(0.0, {"a": xids}), key=lambda each: each.node)
    assert (few.label, said.label) == ("too-few-nodes", "above-threshold")
    assert "978" in said.text and "899 more" in said.text and len(said.text) < 300


def test_silence_says_why() -> None:
    watch, said = FleetWatch(("a", "b"), FleetSettings()), []
    for number in range(4):
        said += watch.take(30.0 * number, {"a": "The exporter refuses. (status 404)\x1b", "b": None})
    silent = {each.node: each.text for each in said if each.label == "silent"}
    assert "status 404" in silent["a"] and "\x1b" not in silent["a"] and silent["b"].endswith("3 times")


def test_numbers_beyond_single_precision_do_no_harm() -> None:
    def change(number, values) -> None:
        values["n2"] = [*values["n2"], Sample("huge", (), 1e300, "gauge")]
        for node in ("n0", "n1", "n3"):
            values[node] = [*values[node], Sample("huge", (), -1e308, "gauge")]

    assert watched(60, change) == []


def test_names_without_end_are_not_watched() -> None:
    watch = FleetWatch(("a",), FleetSettings())
    watch.take(0.0, {"a": [Sample("m", (("x", "y" * 60_000),), 1.0, "counter"), Sample("n", (), 1.0, "counter")]})
    assert set(watch._last["a"]) == {"n"}


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
