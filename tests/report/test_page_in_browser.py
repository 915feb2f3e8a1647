"""The page in a real browser: the script runs without a complaint, sorts, copies and toggles; nothing overflows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from wavetank.report import render
from wavetank.run.comparison import Comparison, load

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
def held() -> Iterator[str]:
    """Serve ``/wait``, which is answered once ``/done`` was asked for: till then, a page with such a picture loads."""
    done = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/done"):
                done.set()
            else:
                done.wait(40)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    done.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def ask(tmp_path: Path, browse: Browse, held: str) -> Callable[[str, str], Any]:
    """Run a script in a page that is through with its own and return what it gives back."""

    def run(html: str, script: str) -> Any:
        # The answer is kept in the page's title, which is part of the document that is printed when it is loaded.
        answer = f"document.title = JSON.stringify(await (async () => {{{script}}})());"
        probe = (
            f'<img src="{held}/wait" alt=""><script>(async () => {{ try {{ {answer} }} finally '
            f'{{ new Image().src = "{held}/done"; }} }})();</script>'
        )
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

        const figure = document.getElementById("chart-tail-latency-as-load-grows");
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
    assert lines[1].split(",")[:5] == ["random", repr(row.median), repr(row.low), repr(row.high), "8"]
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


LABELS = """
  const touching = [];
  for (const svg of document.querySelectorAll("svg.chart")) {
    const frame = svg.getBoundingClientRect();
    const boxes = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
    boxes.forEach(([text, box], number) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1) touching.push([svg.closest("figure").id, text]);
      for (const [other, its] of boxes.slice(number + 1)) {
        const across = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const up = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        if (across > 0 && up > 0) touching.push([svg.closest("figure").id, text, other, across, up]);
      }
    });
  }
  return { charts: document.querySelectorAll("svg.chart").length, touching };
