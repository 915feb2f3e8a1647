"""Protocols: distributed algorithms written once that run in four ways, and checkers for what others wrote.

A node reacts to messages, timers and requests, and acts through its context alone.  The same class runs in rounds
(fast sweeps) and as events (delays, loss, partitions): :func:`simulate`; on sockets: :func:`run_cluster` and ``wavetank
launch cluster``; and in an explorer of every interleaving: :mod:`wavetank.check.explore`.  What is here:

* :class:`Raft`, :class:`PBFT`, :mod:`~wavetank.protocols.digraphs`: consensus; :mod:`~wavetank.protocols.broadcast`:
  reliable broadcast; :mod:`~wavetank.protocols.overlays`: Chord, Pastry, Kademlia as directories;
  :mod:`~wavetank.protocols.quantas`: QUANTAS's experiment files and peers;
* :mod:`~wavetank.protocols.populations`: population protocols, exact simulators, leader election, ordered agents;
* :mod:`~wavetank.protocols.filesync`: four ways to keep folders in step;
* for ``wavetank check``: :mod:`~wavetank.protocols.threshold` (threshold automata, safe for every number of processes),
  :mod:`~wavetank.check.consistency` (which consistency models allow a history),
  :mod:`~wavetank.protocols.sessions` (session protocols with mixed choice).

Importing this package imports no compiler: names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wavetank.lazy_names import lazy_names

if TYPE_CHECKING:
    from wavetank.check.consistency.files import read_history, write_history
    from wavetank.check.explore import Environment, Exploration, SearchBudget, Symmetry
    from wavetank.live.cluster import run_cluster
    from wavetank.live.run import ClusterRun
    from wavetank.protocols.consensus.pbft import PBFT
    from wavetank.protocols.consensus.raft import Raft
    from wavetank.protocols.digraphs.signed_consensus import SignedConsensus
    from wavetank.protocols.filesync.bilateral import BilateralSync
    from wavetank.protocols.filesync.causal import CausalSnapshotSync
    from wavetank.protocols.filesync.timeline import TimelineSync
    from wavetank.protocols.filesync.vectors import VersionVectorSync
    from wavetank.protocols.populations.interface import PopulationProtocol
    from wavetank.protocols.populations.simulator import PopulationBatched, PopulationSequential
    from wavetank.protocols.sessions.mixed_choice import MixedChoice
    from wavetank.protocols.sessions.parser import parse_protocols
    from wavetank.protocols.sessions.projection import project_all
    from wavetank.protocols.threshold.parser import read_automaton
    from wavetank.sim.events import simulate
    from wavetank.sim.faults import (
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
    from wavetank.sim.history import History, Operation
    from wavetank.sim.network import Links, Network, Partition, Topology
    from wavetank.sim.node import Algorithm, Context, Message, Node, Snapshot
    from wavetank.sim.simulation import Request, Run, Scheduler

__getattr__, __dir__, __all__ = lazy_names(__name__)
