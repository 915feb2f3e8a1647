"""Four loaders in two groups: every sample once with its own label, even work, and sizes for the group alone."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the library torch")

from wavetank.errors import BadValueError
from wavetank.training.sections.live_dealing import dealt_on_ranks


def loaders():
    """Loader 0 has long samples, 3 has none; a sample's first number says which it is, and so does its label."""
    lengths = [[90, 80, 70, 60], [3, 5, 4], [20, 20, 20, 20, 20, 20], []]
    samples = [[np.full(n, 100.0 * r + k) for k, n in enumerate(each)] for r, each in enumerate(lengths)]
    return samples, [[100 * r + k for k in range(len(each))] for r, each in enumerate(lengths)]


def test_every_sample_is_there_once_with_its_label_and_work_is_even_within_groups():
    samples, labels = loaders()
    found = dealt_on_ranks(samples, labels, 2)
    for each in found:
        assert [int(sample[0]) for sample in each.samples] == each.labels.tolist()
    for first in (0, 2):
        there = np.concatenate([found[first].labels, found[first + 1].labels])
        assert sorted(there.tolist()) == sorted(labels[first] + labels[first + 1])
        work = [sum(len(sample) ** 2 for sample in found[k].samples) for k in (first, first + 1)]
        assert max(work) / np.mean(work) <= 4 / 3 - 1 / 6
    lengths = {int(sample[0]): len(sample) for each in samples for sample in each}
    assert {int(sample[0]): len(sample) for each in found for sample in each.samples} == lengths


def test_sizes_go_to_the_group_and_to_nobody_else():
    samples, labels = loaders()
    two, four = dealt_on_ranks(samples, labels, 2), dealt_on_ranks(samples, labels, 4)
    for k, mine in enumerate(samples):
        assert two[k].size_bytes == 8 * (1 + len(mine))
        assert four[k].size_bytes == 3 * 8 * (1 + len(mine))


def test_labels_of_64_bits_arrive_whole():
    names = [2**53 + 1, -(2**62) - 1, 2**63 - 1, 0]
    found = dealt_on_ranks([[np.full(8 - k, float(k)) for k in range(4)], []], [names, []], 2)
    assert sorted(np.concatenate([each.labels for each in found]).tolist()) == sorted(names)
    for each in found:
        assert [names[int(sample[0])] for sample in each.samples] == each.labels.tolist()
    assert all(each.labels.size for each in found)


def test_what_cannot_be_dealt_is_refused_before_processes_start():
    samples, labels = loaders()
    with pytest.raises(BadValueError, match="divide"):
        dealt_on_ranks(samples, labels, 3)
    with pytest.raises(BadValueError, match="label"):
        dealt_on_ranks(samples, [*labels[:3], [1]], 2)
