"""The names of issues."""

from wavetank.insight.io.labels import CODES, KINDS, kind


def test_sixteen_codes_are_eleven_kinds() -> None:
    assert len(set(CODES)) == 16 and len(KINDS) == 11
    assert {kind(code) for code in CODES} == set(KINDS) and kind("SML-W") == "SML" and kind("HMD") == "HMD"
