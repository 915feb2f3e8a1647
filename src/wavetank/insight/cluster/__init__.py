"""Operations of a GPU cluster: which node is failing, and what follows when one has failed.

:mod:`~wavetank.insight.cluster.simulated_cluster` streams what monitoring sees of a cluster with planted faults;
:mod:`~wavetank.insight.cluster.peer_view` turns it into distances of nodes from their peers; detectors
(:mod:`~wavetank.insight.cluster.layered_peers`, :mod:`~wavetank.insight.cluster.rivals`) score them, and
:mod:`~wavetank.insight.cluster.scoring` says when a score is an alarm and how good alarms are.  Study
``cluster-alarms``.

:mod:`~wavetank.insight.cluster.incidents` lets a job meet a year of troubles under a policy of
:mod:`~wavetank.insight.cluster.restart_policies`.  Study ``restart-policy``.
:mod:`~wavetank.insight.cluster.write_slots` follows checkpoints through the slots of clients.  Study ``write-slots``.
"""
