"""Members have the numbers of a field, turned, or gradients with a part in common."""

import numpy as np
import pytest

from wavetank.errors import BadFileError, DataUnavailableError, UnknownNameError
from wavetank.training.compression import workload
from wavetank.training.compression.workload import DATA, FILE, field, members, read_field
from wavetank.workloads import datasets


def test_fields_are_unpacked_by_scale_and_offset():
    try:
        path = datasets.find(DATA, FILE)
    except DataUnavailableError as error:
        pytest.skip(error.problem)
    u, z = field("u"), field("z")
    assert u.shape == z.shape == (6, 241, 480)
    assert u.dtype == np.float32
    # Winds in m/s; geopotential grows with height.
    assert -40 < u.min() < -5 < 40 < u.max() < 120
    assert z.mean(axis=(1, 2)).max() > 2 * z.mean(axis=(1, 2)).min() > 0
    with pytest.raises(BadFileError, match="no such field"):
        read_field(str(path), "q")


def test_what_is_no_file_of_fields_is_refused(tmp_path):
    wrong = tmp_path / "x.nc"
    for content in (b"", b"CDF\x02", b"hello" * 100):
        wrong.write_bytes(content)
        with pytest.raises(BadFileError, match="no such field"):
            read_field(str(wrong), "u")
    with pytest.raises(UnknownNameError, match="field"):
        field("w")


def test_members_are_one_field_turned_by_angles_of_their_own():
    one, same, other = members("u", 3, 0), members("u", 3, 0), members("u", 3, 1)
    assert all(np.array_equal(a, b) for a, b in zip(one.values, same.values, strict=True))
    assert not np.array_equal(one.values[0], other.values[0])
    assert not np.array_equal(one.values[0], one.values[1])
    assert one.spread == float(one.values[0].max()) - float(one.values[0].min())
    for each in one.values:
        # Rows hold the same numbers.
        assert np.array_equal(np.sort(each.reshape(one.shape), axis=2), np.sort(field("u"), axis=2))


@pytest.mark.parametrize(("count", "shape"), [(1, (1, 1)), (480, (1, 480)), (1000, (2, 480))])
def test_a_part_of_a_field_is_whole_rows(count, shape):
    given = members("u", 2, 0, count)
    assert given.shape == shape
    assert given.values[0].size == np.prod(shape)


def test_without_the_data_set_waves_are_drawn(monkeypatch):
    def absent(name, file=None):
        raise DataUnavailableError("It is not there.")

    monkeypatch.setattr(workload.datasets, "find", absent)
    waves = field.__wrapped__("u")
    assert waves.shape == (6, 241, 480)
    assert np.array_equal(waves, field.__wrapped__("u"))
    assert np.abs(np.diff(waves, axis=2)).mean() < 0.1 * waves.std()


def test_gradients_have_a_common_part_of_low_rank_and_layers_of_their_own_scale():
    given = members("gradients", 4, 3)
    first, second = (np.array(given.values)[:, :262144], np.array(given.values)[:, 262144:])
    assert not 0.5 < first.std() / second.std() < 2
    assert 0.2 < np.corrcoef(first[0], first[1])[0, 1] < 0.8
    strengths = np.linalg.svd(first.mean(axis=0).reshape(512, 512), compute_uv=False)
    assert strengths[3] > 2 * strengths[4]
    assert members("gradients", 2, 0, 100).values[0].shape == (100,)
