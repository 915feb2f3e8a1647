"""The page in a real browser: the script runs without a complaint, sorts, copies and toggles; nothing overflows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from wavetank.comparison import Comparison
from wavetank.report import render

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (apt install chromium)")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--v=0",
    "--virtual-time-budget=3000",
]

Browse = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    """Open a file in a browser of its own and return what it printed."""

    def run(page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BROWSER), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *flags, page.as_uri()],
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.fixture
def ask(tmp_path: Path, browse: Browse) -> Callable[[str, str], Any]:
    """Run a script in a page that is through with its own and return what it gives back."""

    def run(html: str, script: str) -> Any:
        # The answer is kept in the page's title, which is part of the printed document.
        answer = f"document.title = JSON.stringify(await (async () => {{{script}}})());"
        probe = f"<script>(async () => {{ {answer} }})();</script>"
        page = tmp_path / "page.html"
        page.write_text(html.replace("</body>", probe + "</body>"), encoding="utf-8")
        done = browse(page, "--dump-dom", "--window-size=1280,1000")
        assert "CONSOLE" not in done.stderr
        return json.loads(unescape(re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)[1]))

    return run


def test_the_script_sorts_copies_and_toggles(routing: Comparison, ask: Callable[[str, str], Any]) -> None:
    answer = ask(
        render(routing),
        """
        const table = document.querySelector("table.figures");
        const names = () => [...table.tBodies[0].rows].map((row) => row.cells[0].dataset.value);
        const head = (name) => [...table.tHead.rows[0].cells].find((cell) => cell.dataset.name === name);
        const order = {};
        for (const name of ["ttft_p99_s", "goodput_per_s", "system"]) {
          head(name).querySelector("button").click();
          order[name] = [names()[0], head(name).getAttribute("aria-sort")];
        }
        head("goodput_per_s").querySelector("button").click();
        head("goodput_per_s").querySelector("button").click();
        order.again = [names()[0], head("goodput_per_s").getAttribute("aria-sort"), head("system").ariaSort];

        let copied = "";
        Object.defineProperty(navigator, "clipboard", { value: { writeText: async (text) => { copied = text; } } });
        document.getElementById("copy").click();
        await new Promise((next) => setTimeout(next, 50));

        const figure = document.getElementById("chart-3");
        const button = figure.querySelector(".legend button");
        const parts = [...figure.querySelectorAll(`.series[data-series="${button.dataset.series}"]`)];
        button.click();
        const off = parts.every((part) => getComputedStyle(part).display === "none");
        button.click();
        button.dispatchEvent(new Event("focus"));
        return {
          ready: document.documentElement.dataset.ready, order, copied, parts: parts.length, off,
          pressed: button.getAttribute("aria-pressed"), hot: figure.classList.contains("focused"),
          hidden: [...document.querySelectorAll(".needs-script")].filter((node) => !node.offsetParent).length,
        };
        """,
    )
    assert answer["ready"] == "yes"
    assert answer["hidden"] == 0
    assert answer["order"] == {
        "ttft_p99_s": ["balance-route", "ascending"],
        "goodput_per_s": ["balance-route", "descending"],
        "system": ["balance-route", "ascending"],
        "again": ["random", "ascending", None],
    }
    lines = answer["copied"].split("\r\n")
    assert lines[0].startswith(
        "system,imbalance_tokens (tokens),imbalance_tokens low,imbalance_tokens high,imbalance_tok"
    )
    assert len(lines) == 11
    row = next(row for row in routing.rows if (row.system, row.metric) == ("random", "imbalance_tokens"))
    assert lines[1].split(",")[:5] == ["random", repr(row.median), repr(row.low), repr(row.high), "5"]
    assert (answer["parts"], answer["off"], answer["pressed"], answer["hot"]) == (2, True, "true", True)


def test_cases_are_sorted_by_themselves_and_text_is_shown_where_copying_is_refused(
    sorting: Comparison, ask: Callable[[str, str], Any]
) -> None:
    answer = ask(
        render(sorting),
        """
        document.querySelectorAll("table.figures thead button")[1].click();
        Object.defineProperty(navigator, "clipboard", { value: { writeText: () => Promise.reject(new Error()) } });
        document.getElementById("copy").click();
        await new Promise((next) => setTimeout(next, 50));
        const area = document.getElementById("csv");
        return {
          first: [...document.querySelectorAll("table.figures tbody")].map((body) =>
            [body.rows[0].textContent.trim(), body.rows[1].cells[0].dataset.value]),
          csv: area.hidden ? "" : area.value, told: document.getElementById("copied").textContent,
        };
        """,
    )
    assert answer["first"] == [
        ["keys: uniform", "radix"],
        ["keys: zipf", "radix"],
        ["keys: sorted", "learned"],
        ["keys: reversed", "learned"],
        ["keys: constant", "learned"],
        ["keys: two-valued", "radix"],
    ]
    assert answer["csv"].splitlines()[1].startswith("uniform,radix,0.46")
    assert "Ctrl+C" in answer["told"]


def test_nothing_but_tables_is_wider_than_a_telephone(tmp_path: Path, routing: Comparison, browse: Browse) -> None:
    probe = """<script>addEventListener("load", () => {
      const wide = [...document.querySelectorAll("body *")].filter((node) =>
        !node.closest(".scroll, .skip") && node.getBoundingClientRect().right > innerWidth + 1).length;
      parent.postMessage([innerWidth, document.documentElement.scrollWidth, wide], "*");
    });</script>"""
    (tmp_path / "inner.html").write_text(render(routing).replace("</body>", probe + "</body>"), encoding="utf-8")
    outer = tmp_path / "outer.html"
    outer.write_text(
        '<title>none</title><body><script>onmessage = (event) => { document.title = event.data.join(" "); };</script>'
        '<iframe src="inner.html" style="width: 400px; height: 900px; border: 0"></iframe>',
        encoding="utf-8",
    )
    done = browse(outer, "--dump-dom", "--window-size=600,1000")
    assert "<title>400 400 0</title>" in done.stdout


def test_the_page_follows_the_reader_s_colour_scheme(tmp_path: Path, sorting: Comparison, browse: Browse) -> None:
    from PIL import Image

    page = tmp_path / "page.html"
    page.write_text(render(sorting), encoding="utf-8")
    corners = []
    for scheme in (0, 1):
        shot = tmp_path / f"{scheme}.png"
        browse(
            page, f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={shot}", "--window-size=1280,900"
        )
        with Image.open(shot) as image:
            corners.append(image.convert("RGB").getpixel((3, 3)))
    assert corners == [(0x14, 0x17, 0x1B), (255, 255, 255)]
