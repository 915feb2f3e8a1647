"""Demand: the made day, and files of the user's."""

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError, UnknownNameError
from wavetank.platforms.prices import shipped_offers
from wavetank.serving.fleet.demand import GENERATED, availability, day, read_demand
from wavetank.serving.fleet.interface import Service

HEAD = "model,requests_per_s,slo_ttft_s\n"


def write(path, text):
    path.write_text(text)
    return path


def test_equal_seeds_give_equal_days_and_others_do_not():
    hours = [0.0, 6.0, 12.0, 18.0]
    assert day(dict(GENERATED), hours, 3) == day(dict(GENERATED), hours, 3)
    assert day(dict(GENERATED), hours, 3) != day(dict(GENERATED), hours, 4)
    assert availability(shipped_offers(), 9, 4, 3) == availability(shipped_offers(), 9, 4, 3)


def test_the_day_is_busier_in_the_afternoon_than_at_night():
    hours = [float(hour) for hour in range(24)]
    mean = np.mean([[sum(each.values()) for each in day(dict(GENERATED), hours, seed)] for seed in range(30)], axis=0)
    assert mean[13:17].mean() > 1.5 * mean[1:5].mean()


def test_between_half_and_all_instances_can_be_had():
    counts = [offer.available for there in availability(shipped_offers(), 12, 50, 1) for offer in there]
    assert min(counts) >= 6 and max(counts) <= 12 and len(set(counts)) > 3


def test_a_file_gives_rates_and_objectives(tmp_path):
    path = write(tmp_path / "d.csv", HEAD + "Llama-3.1-8B, 12.5, 0.5\nQwen3-32B,1,\n")
    assert read_demand(path) == {
        Service(model="Llama-3.1-8B", slo_ttft_s=0.5): 12.5,
        Service(model="Qwen3-32B"): 1.0,
    }


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("", BadFileError, "empty"),
        (HEAD, BadFileError, "no rows"),
        ("model\nx\n", BadFileError, "requests_per_s"),
        ("model,requests_per_s,ttft\n", BadFileError, "ttft"),
        (HEAD + "Llama-3.1-8B,many,1\n", BadFileError, "line 2"),
        (HEAD + "Llama-3.1-8B\n", BadFileError, "line 2"),
        (HEAD + "Llama-3.1-8B,1,0,5\n", BadFileError, "with a point"),
        ("model,requests_per_s,requests_per_s\nLlama-3.1-8B,1,7\n", BadFileError, "twice"),
        (HEAD + "Llama-3.1-8B,0,1\n", BadFileError, "line 2"),
        (HEAD + "Llama-3.1-8B,inf,1\n", BadFileError, "line 2"),
        (HEAD + "Llama-3.1-8B,1,-1\n", BadValueError, "line 2"),
        (HEAD + "LLama3-8B,1,1\n", UnknownNameError, "Llama-3.1-8B"),
        (HEAD + "Llama-3.1-8B,1,1\nLlama-3.1-8B,2,1\n", BadFileError, "line 3"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path, text, error, says):
    with pytest.raises(error) as caught:
        read_demand(write(tmp_path / "d.csv", text))
    assert says in str(caught.value)
