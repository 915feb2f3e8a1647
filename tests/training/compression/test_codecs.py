"""Codecs of a field: within the bound, and the same bytes as schemes send."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.compression.codecs import Copy, FrameCodec, WholeCompressor
from wavetank.training.compression.frames import BadFrameError

FIELD = np.cumsum(np.random.default_rng(0).normal(size=(3, 20, 90)), axis=2).astype(np.float32)


@pytest.mark.parametrize("codec", [
    FrameCodec(), FrameCodec(mode="fixed", predictor="none"), FrameCodec(mode="raw"), WholeCompressor(),
    WholeCompressor(library="zfp"), Copy(),
], ids=repr)  # fmt: skip
def test_what_comes_back_is_within_the_bound(codec):
    if isinstance(codec, WholeCompressor):
        pytest.importorskip({"sz3": "pysz", "zfp": "zfpy"}[codec.library], reason="needs the extra codecs")
    data = codec.compress(FIELD, 0.1)
    back = codec.decompress(data, FIELD.shape, 0.1)
    assert back.shape == FIELD.shape
    assert np.abs(back.astype(np.float64) - FIELD).max() <= 0.1 + 1e-5
    assert (len(data) == FIELD.nbytes) == isinstance(codec, Copy)


def test_coding_by_entropy_and_neighbours_both_take_fewer_bytes():
    entropy, packed, alone = (
        len(codec.compress(FIELD, 0.1))
        for codec in (FrameCodec(), FrameCodec(mode="fixed"), FrameCodec(mode="fixed", predictor="none"))
    )
    assert entropy < packed < alone < FIELD.nbytes


def test_integers_are_those_of_frames():
    codec = FrameCodec()
    integers = codec.integers(FIELD, 0.1)
    assert np.array_equal(codec.decode(codec.encode(integers)), integers)
    assert codec.decode(codec.encode(integers[:0])).size == 0
    with pytest.raises(BadFrameError, match="no frame"):
        codec.decode(b"")


def test_unknown_modes_and_libraries_are_refused():
    for wrong in (
        lambda: FrameCodec(mode="x"),
        lambda: FrameCodec(predictor="x"),
        lambda: WholeCompressor(library="x"),
    ):
        with pytest.raises(BadValueError):
            wrong()