"""
EVIDENCE = Path(__file__).parents[2] / "evidence"


@pytest.mark.parametrize(
    "kept", ["stencil-machines/default", "proxy-speed/64-clients", "sort-integers/16-bit-256MB", "spmv/quiet"]
)
def test_labels_of_charts_never_touch(kept: str, ask: Callable[[str, str], Any]) -> None:
    answer = ask(render(load(EVIDENCE / kept)), LABELS)
    assert answer["charts"] > 2
    assert answer["touching"] == []


def test_labels_of_every_kind_of_chart_never_touch(routing: Comparison, ask: Callable[[str, str], Any]) -> None:
    answer = ask(render(routing), LABELS)
    assert answer["charts"] == 7
    assert answer["touching"] == []


def test_figures_are_shown_below_the_pointer_and_with_the_arrow_keys(
    routing: Comparison, ask: Callable[[str, str], Any]
) -> None:
    answer = ask(
        render(routing),
        """
        const tip = document.querySelector(".tip");
        const chart = JSON.parse(document.getElementById("numbers").textContent).charts;
        const at = (slug, number) => {
          const svg = document.querySelector(`#${slug} svg.chart`), matrix = svg.getScreenCTM();
          const [, x, y] = chart[slug].panels[0].marks[number];
          const place = { clientX: matrix.a * x + matrix.e, clientY: matrix.d * y + matrix.f, bubbles: true };
          svg.dispatchEvent(new PointerEvent("pointermove", place));
          const lines = svg.querySelectorAll(".pointer line").length;
          return [tip.hidden, tip.querySelector("p").textContent, tip.querySelectorAll("div").length,
                  tip.querySelector(".nearest").textContent, lines];
        };
        const curve = at("chart-tail-latency-as-load-grows", 0), bar = at("chart-imbalance", 1);
        const svg = document.querySelector("#chart-imbalance svg.chart");
        svg.dispatchEvent(new PointerEvent("pointerleave"));
        const left = [tip.hidden, svg.querySelectorAll(".pointer").length];
        svg.focus();
        const seen = [];
        for (const key of ["ArrowDown", "ArrowDown", "ArrowUp", "ArrowUp", "Escape"]) {
          svg.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
          seen.push(tip.hidden ? "" : tip.querySelector(".nearest span").textContent);
        }
        return { curve, bar, left, seen, focused: document.activeElement === svg, role: tip.getAttribute("role") };
        """,
    )
    hidden, place, lines, nearest, cross = answer["curve"]
    assert (hidden, place, lines, cross) == (False, "load 0.5, ttft p99", 9, 2)
    assert re.fullmatch(r"round-robin[\d,.]+ \([\d,.]+ to [\d,.]+\) ms", nearest)
    assert answer["bar"][1:3] == ["imbalance", 1]
    assert answer["left"] == [True, 0]
    assert answer["seen"] == ["round-robin", "random", "round-robin", "round-robin", ""]
    assert (answer["focused"], answer["role"]) == (True, "status")


def test_systems_and_columns_are_filtered(routing: Comparison, ask: Callable[[str, str], Any]) -> None:
    answer = ask(
        render(routing),
        """
        const box = document.getElementById("filter"), table = document.querySelector("table.figures");
        const check = (text) => [...box.querySelectorAll("label")].find((label) => label.textContent === text)
          .querySelector("input").click();
        const seen = () => ({
          rows: [...table.tBodies[0].rows].filter((row) => row.offsetParent).length,
          columns: [...table.tHead.rows[0].cells].filter((cell) => cell.offsetParent).length,
          bars: document.querySelectorAll("#chart-imbalance .series:not(.off)").length,
        });
        const before = seen();
        check("random");
        check("ttft p99");
        const after = seen();
        let copied = "";
        Object.defineProperty(navigator, "clipboard", { value: { writeText: async (text) => { copied = text; } } });
        document.getElementById("copy").click();
        await new Promise((next) => setTimeout(next, 50));
        const key = document.querySelector("#chart-tail-latency-as-load-grows .legend [aria-pressed=false]");
        check("random");
        return { before, after, again: seen(), copied, key: key.textContent.trim() };
        """,
    )
    before, after = answer["before"], answer["after"]
    assert (before["rows"] - after["rows"], before["columns"] - after["columns"]) == (1, 1)
    assert before["bars"] == answer["again"]["bars"] > after["bars"] >= before["bars"] * 8 // 9
    assert answer["key"] == "random"
    assert "random" not in answer["copied"]
    assert "ttft_p99_s" not in answer["copied"]
    assert "ttft_p50_s" in answer["copied"]


def test_figures_and_pictures_are_downloaded(routing: Comparison, ask: Callable[[str, str], Any]) -> None:
    answer = ask(
        render(routing),
        """
        const files = {};
        let blob = null;
        URL.createObjectURL = (given) => { blob = given; return "data:,"; };
        HTMLAnchorElement.prototype.click = function () { files[this.download] = blob; };
        document.getElementById("save").click();
        const tools = (slug) => [...document.querySelectorAll(`#${slug} .tools button`)];
        const slugs = ["forest", "chart-throughput-against-tail-latency", "chart-time-to-first-token-all-requests"];
        for (const slug of slugs) for (const tool of tools(slug)) tool.click();
        const sizes = {};
        for (let turn = 0; turn < 500 && Object.keys(files).length < 7; turn += 1) {
          await new Promise((next) => setTimeout(next, 20));
        }
        for (const [name, file] of Object.entries(files)) {
          const bytes = new DataView(await file.arrayBuffer());
          sizes[name] = name.endsWith("png") ? [bytes.getUint32(16), bytes.getUint32(20)]
            : (await file.text()).split("\\r\\n").slice(0, 2);
        }
        return sizes;
        """,
    )
    assert len(answer) == 7
    assert answer["llm-routing-figures.csv"][0].startswith("system,imbalance_tokens (tokens)")
    head, first = answer["llm-routing-chart-time-to-first-token-all-requests.csv"]
    assert head == "panel,system,quantile,ttft (ms),low,high"
    assert first.split(",")[:2] == ["", "round-robin"]
    assert answer["llm-routing-forest.csv"][0] == "panel,system,place,ratio,low,high"
    assert all(min(size) > 500 for name, size in answer.items() if name.endswith(".png"))


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
    done = browse(outer, "--dump-dom", "--virtual-time-budget=3000", "--window-size=600,1000")
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
