"""Two-line elements: the columns of the format, odd old records, and files that are none."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.insight.orbits.made import line, record, written

from wavetank.errors import BadTraceError, DataUnavailableError
from wavetank.workloads import datasets
from wavetank.workloads.tle import DAY_NS, checksum, looks_like_tle, read_manoeuvres, read_tle

# The first record of the verification set of SGP4 (Vallado et al., Revisiting Spacetrack Report 3).
VANGUARD = (
    "1 00005U 58002B   00179.78495062  .00000023  00000-0  28098-4 0  4753",
    "2 00005  34.2682 348.7242 1859667 331.7664  19.3264 10.82419157413667",
)


def test_every_field_of_a_known_record(tmp_path):
    (of,) = read_tle(written(tmp_path, "a.tle", [VANGUARD])).values()
    assert (of.number, len(of)) == (5, 1)
    # 2000-06-27, 18:50:19.733568 UTC
    assert of.epoch_ns.tolist() == [962131819733568000]
    assert of.mean_motion[0] == 10.82419157 and of.eccentricity[0] == 0.1859667
    assert (of.inclination_deg[0], of.node_deg[0]) == (34.2682, 348.7242)
    assert (of.perigee_deg[0], of.anomaly_deg[0]) == (331.7664, 19.3264)
    assert of.drag[0] == pytest.approx(2.8098e-5, rel=1e-12) and of.motion_rate[0] == 2.3e-7
    assert of.lines == (VANGUARD,)


def test_the_checksum_counts_a_minus_as_one():
    for text in VANGUARD:
        assert checksum(text) == int(text[68])
    assert checksum("1 -".ljust(68)) == 2


@pytest.mark.parametrize(
    ("drag", "value"),
    [("-11606-4", -1.1606e-5), (" 00000-0", 0.0), (" 00000+0", 0.0), ("+12345+1", 1.2345), ("+0153801", 0.1538),
     ("+01538 1", 0.1538)],
)  # fmt: skip
def test_fields_without_a_point(tmp_path, drag, value):
    (of,) = read_tle(written(tmp_path, "a.tle", [record(drag=drag)])).values()
    assert of.drag[0] == pytest.approx(value, rel=1e-12)


def test_records_are_put_in_order_and_of_one_epoch_the_last_is_kept(tmp_path):
    late, early = "24003.50000000", "24001.50000000"
    records = [record(epoch=late), record(epoch=early), record(epoch=late, motion=15.0)]
    (of,) = read_tle(written(tmp_path, "a.tle", records)).values()
    assert np.diff(of.epoch_ns).tolist() == [2 * DAY_NS] and of.mean_motion.tolist() == [14.2, 15.0]
    assert of.left_out == {"an epoch again": 1}


def test_names_may_stand_before_records_and_a_file_may_hold_many_satellites(tmp_path):
    path = tmp_path / "many.3le.gz"
    records = [record(number=25544), VANGUARD, record(number=25544, epoch="57002.00000000")]
    text = "\ufeff" + "".join(f"0 SATELLITE\r\n{one}  \r\n{two}\r\n" for one, two in records)
    path.write_bytes(gzip.compress(text.encode()))
    found = read_tle(path)
    assert list(found) == [25544, 5] and [len(each) for each in found.values()] == [2, 1]
    # 57 and later are of the last century.
    assert found[25544].epoch_ns[0] < 0


def test_letters_stand_for_catalogue_numbers_of_six_digits(tmp_path):
    one, two = record()
    one, two = line(one[:2] + "J0027" + one[7:68]), line(two[:2] + "J0027" + two[7:68])
    assert list(read_tle(written(tmp_path, "a.tle", [(one, two)]))) == [180027]


def test_the_366th_day_exists_in_leap_years_alone(tmp_path):
    assert read_tle(written(tmp_path, "a.tle", [record(epoch="24366.99999999")]))
    for epoch in ("23366.00000000", "24000.50000000", "24367.00000000", "2400x.50000000"):
        with pytest.raises(BadTraceError) as raised:
            read_tle(written(tmp_path, "b.tle", [record(epoch=epoch)]))
        assert raised.value.given == "an epoch that is none"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda one, two: (one[:20] + "9" + one[21:], two), "a wrong checksum"),
        (lambda one, two: (one[:60], two), "a line of another length"),
        (lambda one, two: (one, line("2 00006" + two[7:68])), "two lines of different satellites"),
        (lambda one, two: (one, line(two[:8] + "181.0000" + two[16:68])), "an angle outside its range"),
        (lambda one, two: (one, line(two[:8] + "     nan" + two[16:68])), "a field that is no number"),
        (lambda one, two: (one, line(two[:8] + "  1_0.00" + two[16:68])), "a field that is no number"),
        (lambda one, two: (one, line(two[:52] + "99.00000000" + two[63:68])),
         "a mean motion outside 0 to 20 revolutions per day"),
        (lambda one, two: (one, line(two[:52] + "00.00000000" + two[63:68])),
         "a mean motion outside 0 to 20 revolutions per day"),
        (lambda one, two: (one, line(two[:26] + "-000123" + two[33:68])), "a field that is no number"),
        (lambda one, two: (one, one), "a first line without a second"),
        (lambda one, two: (two, one), "a second line without a first"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_left_out_by_reason(tmp_path, change, reason):
    bad = change(*record())
    (of,) = read_tle(written(tmp_path, "a.tle", [VANGUARD, bad, VANGUARD])).values()
    assert len(of) == 1 and of.left_out[reason] >= 1
    with pytest.raises(BadTraceError):
        read_tle(written(tmp_path, "b.tle", [bad]))


def test_records_without_a_checksum_are_taken(tmp_path):
    one, two = VANGUARD
    assert read_tle(written(tmp_path, "a.tle", [(one[:68], two[:68])]))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 137), st.characters(codec="utf-8")), max_size=4), st.integers(0, 140))
def test_damaged_records_are_refused_or_hold_finite_numbers(tmp_path_factory, changes, cut):
    text = list("\n".join(VANGUARD))
    for at, letter in changes:
        text[at] = letter
    path = tmp_path_factory.mktemp("tle") / "a.tle"
    path.write_text("".join(text)[:cut], encoding="utf-8")
    try:
        found = read_tle(path)
    except BadTraceError:
        return
    for of in found.values():
        assert all(np.isfinite(each).all() for each in (of.mean_motion, of.drag, of.eccentricity, of.node_deg))


def test_files_that_are_none(tmp_path):
    for content in (b"", b"\x00\xff" * 99, b"a,b\n1,2\n"):
        path = tmp_path / "x.tle"
        path.write_bytes(content)
        assert not looks_like_tle(content)
        with pytest.raises(BadTraceError):
            read_tle(path)
    with pytest.raises(BadTraceError):
        read_tle(tmp_path / "absent.tle")
    assert looks_like_tle("\n".join(VANGUARD).encode()) and looks_like_tle(("NAME\n" + "\n".join(VANGUARD)).encode())


def test_lists_of_manoeuvres(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text("SATCAT number: 5\nmanoeuvre_timestamps:\n- 2024-01-02 00:00:01\n- 2024-01-01 00:00:00\nname: X\n")
    number, times = read_manoeuvres(path)
    assert number == 5 and times.tolist() == [1704067200 * 10**9, (1704067200 + 86401) * 10**9]
    for text in ("- 2024-13-01\n", "SATCAT number: x\n", "other: 1\n", "manoeuvre_timestamps:\n"):
        path.write_text(text)
        with pytest.raises(BadTraceError):
            read_manoeuvres(path)


def test_the_data_set_is_read_whole():
    try:
        path = datasets.find("tle-manoeuvres", "TOPEX.tle.gz")
    except DataUnavailableError as error:
        pytest.skip(str(error))
    (of,) = read_tle(path).values()
    assert (of.number, len(of), of.left_out) == (22076, 4136, {})


@pytest.mark.parametrize("blank", ["\x1f", "\t", "\x0b"])
def test_a_control_character_is_no_blank_of_a_catalogue_number(tmp_path, blank):
    one, two = record()
    damaged = [line(each[:6] + blank + each[7:68]) for each in (one, two)]
    with pytest.raises(BadTraceError):
        read_tle(written(tmp_path, "a.tle", [tuple(damaged)]))
