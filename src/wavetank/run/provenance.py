"""Where a run's figures come from: machine, libraries, programs, environment and code."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import wavetank
from wavetank.ledger import catalog, code
from wavetank.run import own
from wavetank.run.runfolder import FORMAT, Plan, command_of
from wavetank.study.study import Study

# Libraries that do a part of the work in some study, or compete in one.
_LIBRARIES = (
    "numpy", "numba", "llvmlite", "scipy", "duckdb", "polars", "pyarrow", "pandas", "ortools", "torch", "triton",
    "mkl", "threadpoolctl", "devito", "opencv-python-headless", "opencv-python", "z3-solver", "ppsim", "kademlia",
    "libp2p", "httptools", "uvloop", "litellm", "vllm-router", "cryptography", "networkx", "msgspec", "joblib",
)  # fmt: skip
# Programs that compete in some study, and how each names its version.
_PROGRAMS = {
    "git": "--version", "gcc": "--version", "haproxy": "-v", "nginx": "-v", "envoy": "--version", "unison": "-version",
    "syncthing": "--version", "erlc": "-version", "java": "-version",
}  # fmt: skip
# Variables that change how fast or how exactly libraries compute.
_VARIABLES = re.compile(r"(OPENBLAS|OMP|MKL|BLIS|NUMBA|GOTO|KMP|MALLOC|CUDA|TRITON|OPENCV|DEVITO|VECLIB|NUMEXPR)_\w+")
_FEATURES = {"avx2": "AVX2", "avx512f": "AVX-512", "amx_tile": "AMX", "asimd": "NEON", "sve": "SVE"}


def of_run(plan: Plan, study: Study, on: str) -> dict[str, Any]:
    """Return what ``run.json`` says of a run before it has run.

    Parameters
    ----------
    plan : Plan
    study : Study
        The study of the plan, built with the plan's settings.
    on : str
        Where trials run.
    """
    return {
        "format": FORMAT,
        "study": plan.study,
        "settings": plan.settings,
        "systems": list(plan.systems),
        "parameters": plan.parameters,
        "seeds": list(plan.seeds),
        "rounds_per_replicate": study.rounds_per_replicate,
        "command": command_of(plan),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "on": on,
        "commit": commit(),
        "code": code_of(plan.study, plan.of_catalog),
        "own": {name: own.facts(each, plan.parameters.get(name, {})) for name, each in plan.own.items()},
        "versions": versions(),
        "programs": programs(),
        "environment": environment(),
        "machine": machine(),
        "data": dict(study.data()),
    }


def machine() -> dict[str, Any]:
    """Return what decides measured figures of this machine: processor, instruction sets, cores, memory, load, GPU."""
    facts = _processor()
    model = facts.get("model name", "") or platform.processor()
    flags = set(facts.get("flags", facts.get("Features", "")).split())
    known = [name for flag, name in _FEATURES.items() if flag in flags]
    found: dict[str, Any] = {
        "processor": model,
        # The widest instruction set decides which kernels libraries choose.
        "features": known[-1:],
        "model": " ".join(facts.get(key, "") for key in ("vendor_id", "cpu family", "model", "stepping")).strip(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if sys.platform == "linux" else 0,
        "system": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release(),
        "load": [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else [],
    }
    device = _device()
    return found | ({"device": device} if device else {})


def _processor() -> dict[str, str]:
    """Return the first processor's lines of /proc/cpuinfo; nothing on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _device() -> str:
    """Return the GPU's name where torch is loaded and sees one: torch is not loaded for this alone."""
    torch = sys.modules.get("torch")
    try:
        return str(torch.cuda.get_device_name()) if torch is not None and torch.cuda.is_available() else ""
    except (RuntimeError, AttributeError):
        return ""


def versions() -> dict[str, str]:
    """Return the versions of Wavetank, Python and all libraries that work or compete in studies."""
    found = {"wavetank": wavetank.__version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def programs() -> dict[str, str]:
    """Return the first line of each known program's version, for those that are installed."""
    found = {}
    for name, option in _PROGRAMS.items():
        path = shutil.which(name)
        if path is None:
            continue
        try:
            done = subprocess.run([path, option], capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
            continue
        lines = (done.stdout or done.stderr).strip().splitlines()
        if lines:
            found[name] = lines[0].strip()[:200]
    return found


def environment() -> dict[str, str]:
    """Return the variables that change what libraries do."""
    return {name: value for name, value in sorted(os.environ.items()) if _VARIABLES.fullmatch(name)}


def commit() -> str:
    """Return the commit of the checkout this code runs from, with ``+changes`` when it differs; empty elsewhere."""
    here = Path(__file__).resolve().parents[3]
    if not (here / ".git").exists():
        return ""

    def git(*words: str) -> str:
        try:
            done = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    found = git("rev-parse", "--short=12", "HEAD")
    return found + "+changes" if found and git("status", "--porcelain", "--", "src") else found


def code_of(study: str, systems: Iterable[str]) -> dict[str, str]:
    """Return the checksums of the problems' folders that hold a study and its systems.

    Parameters
    ----------
    study : str
    systems : iterable of str
    """
    rooms = {catalog.study(study).room, *(catalog.system(name).room for name in systems)}
    return {room: found for room in sorted(rooms) if (found := code.checksum(room))}
