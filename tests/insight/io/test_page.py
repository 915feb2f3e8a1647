"""The page of an I/O diagnosis."""

from tests.insight.io.jobs import log_of, phase, real

from wavetank.insight.io.diagnose import IoAgent
from wavetank.insight.io.page import io_page
from wavetank.insight.io.quantities import DarshanSource


def test_the_page_shows_where_time_goes_and_the_evidence_beside_each_finding() -> None:
    page = IoAgent().diagnose(real("imbalanced-io")).page
    assert "<svg" in page and "RLIM (load on few ranks)" in page and "saves_share" in page
    assert "incomplete, the recorder" in page and "http://" not in page.replace("http://www.w3.org", "")


def test_names_of_files_cannot_break_out_of_the_page() -> None:
    log = log_of(phase(name="<script>alert(1)</script>", size_bytes=4096, requests=500, pattern="strided"))
    source = DarshanSource.of(log)
    page = io_page(IoAgent().diagnosed(source, "<b>log</b>"), source).page
    assert "<script>alert" not in page and "<b>log" not in page and "&lt;script&gt;" in page


def test_a_log_without_files_has_a_page_without_bars() -> None:
    page = IoAgent().diagnose(real("empty_log")).page
    assert "Nothing was found" in page and "<svg" not in page
