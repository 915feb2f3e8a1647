"""A process of study ``trainer-recovery``: torchft's lighthouse, or a replica that trains the small model with torchft.

A replica prints a line for every step: its own clock (s), the step, and whether torchft let it be applied.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import numpy as np

from wavetank.training.failures.tiny_model import parameters_of, tiny_trainer

_LIMIT = timedelta(seconds=60)
_LOOK_S = 0.01


def main(replica: int, replicas: int, address: str, steps: int, microbatches: int, strike: int, file: str) -> None:
    """Train, die before the gradients of step ``strike`` are summed, or else save the parameters.

    Parameters
    ----------
    replica, replicas : int
    address : str
        Of the lighthouse.
    steps, microbatches : int
    strike : int
        Step; negative for a replica that lives.
    file : str
        Where the parameters are written at the end.
    """
    import torch
    from torchft import Manager, ProcessGroupGloo

    trainer = tiny_trainer()
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=_LIMIT),
        load_state_dict=lambda state: trainer.model.load_state_dict(state["model"]),
        state_dict=lambda: {"model": trainer.model.state_dict()},
        min_replica_size=1,
        use_async_quorum=False,
        timeout=_LIMIT,
        quorum_timeout=_LIMIT,
        connect_timeout=_LIMIT,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=address,
        replica_id=f"replica-{replica}",
        hostname="127.0.0.1",
        # All begin with the same parameters; replicas that wait for one another would only shift the steps.
        init_sync=False,
    )
    # A quorum is formed by those who are there: nobody begins before all are.
    Path(file).with_suffix(".ready").touch()
    while len(list(Path(file).parent.glob("*.ready"))) < replicas:
        time.sleep(_LOOK_S)
    share = microbatches // replicas
    gradients = [each.grad for each in trainer.model.parameters()]
    for step in range(steps):
        manager.start_quorum()
        for each in gradients:
            each.zero_()
        for number in range(step * microbatches + replica * share, step * microbatches + (replica + 1) * share):
            torch.manual_seed(number)
            (trainer.microbatches(trainer.model, number) / share).backward()
        if step == strike:
            os.kill(os.getpid(), signal.SIGKILL)
        for work in [manager.allreduce(each) for each in gradients]:
            work.wait()
        applied = manager.should_commit()
        if applied:
            trainer.optimizer.step()
        _say("step", time.monotonic(), step, int(applied))
    np.save(file, parameters_of(trainer))
    manager.shutdown(wait=False)
    # Threads of the library could keep the interpreter from ending.
    os._exit(0)


def lighthouse(heartbeat_ms: int) -> None:
    """Serve the count of living replicas until this process is ended; the first line is its address.

    Parameters
    ----------
    heartbeat_ms : int
        After which a replica that says nothing counts as dead.
    """
    from torchft.coordination import LighthouseServer

    # The long time for joining: else the first to come would begin alone.
    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=60_000, heartbeat_timeout_ms=heartbeat_ms
    )
    _say(server.address().replace(socket.gethostname(), "127.0.0.1"))
    threading.Event().wait()


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    role, *given = sys.argv[1:]
    if role == "lighthouse":
        lighthouse(int(given[0]))
    else:
        main(
            replica=int(given[0]),
            replicas=int(given[1]),
            address=given[2],
            steps=int(given[3]),
            microbatches=int(given[4]),
            strike=int(given[5]),
            file=given[6],
        )
