"""Budgets bind what the process really grows by, and large right histories are decided."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

MIB = 2**20

WORK = """
    import json, resource, sys
    from test_alone_and_together import simulated
    from wavetank.protocols.consistency.engine import Limits, judge, judge_all
    from wavetank.protocols.consistency.generate import append_history
    from wavetank.protocols.history import History, Operation

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def sets(n):
        rows = [Operation(process=str(at), action="add", value=at, invoked=0.0, returned=1.0) for at in range(n)]
        reads = [Operation(process="r", action="read", result=list(range(0, n, 2)), invoked=0.5, returned=1.0),
                 Operation(process="q", action="read", result=list(range(1, n, 2)), invoked=0.6, returned=1.0)]
        return History(operations=(*rows, *reads))

    # Everything is compiled, and the libraries are loaded, before growth counts.
    judge_all(append_history(transactions=20, seed=0))
    judge_all(simulated("rw-register", 1))
    judge(sets(2), "linearizable")
    limits = Limits(seconds=20.0, memory_bytes=int(sys.argv[2]))
    histories = {
        "lists": lambda: append_history(transactions=3000, seed=1),
        "sets": lambda: sets(400),
        "large": lambda: append_history(transactions=10_000, seed=2),
    }
    history = histories[sys.argv[1]]()
    built = peak()
    found = {name: judge(history, name, limits=limits, prefix=False).outcome for name in sys.argv[3:]}
    print(json.dumps({"grown": peak() - built, "found": found}))
"""


def measured(which, memory_bytes, *models):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WORK), which, str(memory_bytes), *models],
        capture_output=True, text=True, check=True, timeout=600, cwd=__file__.rsplit("/", 1)[0],
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("which", "budget", "models"),
    [
        ("lists", 128 * MIB, ("linearizable", "strict-serializable", "causal", "read-committed", "snapshot-isolation")),
        ("sets", 64 * MIB, ("linearizable",)),
    ],
)
def test_a_process_grows_by_no_more_than_its_budget(which, budget, models):
    found = measured(which, budget, *models)
    # The interpreter gives back memory late.
    assert found["grown"] < 1.25 * budget + 16 * MIB, found
    assert "violated" not in found["found"].values()


def test_ten_thousand_transactions_are_right_in_less_than_a_gibibyte():
    found = measured("large", 900 * MIB, "linearizable", "strict-serializable", "serializable")
    assert set(found["found"].values()) == {"holds"}
    assert found["grown"] < 900 * MIB
