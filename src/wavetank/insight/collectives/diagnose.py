"""``wavetank diagnose`` for collectives: probing frames of our own, and dumps of torch's flight recorder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from wavetank import html_page, svg, units
from wavetank.diagnosis.findings import Diagnosis, Evidence, Finding, Severity, Value, read
from wavetank.errors import BadValueError
from wavetank.insight.collectives.ccl_d import CclD
from wavetank.insight.collectives.frames_file import looks_like_frames, read_frames
from wavetank.insight.collectives.interface import ABSENT, MEANING, NEVER, OPERATIONS, Verdict, Window
from wavetank.insight.collectives.recorder_window import RecorderJob, read_job
from wavetank.settings import check_ranges, setting
from wavetank.svg import escape
from wavetank.workloads.flight_recorder import looks_like_recorder

LABELS = {"H1": "not-entered", "H2": "other-call", "H3": "stuck", "S1": "late-rank", "S2": "slow-transfer",
          "S3": "late-and-slow"}  # fmt: skip
_SOURCE = "CCL-D, arXiv 2605.04478"
_ADVICE = {
    "H1": "See what this rank does instead: its stack, its host, an exception that was swallowed, a branch that the "
    "others do not take.",
    "H2": "Compare the code path of this rank with the others: shapes that depend on data, a branch on the rank, "
    "another order of calls.",
    "H3": "See the device and the link: errors of the driver, counters of the port; a process that was stopped.",
    "S1": "See what this rank does before the operation: a slower device, more data, another job on its host.",
    "S2": "See the link and the port: errors, a lower rate, congestion by others.",
    "S3": "Two faults at once: see what the rank does before the operation, and its links.",
}
_MOST_CELLS = 4096


class WindowSource:
    """Quantities of a window of frames, by name.

    Parameters
    ----------
    window : Window
    recorder : RecorderJob, optional
        Where the window was made from a flight recorder's dumps.
    """

    def __init__(self, window: Window, recorder: RecorderJob | None = None) -> None:
        self.window, self.recorder = window, recorder

    def quantity(self, name: str, **of: Any) -> Value:
        """Return a quantity by its name.

        Parameters
        ----------
        name : str
        **of
            ``comm``, ``seq``, ``rank``.

        Raises
        ------
        BadValueError
            If there is no such quantity, or no such frame.
        """
        made = _QUANTITIES.get(name)
        if made is None:
            raise BadValueError("The frames have no such quantity.", given=name, allowed=list(_QUANTITIES))
        value: Value = made[0](self, **of)
        return value

    def how(self, name: str) -> str:
        """Return how a quantity is read.

        Parameters
        ----------
        name : str
        """
        return str(_QUANTITIES[name][1])

    # -- the quantities ------------------------------------------------------------------------------------------------

    def _ranks(self) -> int:
        return int(self.window.now_ns.size)

    def _communicators(self) -> int:
        return len(self.window.members)

    def _frames(self) -> int:
        return int(self.window.frames.rank.size)

    def _open(self) -> int:
        return int((self.window.frames.entered & ~self.window.frames.done).sum())

    def _dumps(self) -> int:
        return len(self.recorder.dumped) if self.recorder else 0

    def _without_dump(self) -> str:
        return _listed(self.recorder.without_dump) if self.recorder else ""

    def _left_out(self) -> int:
        return self.recorder.left_out if self.recorder else 0

    def _rows(self, comm: int, seq: int) -> Any:
        frames = self.window.frames
        return frames.chosen((frames.comm == comm) & (frames.seq == seq) & frames.entered)

    def _row(self, rank: int, comm: int, seq: int) -> Any:
        rows = self._rows(comm, seq)
        row = rows.chosen(rows.rank == rank)
        if not row.rank.size:
            raise BadValueError("The rank has no frame of this operation.", given=f"rank {rank}")
        return row

    def _group(self, comm: int) -> str:
        return self.recorder.names[comm] if self.recorder else str(comm)

    def _members(self, comm: int) -> int:
        return len(self.window.members[comm])

    def _entered(self, comm: int, seq: int) -> int:
        return int(self._rows(comm, seq).rank.size)

    def _missing(self, comm: int, seq: int) -> str:
        return _listed(np.setdiff1d(self.window.members[comm], self._rows(comm, seq).rank).tolist())

    def _number(self, comm: int, seq: int) -> int:
        self._rows(comm, seq)
        return seq + (1 if self.recorder else 0)

    def _still(self, comm: int, seq: int) -> float:
        rows = self._rows(comm, seq)
        rows = rows.chosen(~rows.done)
        if not rows.rank.size:
            raise BadValueError("The operation is open nowhere.", given=f"operation {seq}")
        return float((self.window.now_ns[rows.rank] - np.maximum(rows.moved_ns, rows.entered_ns)).min()) / 1e9

    def _call(self, rank: int, comm: int, seq: int) -> str:
        if self.recorder:
            self._row(rank, comm, seq)
            return self.recorder.calls[rank, comm, seq]
        row = self._row(rank, comm, seq)
        root = f", root {row.root[0]}" if row.root[0] != ABSENT else ""
        return f"{OPERATIONS[row.op[0]]} of {row.size[0]} bytes, type {row.dtype[0]}{root}"

    def _usual_call(self, comm: int, seq: int) -> str:
        calls = [self._call(rank, comm, seq) for rank in self._rows(comm, seq).rank.tolist()]
        if not calls:
            raise BadValueError("Nobody has entered the operation.", given=f"operation {seq}")
        return max(sorted(set(calls)), key=calls.count)

    def _posted(self, rank: int, comm: int, seq: int) -> int:
        return int(self._row(rank, comm, seq).posted[0])

    def _received(self, rank: int, comm: int, seq: int) -> int:
        return int(self._row(rank, comm, seq).received[0])

    def _silent(self, rank: int, comm: int, seq: int) -> float:
        row = self._row(rank, comm, seq)
        if row.polled_ns[0] == NEVER:
            raise BadValueError("The probe does not say when its loop looked.", given=f"rank {rank}")
        return float(self.window.now_ns[rank] - row.polled_ns[0]) / 1e9

    def _done(self, rank: int, comm: int) -> Any:
        frames = self.window.frames
        rows = frames.chosen((frames.rank == rank) & (frames.comm == comm) & frames.done)
        if not rows.rank.size:
            raise BadValueError("The rank has ended no operation of this communicator.", given=f"rank {rank}")
        return rows

    def _operations(self, rank: int, comm: int) -> int:
        return int(self._done(rank, comm).rank.size)

    def _inside(self, rank: int, comm: int) -> float:
        rows = self._done(rank, comm)
        return float(np.median(rows.ended_ns - rows.entered_ns)) / 1e9

    def _inside_usual(self, comm: int) -> float:
        return float(np.median([self._inside(rank, comm) for rank in self._with_rows(comm)]))

    def _sending(self, rank: int, comm: int) -> float:
        rows = self._done(rank, comm)
        return float(np.median(rows.send_ns)) / 1e9

    def _sending_usual(self, comm: int) -> float:
        return float(np.median([self._sending(rank, comm) for rank in self._with_rows(comm)]))

    def _with_rows(self, comm: int) -> list[int]:
        frames = self.window.frames
        ranks = np.unique(frames.rank[(frames.comm == comm) & frames.done]).tolist()
        if not ranks:
            raise BadValueError("No operation of this communicator has ended.", given=f"communicator {comm}")
        return ranks


_QUANTITIES: Mapping[str, tuple[Any, str]] = {
    "ranks": (WindowSource._ranks, "ranks that the communicators and clocks name"),
    "communicators": (WindowSource._communicators, "communicators with at least one member"),
    "frames": (WindowSource._frames, "calls that were recorded"),
    "open_calls": (WindowSource._open, "calls that were entered and are not over"),
    "dumps": (WindowSource._dumps, "files that were read, one a rank"),
    "without_dump": (WindowSource._without_dump, "members of process groups without a file"),
    "left_out": (WindowSource._left_out, "recorded calls between two ranks, which are not judged"),
    "communicator": (WindowSource._group, "name of the process group, or number of the communicator"),
    "members": (WindowSource._members, "ranks of the communicator"),
    "entered": (WindowSource._entered, "ranks with a call of this number"),
    "missing": (WindowSource._missing, "members without a call of this number"),
    "operation": (WindowSource._number, "number of the call in its communicator"),
    "still_s": (WindowSource._still, "least time since a rank in the operation moved, by its own clock"),
    "call": (WindowSource._call, "what the rank called"),
    "usual_call": (WindowSource._usual_call, "what most ranks called"),
    "posted": (WindowSource._posted, "chunks of which the rank has begun to send"),
    "received": (WindowSource._received, "chunks that have arrived at the rank"),
    "silent_s": (WindowSource._silent, "since the waiting loop of the rank looked last, by its own clock"),
    "operations": (WindowSource._operations, "operations of the rank that have ended"),
    "inside_s": (WindowSource._inside, "median time of the rank in an operation"),
    "inside_usual_s": (WindowSource._inside_usual, "median of the ranks' median times in an operation"),
    "sending_s": (WindowSource._sending, "median time on the wire of what the rank sends in an operation"),
    "sending_usual_s": (WindowSource._sending_usual, "median of the ranks' median times on the wire"),
}


def _listed(ranks: Any) -> str:
    shown = [str(rank) for rank in ranks]
    return ", ".join(shown[:16]) + (f" and {len(shown) - 16} more" if len(shown) > 16 else "")


@dataclass(frozen=True, kw_only=True)
class FramesDiagnosis:
    """Judges probing frames of collectives in a file of JSON lines."""

    hang_s: float = setting(300.0, unit="s", says="Standstill from which an operation hangs", low=0.001, high=1e6)
    theta: float = setting(3.0, says="Ratio to its peers from which a rank is late or a transfer slow", low=1.01,
                           high=1000.0)  # fmt: skip
    least_ops: int = setting(5, says="Operations of a communicator below which nothing is said of slowness", low=1,
                             high=10_000)  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)

    @staticmethod
    def takes(path: Path, head: bytes) -> bool:
        """Return whether the first bytes begin such a file.

        Parameters
        ----------
        path : Path
        head : bytes
        """
        return looks_like_frames(head)

    def source(self, path: Path) -> WindowSource:
        """Return the frames, read anew.

        Parameters
        ----------
        path : Path
        """
        return WindowSource(read_frames(path))

    def diagnose(self, path: Path) -> Diagnosis:
        """Return what is found in a file.

        Parameters
        ----------
        path : Path

        Raises
        ------
        BadFileError
            If it cannot be read.
        """
        source = self.source(path)
        finder = CclD(hang_s=self.hang_s, theta=self.theta, least_ops=self.least_ops)
        verdict = finder.find(source.window)
        facts = tuple(read(source, name) for name in ("ranks", "communicators", "frames", "open_calls"))
        few = source.window.frames.done.sum() < self.least_ops and not verdict.fault
        return _diagnosis(path, "collective-frames", source, verdict, facts,
                          ("there are too few operations to judge slowness",) if few else ())  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RecorderDiagnosis:
    """Judges dumps of torch's flight recorder, one file or a folder with one file a rank, never executing a pickle."""

    @staticmethod
    def takes(path: Path, head: bytes) -> bool:
        """Return whether the first bytes begin a dump.

        Parameters
        ----------
        path : Path
        head : bytes
        """
        return looks_like_recorder(head)

    def source(self, path: Path) -> WindowSource:
        """Return the dumps, read anew.

        Parameters
        ----------
        path : Path
        """
        job = read_job(path)
        return WindowSource(job.window, job)

    def diagnose(self, path: Path) -> Diagnosis:
        """Return what is found in a file or a folder.

        Parameters
        ----------
        path : Path

        Raises
        ------
        BadFileError
            If it cannot be read.
        """
        source = self.source(path)
        names = ["dumps", "communicators", "frames", "open_calls"]
        names += [name for name in ("left_out", "without_dump") if source.quantity(name)]
        facts = tuple(read(source, name) for name in names)
        too_little = ["the recorder does not say how fast ranks transfer: slowness is not judged"]
        if source.quantity("dumps") == 1:
            too_little.append("there is the dump of one rank: give the folder with those of all")
        verdict = CclD(hang_s=0.001, least_ops=10_000).find(source.window)
        if verdict.fault == "H3":
            # Calls alone do not say who stands still.
            too_little.append("all have called the operation that is open; who stands still is not in the dumps")
            verdict = Verdict()
        return _diagnosis(path, "flight-recorder", source, verdict, facts, tuple(too_little))


