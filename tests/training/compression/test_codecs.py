"""Codecs of a field: within the bound, and the same bytes as schemes send."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.compression.codecs import Copy, FrameCodec, WholeCompressor
from wavetank.training.compression.frames import FIXED, BadFrameError, encode_frame

FIELD = np.cumsum(np.random.default_rng(0).normal(size=(3, 20, 90)), axis=2).astype(np.float32)


@pytest.mark.parametrize("codec", [
    FrameCodec(), FrameCodec(mode="fixed", predictor="none"), FrameCodec(mode="raw"), FrameCodec(mode="blocks"),
    WholeCompressor(), WholeCompressor(library="zfp"), Copy(),
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


def test_frames_of_another_shape_are_refused_before_room_is_made():
    codec = FrameCodec()
    data = codec.compress(FIELD, 0.1)
    for shape in ((2, 20, 90), (3, 20, 91), (0,)):
        with pytest.raises(BadFrameError):
            codec.decompress(data, shape, 0.1)
    # Many frames of few bytes that stand for many integers.
    hostile = encode_frame(np.zeros(1 << 20, np.int32), FIXED) * 1000
    with pytest.raises(BadFrameError, match="no frame"):
        codec.decompress(hostile, (1 << 20,), 0.1)
    with pytest.raises(BadFrameError, match="no frame"):
        codec.decode(hostile)


@pytest.mark.parametrize("library", ["sz3", "zfp"])
def test_libraries_are_given_numbers_and_bounds_alone(library):
    codec, wrong = WholeCompressor(library=library), FIELD.copy()
    wrong[1, 2, 3] = np.nan
    for values, bound in ((wrong, 0.1), (FIELD[:0], 0.1), (FIELD, 0.0), (FIELD, float("nan")), (FIELD, -1.0)):
        with pytest.raises(BadValueError):
            codec.compress(values, bound)


def test_unknown_modes_and_libraries_are_refused():
    for wrong in (
        lambda: FrameCodec(mode="x"),
        lambda: FrameCodec(predictor="x"),
        lambda: WholeCompressor(library="x"),
    ):
        with pytest.raises(BadValueError):
            wrong()
