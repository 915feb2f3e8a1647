"""Protocols: distributed algorithms written once that live four lives, and checkers for what others wrote.

A node reacts to messages, timers and requests, and acts through its context alone.  The same class runs in rounds
(fast sweeps) and as events (delays, loss, partitions): :func:`simulate`; on sockets: :func:`run_cluster` and ``wavetank
launch cluster``; and in an explorer of every interleaving: :mod:`wavetank.protocols.explore`.  What is here:

* :class:`Raft`, :class:`PBFT`, :mod:`~wavetank.protocols.digraphs`: consensus; :mod:`~wavetank.protocols.broadcast`:
  reliable broadcast; :mod:`~wavetank.protocols.overlays`: Chord, Pastry, Kademlia as directories;
  :mod:`~wavetank.protocols.quantas`: QUANTAS's experiment files and peers;
* :mod:`~wavetank.protocols.population`: population protocols, exact simulators, leader election, ordered agents;
* :mod:`~wavetank.protocols.filesync`: four ways to keep folders in step;
* for ``wavetank check``: :mod:`~wavetank.protocols.threshold` (threshold automata, safe for every number of processes),
  :mod:`~wavetank.protocols.consistency` (which consistency models allow a history),
  :mod:`~wavetank.protocols.sessions` (session protocols with mixed choice).

Importing this package imports no compiler: names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wavetank.lazy_names import lazy_names

if TYPE_CHECKING:
    from wavetank.protocols.consensus.pbft import PBFT
    from wavetank.protocols.consensus.raft import Raft
    from wavetank.protocols.digraphs.signed_consensus import SignedConsensus
    from wavetank.protocols.explore import Environment, Exploration, SearchBudget, Symmetry
    from wavetank.protocols.faults import (
        Corruption,
        Crash,
        Delay,
        Equivocation,
        Fault,
        Omission,
        RandomCrashes,
        Replay,
        SelectiveRelay,
    )
    from wavetank.protocols.filesync.bilateral import BilateralSync
    from wavetank.protocols.filesync.causal import CausalSnapshotSync
    from wavetank.protocols.filesync.timeline import TimelineSync
    from wavetank.protocols.filesync.vectors import VersionVectorSync
    from wavetank.protocols.history import History, Operation, read_history, write_history
    from wavetank.protocols.interfaces import Algorithm, Context, Message, Node, Snapshot
    from wavetank.protocols.live.cluster import run_cluster
    from wavetank.protocols.live.run import ClusterRun
    from wavetank.protocols.network import Links, Network, Partition, Topology
    from wavetank.protocols.population.interfaces import PopulationProtocol
    from wavetank.protocols.population.simulator import PopulationBatched, PopulationSequential
    from wavetank.protocols.sessions.mixed_choice import MixedChoice
    from wavetank.protocols.sessions.parser import parse_protocols
    from wavetank.protocols.sessions.projection import project_all
    from wavetank.protocols.simulation import Request, Run, Scheduler, simulate
    from wavetank.protocols.threshold.parser import read_automaton

_HOMES = {
    "Algorithm": "interfaces",
    "BilateralSync": "filesync.bilateral",
    "CausalSnapshotSync": "filesync.causal",
    "ClusterRun": "live.run",
    "Context": "interfaces",
    "Corruption": "faults",
    "Crash": "faults",
    "Delay": "faults",
    "Environment": "explore",
    "Equivocation": "faults",
    "Exploration": "explore",
    "Fault": "faults",
    "History": "history",
    "Links": "network",
    "Message": "interfaces",
    "MixedChoice": "sessions.mixed_choice",
    "Network": "network",
    "Node": "interfaces",
    "Omission": "faults",
    "Operation": "history",
    "PBFT": "consensus.pbft",
    "Partition": "network",
    "PopulationBatched": "population.simulator",
    "PopulationProtocol": "population.interfaces",
    "PopulationSequential": "population.simulator",
    "Raft": "consensus.raft",
    "RandomCrashes": "faults",
    "Replay": "faults",
    "Request": "simulation",
    "Run": "simulation",
    "Scheduler": "simulation",
    "SearchBudget": "explore",
    "SelectiveRelay": "faults",
    "SignedConsensus": "digraphs.signed_consensus",
    "Snapshot": "interfaces",
    "Symmetry": "explore",
    "TimelineSync": "filesync.timeline",
    "Topology": "network",
    "VersionVectorSync": "filesync.vectors",
    "parse_protocols": "sessions.parser",
    "project_all": "sessions.projection",
    "read_automaton": "threshold.parser",
    "read_history": "history",
    "run_cluster": "live.cluster",
    "simulate": "simulation",
    "write_history": "history",
}

__all__ = [
    "PBFT",
    "Algorithm",
    "BilateralSync",
    "CausalSnapshotSync",
    "ClusterRun",
    "Context",
    "Corruption",
    "Crash",
    "Delay",
    "Environment",
    "Equivocation",
    "Exploration",
    "Fault",
    "History",
    "Links",
    "Message",
    "MixedChoice",
    "Network",
    "Node",
    "Omission",
    "Operation",
    "Partition",
    "PopulationBatched",
    "PopulationProtocol",
    "PopulationSequential",
    "Raft",
    "RandomCrashes",
    "Replay",
    "Request",
    "Run",
    "Scheduler",
    "SearchBudget",
    "SelectiveRelay",
    "SignedConsensus",
    "Snapshot",
    "Symmetry",
    "TimelineSync",
    "Topology",
    "VersionVectorSync",
    "parse_protocols",
    "project_all",
    "read_automaton",
    "read_history",
    "run_cluster",
    "simulate",
    "write_history",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