@dataclass
class _Said:
    """A sentence with its evidence."""

    says: str
    evidence: list[Evidence] = field(default_factory=list)


def _diagnosis(
    path: Path,
    kind: str,
    source: WindowSource,
    verdict: Verdict,
    facts: tuple[Evidence, ...],
    too_little: tuple[str, ...],
) -> Diagnosis:
    found = (_finding(source, verdict),) if verdict.fault else ()
    if found and kind == "flight-recorder":
        too_little = ()
    diagnosis = Diagnosis(subject=path.name, kind=kind, facts=facts, findings=found, too_little=too_little)
    return replace(diagnosis, page=_page(diagnosis, source, verdict))


def _finding(source: WindowSource, verdict: Verdict) -> Finding:
    said = _hang(source, verdict) if verdict.fault.startswith("H") else _slow(source, verdict)
    where = "rank " + _listed(verdict.ranks) if len(verdict.ranks) == 1 else "ranks " + _listed(verdict.ranks)
    if verdict.link and verdict.fault != "S3":
        where = f"link from rank {verdict.link[0]} to rank {verdict.link[1]}"
    severity: Severity = "critical" if verdict.fault.startswith("H") else "warning"
    return Finding(
        label=LABELS[verdict.fault], where=where, severity=severity, confidence=1.0 if verdict.sure else 0.5,
        says=said.says, evidence=tuple(said.evidence), advice=_ADVICE[verdict.fault], sources=(_SOURCE,),
    )  # fmt: skip


