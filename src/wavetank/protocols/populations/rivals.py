"""``ppsim``, the simulator of population protocols that people use today, behind our simulators' interface."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import missing_extra
from wavetank.protocols.populations.interface import PopulationProtocol, PopulationRun
from wavetank.protocols.populations.simulator import check_population, ended, is_silent, rules_of


@dataclass(frozen=True, kw_only=True)
class Ppsim:
    """ppsim's default method, batches of meetings on counts."""

    def run(
        self, protocol: PopulationProtocol, counts: NDArray[np.int64], *, interactions: int, seed: int
    ) -> PopulationRun:
        """Simulate ``interactions`` meetings; ``last_change`` is not known and given as all of them.

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
            raise missing_extra("ppsim", "protocol-peers", needed_for="The system ppsim") from None
        check_population(protocol, counts, 1 << 31, interactions)
        started = {state: int(count) for state, count in enumerate(counts) if count}
        if is_silent(protocol.enabled[0], counts):
            # ppsim refuses to run what cannot change.
            return ended(protocol, counts.copy(), 0, 0)
        simulation = Simulation(started, rules_of(protocol), transition_order="asymmetric", seed=seed)
        simulation.simulator.run(interactions)
        found = np.zeros(len(protocol), np.int64)
        for state, count in zip(simulation.state_list, simulation.simulator.config, strict=True):
            found[state] = count
        done = int(simulation.simulator.t)
        return ended(protocol, found, done, done)
