"""The C++ simulator QUANTAS itself, when it is built on this machine: run as a program on the same experiment files."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.settings import check_parameters, setting


@dataclass(frozen=True, kw_only=True)
class QuantasProgram:
    """QUANTAS's own programs, one for each peer."""

    limit_s: float = setting(600.0, unit="s", says="Time limit of an experiment", low=0.001, high=86_400.0)

    def __post_init__(self) -> None:
        check_parameters(type(self), {"limit_s": self.limit_s}, where="system quantas-cpp")

    def run(self, folder: Path, peer: str, experiment: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run one experiment and return its result.

        Parameters
        ----------
        folder : Path
            Holds a program named after each peer, with or without ``.exe``.
        peer : str
        experiment : mapping
            As in an experiment file.

        Raises
        ------
        BadFileError
            If there is no such program, or it writes no result.
        WavetankError
            If it fails or takes too long.
        """
        program = next((path for path in (folder / peer, folder / f"{peer}.exe") if path.is_file()), None)
        if program is None:
            raise BadFileError("There is no program for this peer.", given=peer, where=str(folder))
        with tempfile.TemporaryDirectory() as home:
            asked, log = Path(home) / "experiment.json", Path(home) / "result.txt"
            asked.write_text(json.dumps({"algorithms": [], "experiments": [{**experiment, "logFile": log.name}]}))
            try:
                subprocess.run(
                    [str(program.resolve()), asked.name],
                    cwd=home,
                    check=True,
                    capture_output=True,
                    timeout=self.limit_s,
                )
                found = json.loads(log.read_text())
            except (subprocess.SubprocessError, OSError) as error:
                raise WavetankError("QUANTAS did not finish.", given=str(error), where=str(program)) from error
            except ValueError as error:
                raise BadFileError("QUANTAS wrote no result.", given=str(error), where=str(program)) from error
        if not isinstance(found, dict) or "tests" not in found:
            raise BadValueError("QUANTAS wrote another form of result.", given=type(found).__name__, where=str(program))
        return found