def _hang(source: WindowSource, verdict: Verdict) -> _Said:
    comm, seq, first = verdict.comm, verdict.seq, verdict.ranks[0]
    group, number = read(source, "communicator", comm=comm), read(source, "operation", comm=comm, seq=seq)
    entered, members = read(source, "entered", comm=comm, seq=seq), read(source, "members", comm=comm)
    head = [group, number, entered, members]
    if source.recorder is None:
        head.append(read(source, "still_s", "s", comm=comm, seq=seq))
    hung = " Nobody in it has moved for {still_s}." if source.recorder is None else ""
    if verdict.fault == "H1":
        missing = read(source, "missing", comm=comm, seq=seq)
        says = ("Operation {operation} of communicator {communicator} was entered by {entered} of {members} ranks; "
                "{missing} did not come, and {where} is in no other operation." + hung)  # fmt: skip
        return _Said(says, [*head, missing])
    if verdict.fault == "H2":
        rows = source._rows(comm, seq)
        if first not in rows.rank:
            says = ("{where} called operations in another order than the others: operation {operation} of "
                    "communicator {communicator} was entered by {entered} of {members} ranks." + hung)  # fmt: skip
            return _Said(says, head)
        call = read(source, "call", rank=first, comm=comm, seq=seq)
        usual = read(source, "usual_call", comm=comm, seq=seq)
        says = ("In operation {operation} of communicator {communicator}, which {entered} of {members} ranks entered, "
                "{where} called {call}; most called {usual_call}." + hung)  # fmt: skip
        return _Said(says, [*head, call, usual])
    posted = read(source, "posted", rank=first, comm=comm, seq=seq)
    evidence = [*head, posted, read(source, "received", rank=first, comm=comm, seq=seq)]
    says = ("All {entered} of {members} ranks are in operation {operation} of communicator {communicator}; {where} "
            "stands still with {posted} chunks posted and {received} received." + hung)  # fmt: skip
    row = source._row(first, comm, seq)
    if row.polled_ns[0] != NEVER:
        evidence.append(read(source, "silent_s", "s", rank=first, comm=comm, seq=seq))
        says += " Its waiting loop looked last {silent_s} ago."
    return _Said(says, evidence)


