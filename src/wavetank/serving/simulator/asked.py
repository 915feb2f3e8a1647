"""What routers are shown of the requests of a trace beside their prompts, and which worker has which model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.platforms.step_time import PS_PER_S
from wavetank.serving.simulator.adapters import codes_of
from wavetank.serving.simulator.tables import ASKED

if TYPE_CHECKING:
    from wavetank.serving.simulator.cluster import Cluster
    from wavetank.workloads.requests import RequestTrace


def asked_of(
    requests: RequestTrace, expected: NDArray[np.float64] | None, spread: NDArray[np.float64] | None
) -> NDArray[Any]:
    """Return the table of what requests ask for: a row for each, or a single one where nothing is known of any.

    Parameters
    ----------
    requests : RequestTrace
    expected, spread : float64 array (requests,), optional
        Predicted lengths, and the standard deviations of the predictions.
    """
    columns: dict[str, NDArray[Any] | None] = {
        "expected": expected,
        "spread": spread,
        "max_tokens": None if requests.max_tokens is None else np.where(
            requests.max_tokens > 0, requests.max_tokens, np.nan
        ),
        "deadline_s": None if requests.deadline_s is None else _deadlines(requests.arrival_s, requests.deadline_s),
        "model": models_of(requests),
        "adapter": None if requests.adapter is None else codes_of(requests)[0],
        "session": requests.session,
        "tier": requests.tier,
    }  # fmt: skip
    table = np.zeros(len(requests) if any(column is not None for column in columns.values()) else 1, ASKED)
    for name, column in columns.items():
        unknown = np.inf if name == "deadline_s" else -1 if ASKED[name].kind == "i" else np.nan
        table[name] = unknown if column is None else column
    return table


def _deadlines(arrival_s: NDArray[np.float64], deadline_s: NDArray[np.float64]) -> NDArray[np.float64]:
    # From the moment at which the request arrives in the simulation, which counts picoseconds.
    absolute = np.round(arrival_s * PS_PER_S) / PS_PER_S + deadline_s
    return np.where(np.isnan(absolute), np.inf, absolute)


def models_of(requests: RequestTrace) -> NDArray[np.int64] | None:
    """Return the model of every request, -1 where it names none; None where no request names one."""
    if requests.model is None:
        return None
    named = np.array([name != "" for name in requests.model_names], bool)
    return np.where(named[requests.model], requests.model, -1) if named.any() else None


def serving_of(requests: RequestTrace, cluster: Cluster) -> NDArray[np.int8] | None:
    """Return which worker has which of the trace's models; None where all have all.

    Returns
    -------
    int8 array (workers, models) or None

    Raises
    ------
    BadValueError
        If requests ask for a model that no worker has.
    """
    codes = models_of(requests)
    if cluster.models is None or codes is None:
        return None
    serves = np.array([[name in models for name in requests.model_names] for models in cluster.models], np.int8)
    somewhere = serves.max(axis=0) > 0
    nowhere = np.flatnonzero((codes >= 0) & ~somewhere[codes])
    if nowhere.size:
        row = int(nowhere[0])
        raise BadValueError(
            "No worker has the model that a request asks for.",
            given=f"row {row + 1}: {requests.model_names[codes[row]]!r}",
            allowed=", ".join(sorted({name for models in cluster.models for name in models})),
            where="models",
            hint="give a worker that model, or leave models out: then every worker has every model",
        )
    return serves
