"""Print this machine's start-up and first-answer times beside their budgets: ``make budgets``.

Nothing fails here: times belong to machines.  What can be counted (which modules are imported) is tested in
``tests/cli/test_entry.py``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

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


def main() -> None:
    """Measure and print one line a figure."""
    write = sys.stdout.write
    write(f"{'':52} {'measured':>10} {'budget':>8}\n")
    for what, budget, measure in FIGURES:
        took = measure()
        shown = NOT_THERE if took is None else f"{took:.2f} s"
        mark = "  over" if took is not None and took > budget else ""
        write(f"{what:52} {shown:>10} {budget:>6.2f} s{mark}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