def _slow(source: WindowSource, verdict: Verdict) -> _Said:
    comm = verdict.comm
    first = next(rank for rank in verdict.ranks if rank in source.window.members[comm])
    group, many = read(source, "communicator", comm=comm), read(source, "operations", rank=first, comm=comm)
    inside = [read(source, "inside_s", "s", rank=first, comm=comm), read(source, "inside_usual_s", "s", comm=comm)]
    sending = [read(source, "sending_s", "s", rank=first, comm=comm), read(source, "sending_usual_s", "s", comm=comm)]
    if verdict.fault == "S1":
        says = ("{where} comes late to {operations} operations of communicator {communicator}, for reasons of its own: "
                "it is in them for {inside_s}, the others, which wait, for {inside_usual_s}.")  # fmt: skip
        return _Said(says, [group, many, *inside])
    says = ("What {where} sends in {operations} operations of communicator {communicator} is on the wire for "
            "{sending_s}, what others send for {sending_usual_s}.")  # fmt: skip
    if verdict.fault == "S3":
        says += " Ranks come late, too: {where} is in an operation for {inside_s}, others for {inside_usual_s}."
        return _Said(says, [group, many, *sending, *inside])
    return _Said(says, [group, many, *sending])


# -- the page ----------------------------------------------------------------------------------------------------------


