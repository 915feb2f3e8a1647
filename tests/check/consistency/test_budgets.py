"""Budgets bind what the process really grows by, and large right histories are decided."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from wavetank.check.consistency.check import HistoryCheck
from wavetank.check.consistency.engine import Judgement
from wavetank.check.report import Budget

MIB = 2**20

WORK = """
    import json, resource, sys
    from append_histories import append_history
    from test_alone_and_together import simulated
    from wavetank.check.consistency.engine import judge, judge_all
    from wavetank.check.report import Budget
    from wavetank.sim.history import History, Operation

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
    budget = Budget(seconds=20.0, memory_bytes=int(sys.argv[2]))
    histories = {
        "lists": lambda: append_history(transactions=3000, seed=1),
        "sets": lambda: sets(400),
        "large": lambda: append_history(transactions=10_000, seed=2),
    }
    history = histories[sys.argv[1]]()
    built = peak()
    found = {name: judge(history, name, budget=budget, prefix=False).outcome for name in sys.argv[3:]}
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


def recorded(path, operations):
    """Write registers of seven keys in Jepsen's format; clients take turns, so that every model allows it."""
    held = {}
    with path.open("w") as file:
        for number in range(operations):
            process, key = number % 10, number % 7
            write = number % 3 == 0 or key not in held
            if write:
                held[key] = number
            told = held[key]
            for kind, value in (("invoke", told if write else "nil"), ("ok", told)):
                file.write(
                    f"{{:process {process}, :type :{kind}, :f :{'write' if write else 'read'}, "
                    f":value [{key} {value}], :time {2000 * number + 1000 * (kind == 'ok')}}}\n"
                )
    return path


def checked(path, *options):
    """Return exit code, verdicts, bytes by which the process grew at most, and seconds."""
    command = [sys.executable, "-c", textwrap.dedent(CHECK), "check", str(path), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode in (0, 2), done.stderr
    grown, seconds = map(float, done.stderr.splitlines()[-1].split())
    return done.returncode, json.loads(done.stdout)[0]["verdicts"], grown, seconds


CHECK = """
    import resource, sys, time
    import wavetank.cli.check, wavetank.check.consistency.check
    from wavetank.cli.entry import run

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    before, began = peak(), time.monotonic()
    code = run(sys.argv[1:])
    print(peak() - before, time.monotonic() - began, file=sys.stderr)
    sys.exit(code)
"""


def test_a_file_that_outgrows_the_memory_is_undecided(tmp_path):
    path = recorded(tmp_path / "history.edn", 60_000)
    code, verdicts, grown, _ = checked(path, "--memory", "24MiB")
    assert code == 2 and [each["outcome"] for each in verdicts] == ["undecided"]
    assert "memory: 24 MiB were used up" in verdicts[0]["says"] and "--memory" in verdicts[0]["says"]
    # It grows while the watch sleeps.
    assert grown < 2 * 24 * MIB
    code, verdicts, _, _ = checked(path, "--memory", "2MiB")
    assert code == 2 and "the file's" in verdicts[0]["says"]


def test_a_file_that_outlasts_the_time_is_undecided(tmp_path):
    path = recorded(tmp_path / "history.edn", 60_000)
    report = HistoryCheck(models=("linearizable", "causal")).check(path, Budget(seconds=0.05))
    assert [each.outcome for each in report.verdicts] == ["undecided", "undecided"]
    assert all("time: 0.05 s were used up" in each.says for each in report.verdicts)


def test_what_was_decided_before_the_end_stays(tmp_path, monkeypatch):
    def endless(history, models, *, found, **_):
        found["causal"] = Judgement(model="causal", outcome="holds")
        while True:
            pass

    monkeypatch.setattr("wavetank.check.consistency.check.judge_all", endless)
    path = recorded(tmp_path / "history.edn", 10)
    report = HistoryCheck(models=("linearizable", "causal")).check(path, Budget(seconds=0.2))
    assert [(each.name, each.outcome) for each in report.verdicts] == [
        ("linearizable", "undecided"), ("causal", "holds"),
    ]  # fmt: skip
    assert dict(report.facts)["operations"].startswith("10,")


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "memory"), [(10, "4GiB"), (600, "512MiB"), (600, "4GiB")])
def test_a_million_operations_end_within_the_budget(tmp_path, seconds, memory):
    path = recorded(tmp_path / "history.edn", 1_000_000)
    code, verdicts, grown, took = checked(path, "--seconds", f"{seconds}s", "--memory", memory)
    assert verdicts[0]["outcome"] == ("holds" if code == 0 else "undecided")
    assert code == 0 or "were used up" in verdicts[0]["says"]
    assert grown < 1.1 * {"512MiB": 512, "4GiB": 4096}[memory] * MIB
    # Between two steps of Python it ends at once; a busy machine delays the watch.
    assert took < 1.5 * seconds + 20
