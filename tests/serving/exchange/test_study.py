"""The study: figures of every system, and settings that there are not."""

from __future__ import annotations

from typing import Any

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.exchange.relay_free import RelayFree
from wavetank.serving.exchange.rivals import AllToAll, RelayBuffers
from wavetank.serving.exchange.study import ExpertExchange
from wavetank.study.study import Trial


def test_all_systems_take_turns_in_one_trial_and_their_figures_are_right() -> None:
    study = ExpertExchange(hidden=64, tokens=8, rounds=2, steps=2, experts=4, choices=2)
    (trial,) = study.trials(["a", "b", "c"], [3])
    assert trial.systems == ("a", "b", "c")
    records = study.run(trial, {"a": RelayFree(), "b": RelayBuffers(), "c": AllToAll()})
    found: dict[str, dict[str, float]] = {name: {} for name in "abc"}
    for each in records:
        assert each.seed == 3
        if not each.at:
            found[each.system][each.metric] = each.value
    assert [found[name]["wrong_rows"] for name in "abc"] == [0, 0, 0]
    assert [found[name]["dispatch_writes"] for name in "abc"] == [1, 3, 2]
    assert [found[name]["combine_reads"] for name in "abc"] == [1, 3, 2]
    assert [found[name]["dispatch_bytes_per_token"] for name in "abc"] == [1024, 3072, 2048]
    assert len({found[name]["far_share"] for name in "abc"}) == 1
    assert all(found[name]["dispatch_s"] > 0 < found[name]["combine_s"] for name in "abc")
    assert found["a"]["modelled_off_table"] < 0.1
    assert "modelled_off_table" not in found["c"]
    cells = [each for each in records if each.system == "a" and each.metric == "modelled_dispatch_s"]
    assert sorted((str(each.at["wire"]), each.at["hidden"]) for each in cells) == [
        ("bf16", 4096), ("bf16", 7168), ("int8", 4096), ("int8", 7168),
    ]  # fmt: skip


def test_times_are_of_the_slowest_rank_and_the_median_round() -> None:
    study = ExpertExchange(hidden=64, tokens=8, rounds=3, steps=2, experts=4, choices=2)
    traffic = {part: {"read_bytes": 1, "written_bytes": 1, "far_bytes": 1} for part in ("dispatch", "combine")}
    every = [
        {part: [[[cpu_s, 10 * cpu_s]] for cpu_s in rounds] for part in ("dispatch", "combine")}
        | {"rows": 1, "traffic": [traffic], "wrong": [wrong]}
        for rounds, wrong in (((1.0, 9.0, 2.0), 2), ((5.0, 1.0, 3.0), 3))
    ]
    found = {name: value for name, value, at in study.figures(AllToAll(), 0, every).rows if not at}
    assert found["dispatch_s"] == found["combine_s"] == 5.0
    assert found["wrong_rows"] == 5
    if study._own_cores():
        assert found["dispatch_wall_s"] == found["combine_wall_s"] == 50.0


@pytest.mark.parametrize(
    "given",
    [{"choices": 5, "experts": 4}, {"hidden": 9}, {"hidden": 12, "wire": "int8"}, {"wire": "int8", "dtype": "float64"}],
)
def test_settings_that_cannot_be_run_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        ExpertExchange(**given).check()


def test_times_with_waiting_are_left_out_where_ranks_share_cores() -> None:
    shared = ExpertExchange(ranks=8, experts=8)
    shared.check()
    note = "Ranks share cores: times with waiting are left out."
    assert (note in shared.notes()) == (not shared._own_cores())
    assert Trial(systems=("a",), seed=0) in shared.trials(["a"], [0])
