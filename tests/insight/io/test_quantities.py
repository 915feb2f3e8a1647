"""Quantities by name: values that can be counted by hand, and refusals."""

from pathlib import Path

import pytest
from tests.insight.io.jobs import log_of, phase, real

from wavetank.errors import BadTraceError, BadValueError
from wavetank.insight.io.measures import TooLittleError
from wavetank.insight.io.quantities import QUANTITIES, DarshanSource


def test_shares_by_hand() -> None:
    small = phase(name="small", size_bytes=4096, requests=30, pattern="strided", writes=False)
    source = DarshanSource.of(log_of(small, phase(name="large", writes=False, requests=10)))
    of = {"module": "POSIX", "op": "read"}
    assert source.quantity("requests", **of) == 320 and source.quantity("small_share", **of) == 240 / 320
    assert source.quantity("bytes", **of) == 240 * 4096 + 80 * 8 * 2**20
    # Each rank's first large request follows nothing; the rest go on where the last one ended.
    assert source.quantity("consecutive_share", op="read") == 72 / 320
    assert source.quantity("tiny_share", **of) == 0 and source.quantity("opens") == 16
    assert source.quantity("family", code="SML-R") == "POSIX:/scratch/small"
    assert 0 < source.quantity("family_saves_share", code="SML-R") <= source.quantity("saves_share", code="SML-R") <= 1


def test_every_quantity_says_how_it_is_read_and_reads_or_refuses() -> None:
    source = DarshanSource(real("imbalanced-io"))
    arguments = ({}, {"op": "read"}, {"module": "POSIX", "op": "write"}, {"code": "RLIM"}, {"code": "RDA-R"})
    for name in QUANTITIES:
        values = []
        for of in arguments:
            try:
                values.append(source.quantity(name, **of))
            except (TooLittleError, TypeError):
                continue
        assert values and source.how(name), name


def test_logs_of_a_folder_are_named() -> None:
    source = DarshanSource(real("skew-app").parent)
    assert set(source.facts) == {"skew-app.darshan", "skew-autobench-ior.darshan"}
    assert source.quantity("processes", log="skew-app.darshan") == 65_536
    with pytest.raises(BadValueError, match="no such log"):
        source.quantity("processes")


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    source = DarshanSource.of(log_of(phase()))
    for name, of, problem in (
        ("colour", {}, BadValueError), ("requests", {"module": "H5D", "op": "read"}, TooLittleError),
        ("requests", {"module": "POSIX", "op": "erase"}, BadValueError), ("saves_share", {"code": "X"}, BadValueError),
        ("random_share", {"op": "read"}, TooLittleError), ("family", {"code": "RDA-R"}, TooLittleError),
        ("tiny_share", {"module": "STDIO", "op": "read"}, TooLittleError),
    ):  # fmt: skip
        with pytest.raises(problem):
            source.quantity(name, **of)
    with pytest.raises(TooLittleError, match="no logs"):
        DarshanSource(tmp_path)
    (tmp_path / "a.darshan").write_bytes(b"x" * 100)
    with pytest.raises(BadTraceError):
        DarshanSource(tmp_path)
