"""Three ways to the same question: how likely is a fault, given what telemetry shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from wavetank.diagnosis.outside import ask
from wavetank.insight.repair import pgmpy_process
from wavetank.insight.repair.networks import Floats, Network, blanket_posterior, posterior
from wavetank.settings import check_ranges, setting


class Question(NamedTuple):
    """How likely is a variable's every level.

    Attributes
    ----------
    node : int
    evidence : dict of int to int
        Observed levels by variable.
    """

    node: int
    evidence: dict[int, int]


@dataclass(frozen=True, kw_only=True)
class BlanketInference:
    """Asks the tables inside the fault's Markov blanket."""

    def answer(self, network: Network, question: Question) -> Floats:
        """Return the distribution of the variable, shape (levels,).

        Parameters
        ----------
        network : Network
        question : Question
        """
        return blanket_posterior(network, question.node, question.evidence)[0]


@dataclass(frozen=True, kw_only=True)
class FullGraphInference:
    """Asks all tables, and eliminates what is hidden."""

    def answer(self, network: Network, question: Question) -> Floats:
        """Return the distribution of the variable, shape (levels,).

        Parameters
        ----------
        network : Network
        question : Question
        """
        return posterior(network, (question.node,), question.evidence)[0]


@dataclass(frozen=True, kw_only=True)
class PgmpyInference:
    """pgmpy's variable elimination, in a process of its own."""

    timeout_s: float = setting(300.0, unit="s", says="After this time the process is ended", low=1.0, high=86_400.0)

    def __post_init__(self) -> None:
        check_ranges(self)

    def answers(
        self, outside: str, networks: Sequence[tuple[Network, Sequence[Question]]]
    ) -> list[tuple[list[list[float]], list[float]]]:
        """Return distributions and how long each took in seconds, by network.

        Parameters
        ----------
        outside : str
            The Python that has pgmpy.
        networks : sequence of (Network, sequence of Question)
        """
        asked = [
            {
                "parents": [list(each) for each in network.parents], "levels": list(network.levels),
                "tables": [table.reshape(-1, table.shape[-1]).tolist() for table in network.tables],
                "questions": [[each.node, {str(node): level for node, level in each.evidence.items()}]
                              for each in questions],
            }
            for network, questions in networks
        ]  # fmt: skip
        said = ask([outside, "-P", str(Path(pgmpy_process.__file__))], {"networks": asked}, name="pgmpy",
                   timeout_s=self.timeout_s)  # fmt: skip
        return [(each["answers"], each["spent_s"]) for each in said]
