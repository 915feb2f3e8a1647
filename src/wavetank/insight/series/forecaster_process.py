"""A process that asks statsforecast or Prophet for forecasts; it runs in the environment of others.

Nothing of Wavetank is imported: it is not there.
"""

import json
import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

_WEEK, _QUARTER = 7, 91

Values = Sequence[float | None]


def main() -> None:
    """Read the question on standard input and print the answer."""
    question = json.load(sys.stdin)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    forecast = MODELS[question["model"]]()
    answers, took = [], []
    for each in question["histories"]:
        began = time.perf_counter()
        answers.append([float(value) for value in forecast(each, question["steps"])])
        took.append(time.perf_counter() - began)
    # Their own messages may stand on the line before.
    sys.stdout.write("\n" + json.dumps({"forecasts": answers, "seconds": took}) + "\n")


def filled(values: Values) -> Any:
    """Return values with straight lines over their gaps; before the first and after the last one, that one.

    Parameters
    ----------
    values : sequence of float or None
        At least one value.
    """
    import numpy as np

    seen = [(at, value) for at, value in enumerate(values) if value is not None]
    return np.interp(np.arange(len(values)), [at for at, _ in seen], [value for _, value in seen])


def _auto_ets() -> Callable[[dict[str, Any], int], Any]:
    from statsforecast.models import AutoETS

    return lambda history, steps: AutoETS(season_length=_WEEK).forecast(y=filled(history["values"]), h=steps)["mean"]


def _mstl() -> Callable[[dict[str, Any], int], Any]:
    from statsforecast.models import MSTL

    def forecast(history: dict[str, Any], steps: int) -> Any:
        values = filled(history["values"])
        periods = [each for each in (_WEEK, _QUARTER) if 2 * each < len(values)]
        return MSTL(season_length=periods).forecast(y=values, h=steps)["mean"]

    return forecast


def _prophet() -> Callable[[dict[str, Any], int], Any]:
    import pandas as pd
    from prophet import Prophet

    def forecast(history: dict[str, Any], steps: int) -> Any:
        values = [math.nan if each is None else each for each in history["values"]]
        times = pd.to_datetime([history["start_ns"] + at * history["step_ns"] for at in range(len(values) + steps)])
        # It leaves days without a value out by itself; samples of its uncertainty change nothing of the middle.
        model = Prophet(uncertainty_samples=0)
        model.fit(pd.DataFrame({"ds": times[: len(values)], "y": values}))
        return model.predict(pd.DataFrame({"ds": times[len(values) :]}))["yhat"]

    return forecast


MODELS = {"auto-ets": _auto_ets, "mstl": _mstl, "prophet": _prophet}


if __name__ == "__main__":
    main()
