"""Study ``trainer-recovery``: how long a real job of a few processes stands still when one of them is killed."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.processes import ChildProcess, python_module
from wavetank.live.ranks import LOOPBACK, Event, Fault, Ranks
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.failures.interface import COMPUTE_LOST, FROM_CHECKPOINT, SKIP_STEP, Loss
from wavetank.training.failures.tiny_model import BUCKETS, train_on, trained_alone

_LIMIT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class TrainerRecovery(Study):
    """A small model is trained by processes of this machine, one of which is killed while gradients are summed.  Either
    survivors recover within the step, or all are ended and one process less starts again from a checkpoint in a file.
    Seeds draw who dies, and at which bucket.  Nothing waits for a scheduler, and the model is small: a restart is
    hardly more than starting Python and torch.
    """

    name: ClassVar[str] = "trainer-recovery"
    baseline: ClassVar[str] = "checkpoint-restart"
    primary: ClassVar[str] = "standstill_s"
    secondary: ClassVar[tuple[str, ...]] = ("difference",)
    in_process: ClassVar[bool] = True
    by_name: ClassVar[bool] = True
    default_seeds: ClassVar[int] = 4
    metrics = (
        Metric("standstill_s", "s", "lower", "measured",
               "from the notice of the death until a survivor has done the step in which it struck, or a later one "
               "where that step is not applied",
               words="standstill"),
        Metric("difference", "", "lower", "measured",
               "largest difference of a parameter from those of the same steps in one process without failure"),
        Metric("step_s", "s", "", "measured", "median time of a step before the death", words="time of a step"),
        Metric("steps_again", "steps", "lower", "measured", "steps done twice"),
    )  # fmt: skip
    charts = (
        Chart("bars", "Standstill after a kill", y="standstill_s", log="y", says="Shorter goes on sooner."),
    )  # fmt: skip

    replicas: int = setting(2, unit="replicas", says="Processes at the start", low=2, high=8)
    microbatches: int = setting(8, says="Microbatches of a step", low=1, high=4096)
    steps: int = setting(16, unit="steps", says="Steps of the run", low=2, high=100_000)
    strike: int = setting(
        12, unit="steps", says="Steps done before the one in which a replica dies", low=1, high=99_999
    )
    checkpoint_every: int = setting(5, unit="steps", says="Steps between checkpoints", low=1, high=100_000)

    def check(self) -> None:
        """Refuse a death after the end."""
        if self.strike >= self.steps:
            raise BadValueError("The replica dies after the end.", given=f"step {self.strike} of {self.steps}",
                                allowed=f"strike below {self.steps}", where=f"study {self.name}")  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "A large job's restart also waits for a scheduler, for its file system, and for thousands of processes.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Train with one death, and return how long nothing went on."""
        answer = system.answer(Loss(self.replicas - 1, 0, self.strike % self.checkpoint_every))
        if answer == SKIP_STEP and hasattr(system, "heartbeat_s"):
            return self._torchft(system.heartbeat_s, stream(seed, "death"))
        if answer not in (COMPUTE_LOST, FROM_CHECKPOINT):
            raise BadValueError(
                "Our processes recover in the step or restart, nothing else.",
                given=answer,
                allowed=(COMPUTE_LOST, FROM_CHECKPOINT),
                where=type(system).__qualname__,
            )
        draws = stream(seed, "death")
        fault = Fault(
            rank=int(draws.integers(self.replicas)),
            point="in flight",
            at={"step": self.strike, "bucket": int(draws.integers(BUCKETS))},
        )
        with tempfile.TemporaryDirectory(prefix="wavetank-checkpoint-") as folder:
            return self._run(Path(folder) / "state", fault, restarts=answer == FROM_CHECKPOINT)

    def _run(self, file: Path, fault: Fault, *, restarts: bool) -> Measurements:
        seen = _Seen(self.strike)
        with self._ranks(file, self.replicas, [fault], saves=restarts) as events:
            for event in events:
                seen.take(event)
                if event.kind == "died" and restarts:
                    break
        if restarts:
            with self._ranks(file, self.replicas - 1, [], saves=True) as events:
                for event in events:
                    seen.take(event)
        if seen.parameters is None or not seen.died_s < seen.done_s:
            raise WavetankError("The training did not go on after a death.", given=f"replica {fault.rank}, {fault.at}")
        alone = trained_alone(self.steps, self.microbatches)
        return Measurements({
            "standstill_s": seen.done_s - seen.died_s,
            "difference": float(np.abs(seen.parameters - alone).max()),
            "step_s": float(np.median(np.diff(list(seen.first_s.values())))),
            "steps_again": len(seen.again),
        })  # fmt: skip

    def _torchft(self, heartbeat_s: float, draws: np.random.Generator) -> Measurements:
        """Do the same with torchft's processes, one of which dies before its gradients are summed."""
        victim, process = int(draws.integers(self.replicas)), "wavetank.training.failures.torchft_process"
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wavetank-torchft-")))
            lighthouse = ChildProcess(
                python_module(process, "lighthouse", str(int(heartbeat_s * 1000))), name="torchft's lighthouse",
                environment={"RUST_LOG": "error"},
            )  # fmt: skip
            stack.callback(lighthouse.stop, 0)
            address = lighthouse.first_line()
            children = []
            for replica in range(self.replicas):
                strike = self.strike if replica == victim else -1
                words = [replica, self.replicas, address, self.steps, self.microbatches, strike]
                child = ChildProcess(
                    python_module(process, "replica", *map(str, words), str(folder / f"{replica}.npy")),
                    name=f"torchft replica {replica}",
                    environment={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK, "RUST_LOG": "error"},
                )
                stack.callback(child.stop, 0)
                children.append(child)
            children[victim].wait(_LIMIT_S)
            died_s = time.monotonic()
            survivor = children[0 if victim else 1]
            if children[victim].returncode != -signal.SIGKILL or survivor.wait(_LIMIT_S) != 0:
                raise WavetankError("The training with torchft did not go on.", given=survivor.output()[-500:])
            lines = [line.split() for line in survivor.output().splitlines() if line.startswith("step ")]
            applied = [(float(words[1]), int(words[2])) for words in lines if words[3] == "1"]
            parameters = np.load(folder / f"{0 if victim else 1}.npy")
        alone = trained_alone(self.steps, self.microbatches)
        return Measurements({
            "standstill_s": min(at_s for at_s, step in applied if step >= self.strike) - died_s,
            "difference": float(np.abs(parameters - alone).max()),
            "step_s": float(np.median(np.diff([at_s for at_s, step in applied if step < self.strike]))),
            "steps_again": 0,
        })  # fmt: skip

    @contextlib.contextmanager
    def _ranks(self, file: Path, size: int, faults: list[Fault], *, saves: bool) -> Iterator[Iterator[Event]]:
        arguments = {
            "file": str(file) if saves else "",
            "every": self.checkpoint_every,
            "steps": self.steps,
            "microbatches": self.microbatches,
        }
        with Ranks(train_on, size, arguments=arguments, faults=faults, timeout_s=60.0, start_timeout_s=300.0) as ranks:
            yield ranks.events(_LIMIT_S)


class _Seen:
    """When steps were done, a replica died, and the step in which it died was done."""

    def __init__(self, strike: int) -> None:
        self.strike = strike
        self.died_s = self.done_s = 0.0
        self.first_s: dict[int, float] = {}
        self.again: set[int] = set()
        self.parameters: Any = None

    def take(self, event: Event) -> None:
        now_s = time.monotonic()
        if event.kind == "died":
            self.died_s = now_s
        elif event.kind == "returned":
            self.parameters = event.value
        elif event.kind == "raised":
            raise WavetankError("A replica failed.", given=event.value)
        elif not self.died_s:
            self.first_s.setdefault(event.value, now_s)
        elif event.value < self.strike:
            self.again.add(event.value)
        elif event.value == self.strike and not self.done_s:
            self.done_s = now_s
