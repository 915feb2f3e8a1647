"""Torch's own analyser of flight-recorder dumps, as a contender: what it says of the entries a recorder would hold.

Its dumps are pickles, which execute what they hold when they are opened; here its matching is given entries that were
made in this process.  It looks for ranks that have not called an operation and for calls that do not fit.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from wavetank.errors import missing_extra
from wavetank.insight.collectives.interface import OPERATIONS, Verdict, Window, by_rank
from wavetank.insight.collectives.stalls import stalls
from wavetank.settings import check_ranges, setting

VERSION = "2.10"
_TYPES = {2: "BFloat16", 4: "Float"}
# Entries of each rank and communicator that are kept; older ones have been matched long ago.
_KEPT = 1
_NAMES = {"reduce_scatter": "_reduce_scatter_base", "all_gather": "_all_gather_base", "other": "coalesced"}


@dataclass(frozen=True, kw_only=True)
class TorchRecorder:
    """Torch's matching of recorded calls: names who is missing in a call that hangs, or whose call does not fit."""

    hang_s: float = setting(300.0, unit="s", says="Standstill from which an operation hangs", low=0.001, high=1e6)

    def __post_init__(self) -> None:
        check_ranges(self)

    def find(self, window: Window) -> Verdict:
        """Return what torch's analyser says of the recorded calls of a window.

        Parameters
        ----------
        window : Window

        Raises
        ------
        MissingExtraError
            If torch is not installed.
        """
        window.check()
        window = Window(by_rank(window.frames), window.members, window.now_ns, window.trees)
        # Dumps are written when a watchdog finds an operation that hangs.
        if not stalls(window, self.hang_s):
            return Verdict()
        return said_of(dumps_of(window))


def said_of(dumps: Mapping[str, Mapping[str, Any]]) -> Verdict:
    """Return what torch's analyser says of dumps, rank by rank.

    Parameters
    ----------
    dumps : mapping
        By any name: ``rank``, ``entries``, ``version``, ``pg_config`` and ``host_name`` as torch reads them.

    Returns
    -------
    Verdict
        ``H2`` with the ranks whose calls do not fit, else ``H1`` with those that are missing.
    """
    try:
        from torch.distributed.flight_recorder.components.builder import build_db
        from torch.distributed.flight_recorder.components.config_manager import JobConfig
    except ImportError as error:
        raise missing_extra("torch", "torch", needed_for="Torch's analyser of flight-recorder dumps") from error
    arguments = JobConfig().parse_args(["unused", "--allow-incomplete-ranks", "--mismatch_cap", "1000000"])
    with _quiet():
        database = build_db({name: dict(each) for name, each in dumps.items()}, arguments, VERSION)
    missing, misfits = [], []
    for call in database.collectives:
        if call.missing_ranks:
            missing.append(call)
        elif call.mismatch_collectives:
            misfits.append(call)
    if misfits:
        return Verdict(fault="H2", ranks=_ranks(misfits[0].mismatch_collectives), seq=misfits[0].collective_seq_id - 1)
    if missing:
        # It lists every communicator; who is missing in most of them is read as the culprit.
        count = Counter(rank for call in missing for rank in call.missing_ranks)
        most = max(count.values())
        ranks = _ranks(rank for rank, many in count.items() if many == most)
        return Verdict(fault="H1", ranks=ranks, seq=missing[0].collective_seq_id - 1)
    return Verdict()


def _ranks(of: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(int(rank) for rank in of))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def dumps_of(window: Window) -> dict[str, dict[str, Any]]:
    """Return what flight recorders of the ranks of a window would hold, as torch's analyser reads it.

    Parameters
    ----------
    window : Window
        A rank of which nothing was read has no dump.
    """
    frames = window.frames
    config: dict[int, dict[str, Any]] = {}
    for comm, ranks in enumerate(window.members):
        about = {"name": str(comm), "desc": f"comm {comm}", "ranks": str(ranks.tolist())}
        for rank in ranks.tolist():
            config.setdefault(rank, {})[str(comm)] = about
    newest: dict[int, int] = {}
    for comm, seq in zip(frames.comm.tolist(), frames.seq.tolist(), strict=True):
        newest[comm] = max(newest.get(comm, seq), seq)
    dumps: dict[str, dict[str, Any]] = {}
    for rank, of in config.items():
        dumps[f"rank_{rank}"] = {
            "host_name": f"host_rank{rank}", "rank": rank, "entries": [], "version": VERSION, "pg_config": of,
        }  # fmt: skip
    columns = (frames.rank, frames.comm, frames.seq, frames.op, frames.size, frames.dtype, frames.entered, frames.done)
    for number, (rank, comm, seq, op, size, dtype, entered, done) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        if seq <= newest[comm] - _KEPT or not entered:
            continue
        name = OPERATIONS[op]
        shape = [[size // max(dtype, 1)]]
        whole = [[shape[0][0] * len(window.members[comm])]]
        dumps[f"rank_{rank}"]["entries"].append({
            "record_id": number, "pg_id": comm, "process_group": (str(comm), f"comm {comm}"),
            "collective_seq_id": seq + 1, "p2p_seq_id": 0, "op_id": seq + 1, "is_p2p": False,
            "profiling_name": f"nccl:{_NAMES.get(name, name)}",
            "input_sizes": shape, "output_sizes": whole if name == "all_gather" else shape,
            "input_dtypes": [_TYPES.get(dtype, "Float")], "output_dtypes": [_TYPES.get(dtype, "Float")],
            "state": "completed" if done else "started", "time_created_ns": 0, "frames": [],
        })  # fmt: skip
    for dump in dumps.values():
        # Numbered from one begin, as it drops what is older than the newest begin of any rank.
        for number, entry in enumerate(dump["entries"]):
            entry["record_id"] = number
    return dumps
