"""Lengths of documents: as they were counted, with a tail; drawn where the data set is absent."""

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.training.context import workload
from wavetank.training.context.workload import read_classes, sequence_lengths

TEXT = "range,number,percentage(%)\n"
CLASSES = ((1, 100, 500), (101, 32_768, 480), (32_769, 131_072, 18), (131_073, 196_608, 2))


def drawn(tokens=1 << 22, seed=0, **words):
    return sequence_lengths(
        tokens, seed, **({"mix": "documents", "longest": 524_288, "median": 1e3, "sigma": 1.5} | words)
    )


@pytest.fixture(params=[CLASSES, None], ids=["counted", "absent"])
def classes(request, monkeypatch):
    monkeypatch.setattr(workload, "document_classes", lambda: request.param)
    return request.param


def test_lengths_sum_to_the_batch_and_depend_on_the_seed_alone(classes):
    for mix in ("documents", "lognormal", "equal"):
        lengths = drawn(mix=mix)
        assert lengths.sum() == 1 << 22
        assert lengths.min() >= 1
        assert lengths.max() <= 524_288
        assert lengths.tolist() == drawn(mix=mix).tolist()
    assert drawn(seed=1).tolist() != drawn().tolist()


def test_some_documents_are_longer_than_the_histogram(classes):
    lengths = drawn(1 << 28)
    assert lengths.max() > 300_000
    assert 49_000 < drawn(1 << 26, longest=50_000).max() <= 50_000


def test_counted_classes_keep_their_shares(monkeypatch):
    monkeypatch.setattr(workload, "document_classes", lambda: CLASSES)
    lengths = drawn(1 << 28)
    assert np.mean(lengths <= 100) == pytest.approx(0.5, abs=0.01)
    assert np.mean(lengths > 131_072) == pytest.approx(0.002, abs=0.0006)


def test_equal_lengths_are_the_longest_and_a_median_is_a_median():
    assert drawn(1 << 20, mix="equal", longest=1 << 18).tolist() == [1 << 18] * 4
    assert np.median(drawn(1 << 26, mix="lognormal")) == pytest.approx(1000, rel=0.05)


def test_an_unknown_mix_is_refused():
    with pytest.raises(BadValueError, match="no such mix"):
        drawn(mix="poems")


def test_classes_are_read_in_their_order():
    assert read_classes(TEXT + '"[0, 10]",3,0.2\n"[11, 50]",5,0.8\n') == ((1, 10, 3), (11, 50, 5))


@pytest.mark.parametrize(
    "rows",
    ["", '"[0, 10]",x,1\n', '"0-10",3,1\n', '"[0, 10]",3,1\n"[12, 50]",5,1\n', '"[0, 10]",0,1\n', '"[9, 3]",2,1\n'],
)
def test_what_is_no_histogram_is_refused(rows):
    with pytest.raises(BadFileError):
        read_classes(TEXT + rows, "lengths.csv")
