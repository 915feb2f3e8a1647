"""The study of codecs: results are held to the bound, and rates are bytes over seconds."""

import numpy as np
import pytest

from wavetank.errors import WavetankError
from wavetank.training.compression.codecs import Copy, FrameCodec
from wavetank.training.compression.study_codecs import FrameCodecs

STUDY = FrameCodecs(fields=("u",))


def test_each_field_is_compressed_and_decompressed():
    assert FrameCodecs(fields=("u", "z")).case_names(0) == ["u compress", "u decompress", "z compress", "z decompress"]


def test_calls_do_what_their_case_says():
    case = STUDY.case("u compress", 0)
    data = STUDY.prepared_call(FrameCodec(), case)()
    assert STUDY.result_figures(case, "x", None, data) == {"ratio": case.data.values.nbytes / len(data)}
    other = STUDY.case("u decompress", 0)
    back = STUDY.prepared_call(FrameCodec(), other)()
    STUDY.verify(other, "x", back)
    assert STUDY.result_figures(other, "x", None, back) == {}
    assert STUDY.case_figures(case, "x", {"x": 2.0}, {}) == {"bytes_per_s": case.data.values.nbytes / 2}
    assert case.bytes_moved == 2 * case.data.values.nbytes


def test_what_is_not_within_the_bound_takes_no_part():
    case = STUDY.case("u decompress", 0)
    wrong = np.array(case.data.values)
    wrong[0, 0, 0] += 1.5 * case.data.bound
    with pytest.raises(WavetankError, match="within the bound"):
        STUDY.verify(case, "x", wrong)
    STUDY.verify(case, "x", STUDY.prepared_call(Copy(), case)())
