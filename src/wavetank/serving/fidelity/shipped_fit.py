"""What was fitted to the recorded runs and ships with the package: data with the runs that it came from.

A user with one run of their own has nothing to fit to, and a user of ``llm-routing`` has none at all.  The first is
judged against these coefficients; the second reads how far the roofline, calibrated or not, was from the same runs.
``shipped_fit.toml`` holds both; a test computes them again where the data set is.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from wavetank.platforms.engine_overheads import EngineOverheads

_FORMAT = 2
BARE, RUN_LEFT_OUT, DEVICE_LEFT_OUT = "data sheets alone", "run left out", "device left out"
ROOFLINES = (BARE, RUN_LEFT_OUT, DEVICE_LEFT_OUT)


@dataclass(frozen=True, kw_only=True, eq=False)
class ShippedFit:
    """Coefficients and errors that ship with the package.

    Attributes
    ----------
    overheads : EngineOverheads
        Of ``profiles-with-overheads``, fitted to all of the runs together.
    source : str
        Where the runs are from.
    runs : mapping of str to str
        ``<hardware>/<model>`` to the SHA-256 of the requests.
    roofline_deviations : mapping of str to mapping of str to (float, float, float)
        Word of :data:`ROOFLINES`, then run, to predicted / measured - 1 of the means of time to first token, time per
        output token and end-to-end time.
    """

    overheads: EngineOverheads
    source: str
    runs: Mapping[str, str]
    roofline_deviations: Mapping[str, Mapping[str, tuple[float, float, float]]]

    def said(self) -> str:
        """Return in one sentence what the coefficients are and where they come from."""
        overheads = self.overheads
        return (
            f"Coefficients that ship with the package count: step_s {overheads.step_s * 1e6:.1f} us, sequence_s "
            f"{overheads.sequence_s * 1e6:.1f} us, fitted to {', '.join(self.runs)} ({self.source})."
        )

    def said_of_roofline(self, device: str, *, calibrated: bool) -> str:
        """Return what the step times of a device are, and how far such ones were from the recorded runs.

        Parameters
        ----------
        device : str
        calibrated : bool
            Whether the roofline has the fitted figures that ship.
        """
        from wavetank.platforms.calibration import said_of

        compared = "(wavetank compare serving-fidelity)"
        if not calibrated:
            return (
                "Step times are a roofline of data-sheet figures, fitted to nothing. On recorded runs of vLLM its mean "
                f"times to first token, per output token and end to end were off by: {self._listed(BARE)} {compared}."
            )
        return (
            f"Step times are a calibrated roofline. {said_of(device)} On recorded runs of vLLM left out of the fit its "
            "mean times to first token, per output token and end to end were off by: "
            f"{self._listed(RUN_LEFT_OUT)}; without any measurement of the run's own device by: "
            f"{self._listed(DEVICE_LEFT_OUT)} {compared}. No run on several devices that share layers is among them"
            + ("." if device in {run.partition("/")[0] for run in self.runs} else f", and none on {device}.")
        )

    def _listed(self, roofline: str) -> str:
        return ", ".join(
            f"{run} {ttft:+.0%} / {tpot:+.0%} / {e2e:+.0%}"
            for run, (ttft, tpot, e2e) in self.roofline_deviations[roofline].items()
        )


@cache
def shipped_fit() -> ShippedFit:
    """Return what ships with the package."""
    found = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    if found["format"] != _FORMAT:
        raise ValueError("shipped_fit.toml is of another format than this code")
    fitted = found["profiles-with-overheads"]
    return ShippedFit(
        overheads=EngineOverheads(step_s=fitted["step_s"], sequence_s=fitted["sequence_s"]),
        source=found["source"],
        runs=found["runs"],
        roofline_deviations={
            which: {run: (a, b, c) for run, (a, b, c) in found["roofline"][which].items()} for which in ROOFLINES
        },
    )
