"""The page: a bar a service, coloured where it departs, and names that are no HTML."""

from wavetank.diagnosis.findings import Diagnosis, Evidence
from wavetank.insight.repair.page import services_page


def test_services_are_bars_and_names_are_text():
    fact = Evidence(name="services", value=2, how="counted")
    plain = Diagnosis(subject="shop", kind="service-metrics", facts=(fact,), too_little=("nobody <i>knows</i>",))
    page = services_page(plain, {"<script>": 1e12, "calm": -3.0}, ["<script>"]).page
    assert page.count("fill-bad") == 1 + services_page(plain, {"calm": 1.0}, []).page.count("fill-bad")
    assert "<script>" not in page.split("<svg")[1].split("</svg>")[0]
    assert "&lt;script&gt;" in page and "nobody &lt;i&gt;" in page and "Nothing was found." in page


def test_where_nothing_is_known_there_is_no_page():
    plain = Diagnosis(subject="shop", kind="service-metrics")
    assert services_page(plain, {}, []).page == ""


def test_the_first_hundred_are_drawn():
    plain = Diagnosis(subject="shop", kind="service-metrics")
    page = services_page(plain, {f"s{each}": 200.0 - each for each in range(130)}, []).page
    assert "The first 100 of 130" in page and ">s99<" in page and ">s100<" not in page
