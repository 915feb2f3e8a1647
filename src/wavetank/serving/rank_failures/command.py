"""``wavetank launch experts``: a small mixture of experts behind OpenAI's interface, on ranks that you may kill."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from wavetank.terminal import say


@click.command()
@click.option("--ranks", type=click.IntRange(1, 16), default=4, show_default=True, help="Processes that share experts.")
@click.option("--experts", type=click.IntRange(1, 64), default=8, show_default=True, help="Experts of each layer.")
@click.option("--replicas", type=click.IntRange(1, 16), default=2, show_default=True, help="Replicas of each expert.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0.05, 3600), default=1.0, show_default=True,
              help="Seconds of silence after which a rank is taken for dead.")  # fmt: skip
@click.option("--host-copies/--no-host-copies", default=True, show_default=True,
              help="Keep all weights in memory, too.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Of the weights.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on; 0 for any free port.")
@click.option("--drain-s", type=click.FloatRange(0, 3600), default=10.0, show_default=True,
              help="Time for running requests after a signal.")  # fmt: skip
def command(**given: Any) -> int:
    """Serve a small mixture of experts on several processes, and go on when some of them die.

    Prints its address on one line, and the process id of each rank whenever a mask was applied: kill -9 one while a
    client streams.  Ctrl-C lets running requests end and leaves no process.
    """
    from wavetank.serving.proxy.engine import serve
    from wavetank.serving.rank_failures.server import ExpertServer, InstanceThread
    from wavetank.serving.rank_failures.small_model import Shape

    shape = Shape(experts=given["experts"], choices=min(2, given["experts"]), seed=given["seed"])
    settings = {
        "ranks": given["ranks"], "replicas": min(given["replicas"], given["ranks"]), "host": given["host_copies"],
        "timeout_s": given["timeout_s"],
    }  # fmt: skip
    instance = InstanceThread(shape, settings, say)
    instance.start()
    try:
        server = ExpertServer(instance)
        asyncio.run(serve(server, host=given["host"], port=given["port"], drain_s=given["drain_s"], say=say))
    finally:
        instance.close()
    return 0
