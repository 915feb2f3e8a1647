"""``ppsim``, the simulator of population protocols that people use today, behind our simulators' interface.

Source: D. Doty, E. Severson, "ppsim: A Software Package for Efficiently Simulating and Visualizing Population
Protocols", CMSB 2021; version 1 with its Rust core.

Differs from the source:

1. What is called is its compiled core, by number of meetings: no history, no progress bar.
2. Version 1.0.2 sometimes stops as silent while a pair could still react; ``interactions`` then says how far it came.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import missing_extra
from wavetank.protocols.population.interfaces import PopulationProtocol, PopulationRun, consensus
from wavetank.protocols.population.simulator import check_population, is_silent


@dataclass(frozen=True, kw_only=True)
class Ppsim:
    """ppsim's default method, batches of meetings on counts."""

    def run(
        self, protocol: PopulationProtocol, counts: NDArray[np.int64], *, interactions: int, seed: int
    ) -> PopulationRun:
        """Simulate so many meetings; ``last_change`` is not known and given as all of them.

        Parameters are those of :meth:`PopulationSequential.run`.

        Raises
        ------
        BadValueError
        MissingExtraError
            Without ppsim.
        """
        try:
            from ppsim import Simulation
        except ImportError:
            raise missing_extra("ppsim", "protocol-peers", needed_for="The contender ppsim") from None
        check_population(protocol, counts, 1 << 31, interactions)
        rule = {
            (int(p), int(q)): (int(protocol.new_initiator[0, p, q]), int(protocol.new_responder[0, p, q]))
            for p, q in np.argwhere(protocol.enabled[0])
        }
        started = {state: int(count) for state, count in enumerate(counts) if count}
        if is_silent(protocol.enabled[0], counts):
            # ppsim refuses to run what cannot change.
            return PopulationRun(0, 0, -1, True, counts.copy(), consensus(protocol.outputs, counts))
        simulation = Simulation(started, rule, transition_order="asymmetric", seed=seed)
        simulation.simulator.run(interactions)
        found = np.zeros(len(protocol), np.int64)
        for state, count in zip(simulation.state_list, simulation.simulator.config, strict=True):
            found[state] = count
        done = int(simulation.simulator.t)
        silent = bool(is_silent(protocol.enabled[0], found))
        return PopulationRun(done, done, -1, silent, found, consensus(protocol.outputs, found))
