"""Cards: read from JSON, TOML and YAML by one schema; what does not fit is named with its place."""

import json

import pytest

from wavetank.errors import BadFileError
from wavetank.insight.metrics.cards import Card, card_of, read_card

CONTENT = {
    "version": 1,
    "workload": {
        "model": {"phase": "training", "moe": False, "model_family": "tiny", "model_arch": {"num_params": 1000}},
        "data": {"batch_size": 8, "seq_len": 128},
        "hardware": {
            "network_topo": {"bandwidth_gbps": [200, 2400]}, "xpu_spec": {"type": "GPU", "total_count": 4}},
    },
    "Model-executor": {"framework": {"name": "ours"}, "model_plan_parallelization": {"tp": 2, "pp": 2}},
}  # fmt: skip


def test_one_card_is_the_same_in_three_notations(tmp_path):
    yaml = pytest.importorskip("yaml", reason="needs the library PyYAML")
    (tmp_path / "a.json").write_text(json.dumps(CONTENT))
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(CONTENT))
    (tmp_path / "a.toml").write_text(
        "version = 1\n[workload.model]\nphase = 'training'\nmoe = false\nmodel_family = 'tiny'\n"
        "model_arch = { num_params = 1000 }\n[workload.data]\nbatch_size = 8\nseq_len = 128\n"
        "[workload.hardware.network_topo]\nbandwidth_gbps = [200, 2400]\n[workload.hardware.xpu_spec]\ntype = 'GPU'\n"
        "total_count = 4\n[Model-executor]\nframework = { name = 'ours' }\n"
        "model_plan_parallelization = { tp = 2, pp = 2 }\n"
    )
    cards = [read_card(tmp_path / name) for name in ("a.json", "a.yaml", "a.toml")]
    assert cards[0] == cards[1] == cards[2]
    assert cards[0].field("executor.model_plan_parallelization.pp") == 2
    assert cards[0].field("workload.hardware.driver_version") is None


def test_a_written_card_is_read_again():
    card = card_of(CONTENT)
    assert card_of(json.loads(card.written())) == card
    assert "driver_version" not in card.written()


@pytest.mark.parametrize(("path", "value", "place"), [
    (("workload", "data", "batch_size"), 0, "batch_size"),
    (("workload", "data", "batch_size"), "8", "batch_size"),
    (("workload", "data", "batch"), 8, "batch"),
    (("workload", "model", "phase"), "cooking", "phase"),
    (("workload", "hardware", "network_topo", "bandwidth_gbps"), [-1.0], "bandwidth_gbps"),
    (("workload", "hardware", "network_topo", "bandwidth_gbps"), [float("inf")], "finite"),
    (("version",), None, "version"),
])  # fmt: skip
def test_what_does_not_fit_is_named_with_its_place(path, value, place):
    content = json.loads(json.dumps(CONTENT))
    part = content
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(BadFileError) as caught:
        card_of(content, "mine.json")
    assert place in str(caught.value)
    assert "mine.json" in str(caught.value)


@pytest.mark.parametrize(("name", "text"), [
    ("a.json", "{"), ("a.json", "[1]"), ("a.json", "[" * 100_000), ("a.toml", "version ="), ("a.yaml", "a: [1"),
    ("a.yaml", "a: &x [1]\nb: [*x, *x]\n"), ("a.yaml", "!!python/object:os.system {}"), ("a.json", ""),
])  # fmt: skip
def test_a_hostile_or_damaged_card_is_refused(tmp_path, name, text):
    if name.endswith("yaml"):
        pytest.importorskip("yaml", reason="needs the library PyYAML")
    (tmp_path / name).write_text(text)
    with pytest.raises(BadFileError):
        read_card(tmp_path / name)


def test_a_card_of_a_version_alone_says_nothing_else():
    card = Card(version=1)
    assert card.workload.model.phase is None
    assert json.loads(card.written()) == {"version": 1}
