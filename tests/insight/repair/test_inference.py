"""Three ways to one posterior: both of ours by hand, pgmpy where it is installed, a script in its place elsewhere."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from wavetank.diagnosis.outside import outside_python
from wavetank.errors import BadValueError, WavetankError
from wavetank.insight.repair import inference
from wavetank.insight.repair.inference import BlanketInference, FullGraphInference, PgmpyInference, Question
from wavetank.insight.repair.networks import Network
from wavetank.insight.repair.study_speed import asked

SPRINKLER = Network(
    ("rain", "sprinkler", "wet"), ((), (0,), (0, 1)),
    (np.array([0.8, 0.2]), np.array([[0.6, 0.4], [0.99, 0.01]]),
     np.array([[[1.0, 0.0], [0.1, 0.9]], [[0.2, 0.8], [0.01, 0.99]]])),
)  # fmt: skip


def test_the_rain_behind_the_wet_grass():
    # 0.2 (0.99 0.8 + 0.01 0.99) over that and 0.8 0.4 0.9: the known 35.77 %.
    for system in (BlanketInference(), FullGraphInference()):
        assert system.answer(SPRINKLER, Question(0, {2: 1}))[1] == pytest.approx(0.3577, abs=5e-5)


def test_the_peer_is_sent_rows_in_the_order_of_parents(monkeypatch):
    sent = {}

    def ask(words, question, **_):
        sent.update(question)
        return [{"answers": [[0.5, 0.5]], "spent_s": [0.1]}]

    monkeypatch.setattr(inference, "ask", ask)
    assert PgmpyInference().answers("python", [(SPRINKLER, [Question(0, {2: 1})])]) == [([[0.5, 0.5]], [0.1])]
    (network,) = sent["networks"]
    assert json.loads(json.dumps(network))["questions"] == [[0, {"2": 1}]]
    assert network["tables"][2] == [[1.0, 0.0], [0.1, 0.9], [0.2, 0.8], [0.01, 0.99]]
    assert network["levels"] == [2, 2, 2]


def test_a_process_that_says_nothing_is_an_error(tmp_path: Path):
    silent = tmp_path / "silent"
    silent.write_text(f"#!{sys.executable}\n")
    silent.chmod(0o755)
    with pytest.raises(WavetankError, match="pgmpy"):
        PgmpyInference(timeout_s=30.0).answers(str(silent), [(SPRINKLER, [])])
    with pytest.raises(BadValueError):
        PgmpyInference(timeout_s=0.0)


@pytest.mark.slow
def test_pgmpy_gives_the_same_posteriors():
    python = outside_python("")
    if not python:
        pytest.skip("no environment of peers: make insight-peers")
    network, questions, right = asked(5, 25, "telemetry", 3)
    ((answers, spent),) = PgmpyInference().answers(python, [(network, questions)])
    np.testing.assert_allclose(np.array(answers), np.array(right), atol=1e-12)
    assert len(spent) == 3
