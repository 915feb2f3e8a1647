"""Study ``linearizability-speed``: how long a checker takes on recorded and generated histories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wavetank.check.consistency.files import read_history
from wavetank.check.consistency.generate import kv_history
from wavetank.check.report import Budget
from wavetank.errors import BadValueError, DataUnavailableError, GaveUpError, WavetankError
from wavetank.settings import setting
from wavetank.sim.history import History
from wavetank.study.study import Chart, Metric
from wavetank.study.timing import Case, TimingStudy
from wavetank.workloads import datasets

DATA = "consistency-histories"
_RECORDED = ("etcd-logs", "c10-ok", "c10-bad", "c50-ok", "c50-bad")
_GENERATED = ("generated-ok", "generated-bad")
CASES = (*_RECORDED, *_GENERATED)


class _Histories(NamedTuple):
    """Histories of a case and whether each is linearizable."""

    histories: tuple[History, ...]
    good: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class LinearizabilitySpeed(TimingStudy):
    """Histories are in memory; what is timed is the verdict.  The recorded ones are Jepsen's etcd logs, all of one case
    judged in one call, and Porcupine's key-value tests with ten and fifty clients on ten keys.  The generated ones are
    far easier than recorded ones of their size, and are there to be varied.
    """

    name = "linearizability-speed"
    baseline = "wing-gong-lowe"
    cases_by = "histories"
    metrics = (
        Metric("gave_up", "", "lower", "counted", "1 if the checker ended without a verdict and so has no time"),
    )
    charts = (
        Chart("bars", "Time to judge the histories of a case", y="time_s", by="histories", log="x",
              says="Lower is better; verdicts of all systems are compared before anything is timed."),
    )  # fmt: skip

    cases_chosen: tuple[str, ...] = setting(CASES, says="Names of the histories", choices=CASES)
    clients: int = setting(50, says="Clients of the generated histories", low=1, high=1000)
    operations: int = setting(1712, says="Operations of the generated histories", low=4, high=100_000)
    keys: int = setting(10, says="Keys of the generated histories", low=1, high=1000)

    def check(self) -> None:
        """Refuse settings of which no history is on this machine."""
        if not self.cases_chosen:
            raise BadValueError("No histories were chosen.", allowed=CASES, where="cases_chosen")
        if not self.case_names(0):
            datasets.find(DATA, _file_of(self.cases_chosen[0]))

    def data(self) -> Mapping[str, str]:
        """Return the checksums of the recorded histories that are judged."""
        wanted = {_file_of(name).removesuffix("expected.csv") for name in self.case_names(0) if name in _RECORDED}
        if not wanted:
            return {}
        files = datasets.entry(DATA).files
        return {f"{DATA}/{file.path}": file.sha256 for file in files if file.path.startswith(tuple(wanted))}

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        absent = [name for name in self.cases_chosen if name not in self.case_names(0)]
        left_out = f"Left out, for their histories are not on this machine (wavetank data fetch {DATA}): "
        return (
            *((f"{left_out}{', '.join(absent)}.",) if absent else ()),
            "A system that gives up on a case has gave_up 1 there and no time.",
            "wing-gong-lowe is plain Python, for the algorithm; Porcupine, the same algorithm in Go, was timed apart "
            "(102 etcd logs in 0.48 s, c10-ok in 0.7 ms, c50-ok in 0.21 to 0.27 s, c50-bad in 0.02 to 0.06 s) and is a "
            "bar in the claims.",
        )

    def case_names(self, seed: int) -> Sequence[str]:
        """Return the cases chosen whose histories are on this machine."""
        return tuple(name for name in self.cases_chosen if name in _GENERATED or _is_here(name))

    def case(self, name: str, seed: int) -> Case:
        """Return the histories of that name."""
        if name in _GENERATED:
            lost = name == "generated-bad"
            history = kv_history(clients=self.clients, operations=self.operations, keys=self.keys, seed=seed, lost=lost)
            return Case(name, _Histories((history,), (not lost,)))
        if name == "etcd-logs":
            expected = _etcd_verdicts()
            found = tuple(read_history(datasets.find(DATA, f"jepsen-etcd/{file}")) for file in expected)
            return Case(name, _Histories(found, tuple(expected.values())))
        history = read_history(datasets.find(DATA, f"kv-append/{name}.txt"))
        return Case(name, _Histories((history,), (name.endswith("-ok"),)))

    def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the call that judges all histories of the case."""
        budget = Budget()
        return lambda: [system.judge(history, budget)["linearizable"].outcome for history in case.data.histories]

    def verify(self, case: Case, system: str, result: object) -> None:
        """Compare with the known verdicts; a checker may give up, but not be wrong."""
        if not isinstance(result, list) or len(result) != len(case.data.good):
            raise WavetankError(f"{system} did not judge every history of {case.name}.")
        for outcome, good in zip(result, case.data.good, strict=True):
            if outcome == ("violated" if good else "holds"):
                raise WavetankError(f"{system} is wrong about a history of {case.name}.")
        if "undecided" in result:
            raise GaveUpError(
                f"{system} gave up on {case.name}, so that its time would mean nothing.",
                hint="give the system a larger budget",
            )


def _file_of(name: str) -> str:
    """Return the file, or the list of files, that a recorded case needs."""
    return "jepsen-etcd/expected.csv" if name == "etcd-logs" else f"kv-append/{name}.txt"


def _is_here(name: str) -> bool:
    try:
        files = [_file_of(name)]
        if name == "etcd-logs":
            files += [f"jepsen-etcd/{file}" for file in _etcd_verdicts()]
        return all(datasets.find(DATA, file).is_file() for file in files)
    except DataUnavailableError:
        return False


def _etcd_verdicts() -> dict[str, bool]:
    """Return the logs on this machine and whether each is linearizable."""
    lines = datasets.find(DATA, "jepsen-etcd/expected.csv").read_text(encoding="utf-8").splitlines()[1:]
    found = {line.split(",")[0]: line.split(",")[1] == "true" for line in lines if line}
    if not found:
        raise DataUnavailableError("The etcd logs come without their verdicts.", where="jepsen-etcd/expected.csv")
    return found
