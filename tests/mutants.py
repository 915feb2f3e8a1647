"""Change the modules that verdicts and safety rest on, one small change at a time, and count which tests notice.

``make mutants`` runs this; it takes a test run for every change, so it is no part of ``make test``.  The changes are
made by cosmic-ray in a copy of the checkout, never in the checkout itself.  A change that no test notices is printed
as a difference: either a test is missing, or the change makes no difference.

    python tests/mutants.py                       # a sample of changes of every module of the list
    python tests/mutants.py summary wire          # of two modules
    python tests/mutants.py summary --sample 0    # every change
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
AIM = 0.95
TIMEOUT_S = 300.0

# Module, and the tests that must notice its changes.
MODULES: dict[str, tuple[str, str]] = {
    "summary": ("study/summary.py", "tests/study/test_summary.py"),
    "effects": ("study/effects.py", "tests/study/test_effects.py tests/study/test_calibration.py"),
    "answer": ("study/answer.py", "tests/study/test_answer.py"),
    "claims": ("ledger/claims.py", "tests/ledger/test_claims.py"),
    "verdicts": ("ledger/verdicts.py", "tests/ledger/test_verdicts.py"),
    "study": ("study/study.py", "tests/study/test_study.py"),
    "timing": ("study/timing.py", "tests/study/test_timing.py"),
    "catalog": ("ledger/catalog.py", "tests/ledger/test_catalog.py"),
    "compiled": ("sim/compiled.py", "tests/sim/test_compiled.py"),
    "wire": ("live/wire.py", "tests/live"),
    "durable": ("live/durable.py", "tests/live"),
    "schemes": ("kernels/products/schemes.py", "tests/kernels/products"),
    "decision": ("kernels/products/decision.py", "tests/kernels/products"),
    "exchange": ("serving/proxy/backend_exchange.py", "tests/serving/proxy"),
    "explorer": ("check/explore/core.py", "tests/check/explore"),
    "threads": ("machine/threads.py", "tests/machine"),
    "balance-route": ("serving/routing/balance_route.py", "tests/serving/routing"),
}
# With annotations that are never evaluated, these change nothing that runs.
SKIPPED_OPERATORS = ("core/ReplaceBinaryOperator_BitOr_",)


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """Copy the files that git tracks or would track into a temporary folder."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    with tempfile.TemporaryDirectory(prefix="wavetank-mutants-") as name:
        folder = Path(name)
        for each in listed:
            if each and (ROOT / each).is_file():
                (folder / each).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / each, folder / each)
        yield folder


def measured(folder: Path, name: str, sample: int) -> tuple[int, int, list[str]]:
    """Return how many changes of a module were noticed, how many were made, and those that nobody noticed."""
    from cosmic_ray.commands import init
    from cosmic_ray.mutating import mutate_and_test
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import TestOutcome

    module, tests = MODULES[name]
    with contextlib.chdir(folder):
        with use_db(str(folder / f"{name}.sqlite"), WorkDB.Mode.create) as database:
            init([Path("src/wavetank") / module], database, {})
            wanted = [
                item.mutations
                for item in database.work_items
                if not any(each.operator_name.startswith(SKIPPED_OPERATORS) for each in item.mutations)
            ]
        if sample and len(wanted) > sample:
            wanted = random.Random(0).sample(wanted, sample)
        command = f"env PYTHONPATH={folder / 'src'} {sys.executable} -m pytest -x -q -p no:cacheprovider {tests}"
        if subprocess.run(command.split(), capture_output=True).returncode:
            raise SystemExit(f"The tests of {name} fail without any change: {tests}")
        results = [mutate_and_test(mutations=each, test_command=command, timeout=TIMEOUT_S) for each in wanted]
    survivors = [result.diff or "" for result in results if result.test_outcome == TestOutcome.SURVIVED]
    return len(results) - len(survivors), len(results), survivors


def main() -> int:
    """Print one line a module and the unnoticed changes; exit 1 where fewer than the aim were noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=", ".join(MODULES))
    parser.add_argument("--sample", type=int, default=40, help="changes per module; 0 makes all (default: %(default)s)")
    given = parser.parse_args()
    if unknown := set(given.modules) - set(MODULES):
        parser.error(f"not in the list: {', '.join(sorted(unknown))}; the list: {', '.join(MODULES)}")
    write = sys.stdout.write
    below = []
    with copied() as folder:
        for name in given.modules or MODULES:
            noticed, made, survivors = measured(folder, name, given.sample)
            for each in survivors:
                write(f"{each}\n")
            rate = noticed / made if made else 1.0
            write(f"{name:15} {noticed} of {made} changes noticed, {rate:.0%}\n")
            sys.stdout.flush()
            if rate < AIM:
                below.append(name)
    if below:
        write(f"below {AIM:.0%}: {', '.join(below)}\n")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
