"""The sorts of other libraries behind our interface."""

import sys

import numpy as np
import pytest

from wavetank.errors import BadValueError, MissingExtraError
from wavetank.kernels import peers

ALL = [
    peers.NumpySort, peers.NumpyStableSort, peers.PolarsSort, peers.PyarrowSort, peers.DuckDBSort,
    peers.CountingSort, peers.RadixSort,
]  # fmt: skip


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_every_peer_sorts_as_numpy_does_and_leaves_its_input_alone(kind, bits):
    if kind is peers.CountingSort and bits > 16:
        pytest.skip("counting-sort takes up to 16 bits")
    keys = np.random.default_rng(bits).integers(0, (1 << bits) - 1, 3001, dtype=f"uint{bits}", endpoint=True)
    keys.flags.writeable = False
    kept = keys.copy()
    sorter = kind()
    wanted = np.sort(keys)
    np.testing.assert_array_equal(sorter.sort(keys), wanted)
    call = sorter.prepare(keys)
    for _ in range(2):
        np.testing.assert_array_equal(np.asarray(call()), wanted)
    np.testing.assert_array_equal(keys, kept)


@pytest.mark.parametrize("kind", ALL)
def test_every_peer_declares_what_it_needs(kind):
    assert kind().scratch_bytes(1000, np.uint16) >= 0
    assert kind().bytes_moved(1000, np.uint16) >= 4000


@pytest.mark.parametrize(("kind", "library"), [(peers.PolarsSort, "polars"), (peers.PyarrowSort, "pyarrow")])
def test_a_library_that_is_not_installed_is_named_with_the_command(kind, library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'wavetank\[kernels\]'"):
        kind().prepare(np.zeros(1, np.uint16))


@pytest.mark.parametrize(
    ("kind", "dtype"), [(peers.CountingSort, np.uint32), (peers.CountingSort, np.int16), (peers.RadixSort, np.float32)]
)
def test_the_textbook_sorts_refuse_what_they_cannot_sort(kind, dtype):
    with pytest.raises(BadValueError, match="takes unsigned keys"):
        kind().sort(np.zeros(3, dtype))
