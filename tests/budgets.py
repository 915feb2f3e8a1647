"""Print this machine's start-up times beside their budgets, lines and claims per paper, and the slowest tests.

``make budgets`` runs this.  Nothing fails here: times belong to machines.  What can be counted is tested: which modules
are imported (``tests/cli/test_entry.py``), how long files and functions are (``tests/meta/test_layout.py``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from wavetank.ledger import catalog

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "wavetank"
DURATIONS = ROOT / ".pytest_cache" / "v" / "wavetank" / "durations"
SLOWEST = 20
WAVETANK = str(Path(sys.executable).with_name("wavetank"))
STUDY = "llm-routing"
NOT_THERE = "not there yet"


def seconds(words: list[str]) -> float:
    """Return the shortest of five wall times of a command."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(words, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


def import_seconds() -> float:
    """Return what the import adds to an interpreter that does nothing."""
    return max(0.0, seconds([sys.executable, "-c", "import wavetank"]) - seconds([sys.executable, "-c", "pass"]))


def there(study: str) -> bool:
    """Return whether a study can be run in this version."""
    return not subprocess.run([WAVETANK, "show", study], capture_output=True).returncode


def first_line_seconds() -> float | None:
    """Return how long the study takes to its first figure, its code compiled and cached before."""
    if not there(STUDY):
        return None
    with tempfile.TemporaryDirectory() as folder:
        words = [WAVETANK, "compare", STUDY, "--plain", "--seeds", "1", "--out", folder]
        subprocess.run(words, check=True, capture_output=True)
        start = time.perf_counter()
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            if process.stderr is None:
                return None
            took = next((time.perf_counter() - start for line in process.stderr if " of " in line), None)
            process.stderr.read()
        return took


def demo_seconds() -> float | None:
    """Return how long the study takes from nothing compiled to the report."""
    if not there(STUDY):
        return None
    cache = tempfile.mkdtemp()
    try:
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            subprocess.run(
                [WAVETANK, "compare", STUDY, "--plain", "--out", folder],
                check=True,
                capture_output=True,
                env={**os.environ, "NUMBA_CACHE_DIR": cache},
            )
            return time.perf_counter() - start
    finally:
        shutil.rmtree(cache)


FIGURES: list[tuple[str, float, Callable[[], float | None]]] = [
    ("import wavetank", 0.15, import_seconds),
    ("wavetank --help", 0.3, lambda: seconds([WAVETANK, "--help"])),
    ("wavetank list", 0.4, lambda: seconds([WAVETANK, "list"])),
    (f"first figure of compare {STUDY}, compiled before", 5.0, first_line_seconds),
    (f"whole compare {STUDY}, nothing compiled", 60.0, demo_seconds),
]


def lines(folder: Path) -> int:
    """Return the lines of Python below a folder."""
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in folder.rglob("*.py"))


def papers() -> list[tuple[str, str, int, int, int, int]]:
    """Return, per paper: name, problem, lines of its systems' own modules, of the problem, of its tests, and claims."""
    rows = []
    for paper in catalog.built_in().papers.values():
        systems = [entry for entry in catalog.built_in() if entry.paper == paper.name]
        modules = {entry.object.partition(":")[0] for entry in systems}
        own = [SOURCE.joinpath(*module.split(".")[1:]).with_suffix(".py") for module in modules]
        home = f"{systems[0].area}/{systems[0].problem}"
        rows.append((
            paper.name,
            home,
            sum(len(file.read_text(encoding="utf-8").splitlines()) for file in own),
            lines(SOURCE / home),
            lines(ROOT / "tests" / home),
            sum(len(entry.claims) for entry in systems),
        ))  # fmt: skip
    return sorted(rows, key=lambda row: -row[2])


def main() -> None:
    """Measure and print one line per figure, per paper and per slow test."""
    write = sys.stdout.write
    write(f"{'':52} {'measured':>10} {'budget':>8}\n")
    for what, budget, measure in FIGURES:
        took = measure()
        shown = NOT_THERE if took is None else f"{took:.2f} s"
        mark = "  over" if took is not None and took > budget else ""
        write(f"{what:52} {shown:>10} {budget:>6.2f} s{mark}\n")
        sys.stdout.flush()
    write(f"\n{'paper':20} {'problem':24} {'own modules':>11} {'problem':>8} {'tests':>7} {'claims':>7}\n")
    for name, home, own, whole, tests, claims in papers():
        write(f"{name:20} {home:24} {own:11} {whole:8} {tests:7} {claims:7}\n")
    write(f"{'all of src':57} {lines(SOURCE):8} {lines(ROOT / 'tests'):7}\n")
    if not DURATIONS.exists():
        write("\nThe slowest tests are known after `make test`.\n")
        return
    write(f"\nslowest tests of the last run{'seconds':>24}\n")
    took_s = json.loads(DURATIONS.read_text(encoding="utf-8"))
    for test, seconds_of_test in sorted(took_s.items(), key=lambda item: -item[1])[:SLOWEST]:
        write(f"{seconds_of_test:9.1f}  {test}\n")


if __name__ == "__main__":
    main()
