"""A process that asks pgmpy for posteriors; it runs in the environment of others.

Nothing of Wavetank is imported: it is not there.
"""

import json
import logging
import sys
import time
import warnings
from typing import Any


def main() -> None:
    """Read networks with questions on standard input and print posteriors and times."""
    question = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    from pgmpy.factors.discrete import TabularCPD
    from pgmpy.inference import VariableElimination
    from pgmpy.models import DiscreteBayesianNetwork

    said = []
    for each in question["networks"]:
        names = [f"v{node}" for node in range(len(each["parents"]))]
        model = DiscreteBayesianNetwork()
        model.add_nodes_from(names)
        model.add_edges_from(
            (names[parent], names[node]) for node, parents in enumerate(each["parents"]) for parent in parents
        )
        for node, parents in enumerate(each["parents"]):
            rows, own = each["tables"][node], each["levels"][node]
            columns = [[row[level] for row in rows] for level in range(own)]
            model.add_cpds(
                TabularCPD(names[node], own, columns, evidence=[names[parent] for parent in parents] or None,
                           evidence_card=[each["levels"][parent] for parent in parents] or None)
            )  # fmt: skip
        asked = VariableElimination(model)
        answers: list[list[float]] = []
        spent: list[float] = []
        for node, evidence in each["questions"]:
            seen = {names[int(place)]: level for place, level in evidence.items()}
            begin = time.perf_counter()
            found = asked.query([names[node]], seen, show_progress=False)
            spent.append(time.perf_counter() - begin)
            answers.append(plain(found, names[node], each["levels"][node]))
        said.append({"answers": answers, "spent_s": spent})
    sys.stdout.write("\n" + json.dumps(said) + "\n")


def plain(found: Any, name: str, levels: int) -> list[float]:
    """Return a distribution in the order of our levels.

    Parameters
    ----------
    found : DiscreteFactor
    name : str
    levels : int
    """
    order = [int(each) for each in found.state_names[name]]
    values = dict(zip(order, found.values, strict=True))
    return [float(values[level]) for level in range(levels)]


if __name__ == "__main__":
    main()
