"""Which classes of faults strike: each in turn, or drawn as often as they were recorded on real servers.

Recorded are 584 faults of 400 GPU servers over 348 days (data set ``gpu-cluster-ops``); 286 of them are of a class
whose signature is simulated.
"""

from __future__ import annotations

import csv
from pathlib import Path

from wavetank.errors import BadFileError, BadValueError
from wavetank.insight.cluster.simulated_cluster import CLASSES
from wavetank.sim.rng import stream
from wavetank.workloads import datasets

DATA_SET = "gpu-cluster-ops"
MIXES = ("classes", "recorded")
COUNTS_FILE = "infinitehbd_fault_counts.csv"

# (class, description) of the records that a simulated class stands for.
STANDS_FOR: dict[str, tuple[tuple[str, str], ...]] = {
    "nvlink": (("GPU", "GPU P2P Bandwidth Low"),),
    "ecc": (("GPU", "GPU DBE > Threshold"), ("GPU", "GPU SBE > Threshold")),
    "device-error": (("GPU", "GPU device unknown error"), ("GPU", "GPU xid Error")),
    "gpu-lost": (("GPU", "GPU Lost"), ("GPU", "nvidia-smi Timeout"), ("GPU", "GPU device not found")),
    "link-down": (("Cable", "Link Down"), ("NIC", "NIC Lost")),
    "slow-link": (("NIC", "NIC Link Speed low"), ("NIC", "NIC PCI link Width low"), ("NIC", "Rnic Gid Error")),
    "power": (("Power Supply", "Failure detected"), ("Power Supply", "Redundancy Lost")),
    "fan": (("Fan", "Speed Critical"), ("Fan", "Redundancy Lost")),
    "pcie": (("GPU", "GPU PCI link width low"), ("RAID Card", "Bus Correctable error")),
    "node-down": (("System Crash", "Server down"),),
}


def recorded_counts(folder: Path | None = None) -> dict[str, int]:
    """Return how often each simulated class was recorded.

    Parameters
    ----------
    folder : Path, optional
        Of the data set.

    Raises
    ------
    BadFileError
        If the file is not the data set's.
    """
    path = (folder or datasets.find(DATA_SET)) / COUNTS_FILE
    counts: dict[tuple[str, str], int] = {}
    try:
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
            counts[row["class"], row["description"]] = int(row["count"])
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise BadFileError("These are no counts of faults.", given=str(error)[:200], where=str(path)) from error
    found = {name: sum(counts.get(each, 0) for each in records) for name, records in STANDS_FOR.items()}
    if min(counts.values(), default=0) < 0 or not sum(found.values()):
        raise BadFileError("The counts have none of the simulated classes.", given=f"{len(counts)} rows",
                           where=str(path))  # fmt: skip
    return found


def drawn_kinds(mix: str, faults: int, seed: int) -> tuple[str, ...]:
    """Return classes of faults.

    Parameters
    ----------
    mix : str
        ``classes``: each in turn; ``recorded``: drawn by how often they were recorded.
    faults : int
    seed : int

    Raises
    ------
    BadValueError
        If there is no such mix.
    """
    names = [each.name for each in CLASSES]
    if mix == "classes":
        return tuple(names[place % len(names)] for place in range(faults))
    if mix != "recorded":
        raise BadValueError("There is no such mix of faults.", given=mix, allowed=MIXES)
    counts = recorded_counts()
    total = sum(counts.values())
    drawn = stream(seed, "kinds").choice(len(names), faults, p=[counts[name] / total for name in names])
    return tuple(names[each] for each in drawn)