def _page(diagnosis: Diagnosis, source: WindowSource, verdict: Verdict) -> str:
    parts = []
    if verdict.fault:
        parts += [f'<p class="quiet">{escape(MEANING[verdict.fault])}.</p>', _map(source, verdict)]
    parts.append("<section><h2>Findings</h2>")
    for found in diagnosis.findings:
        parts.append(
            f"<h3>{escape(found.label)}, {escape(found.where)}: confidence {escape(units.show(found.confidence))}</h3>"
            f"<p>{escape(found.sentence(found.says))}</p><p>{escape(found.advice)}</p>"
            + html_page.table([(each.key, each.shown, each.how) for each in found.evidence])
        )
    parts += [] if diagnosis.findings else ["<p>Nothing was found.</p>"]
    parts.append("</section><section><h2>What was read</h2>")
    parts.append(html_page.table([(each.name, each.shown, each.how) for each in diagnosis.facts]))
    parts += [f'<p class="quiet">Could not be said: {escape(each)}</p>' for each in diagnosis.too_little]
    parts.append("</section>")
    return html_page.findings(f"Diagnosis of {diagnosis.subject}", *parts)


def _map(source: WindowSource, verdict: Verdict) -> str:
    """Return a picture of the communicator's ranks: who is named, who waits inside, who is outside."""
    ranks = source.window.members[verdict.comm].tolist()[:_MOST_CELLS]
    inside = set(source._rows(verdict.comm, verdict.seq).rank.tolist()) if verdict.seq != ABSENT else set(ranks)
    columns, cell, body = min(64, len(ranks)), 17, []
    for place, rank in enumerate(ranks):
        tone = "fill-warm" if rank in verdict.ranks else "fill-cool" if rank in inside else "fill-panel"
        body.append(svg.element("rect", x=float(place % columns * cell), y=float(place // columns * cell + 20),
                                width=cell - 2.0, height=cell - 2.0, class_=tone))  # fmt: skip
    body.append(svg.text(0, 12, "named: warm; in the operation: cool; not in it: grey", "quiet", looks="small"))
    height = (len(ranks) + columns - 1) // columns * cell + 24
    return svg.drawing(max(columns * cell, 420), height, body, title="Ranks of the communicator",
                       says="Which ranks are named, and which wait in the operation")  # fmt: skip
