"""``wavetank launch twin``: state and advice of a site whose sensors send to a topic."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
from typing import TYPE_CHECKING

import click

from wavetank.errors import BadValueError, WavetankError
from wavetank.exits import INTERRUPTED
from wavetank.settings import check_parameters
from wavetank.terminal import say, say_wrapped

if TYPE_CHECKING:
    from wavetank.insight.facility.topic_server import TopicServer

_FORECASTS = ("none", "persistence", "yesterday", "week", "ridge")


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=8790, show_default=True,
              help="Port on 127.0.0.1; 0: any that is free.")  # fmt: skip
@click.option("--servers", default="100", show_default=True, help="Servers of the site.")
@click.option("--late-s", default="300", show_default=True, help="Seconds for which late messages are waited for.")
@click.option("--forecast", type=click.Choice(_FORECASTS), default="ridge", show_default=True,
              help="Who says what load comes, once three days are known; ridge: ten.")  # fmt: skip
@click.option("--every-min", type=click.IntRange(1, 720), default=15, show_default=True,
              help="Minutes between advices.")  # fmt: skip
@click.option("--for-s", type=click.FloatRange(0, 10**9), default=0.0, show_default=True,
              help="Seconds until the end; 0: none.")  # fmt: skip
def command(port: int, servers: str, late_s: str, forecast: str, every_min: int, for_s: float) -> int:
    """Serve what a data centre's sensors say of it, and what temperature and how many servers are advised.

    Sensors send lines of JSON to the port: {"topic": "site/rack/server/metric", "ts": seconds, "value": number,
    "unit": "W"}.  Metrics are power (W), load, inlet, room, supply, outside (C) and humidity (%).  The same port
    answers GET /state, /advice and /counts.  Nothing is set: advice is for those who run the site.
    """
    from wavetank.insight.facility.ingest import Ingestion, Rules
    from wavetank.insight.facility.live_twin import LiveTwin
    from wavetank.insight.facility.site import Site
    from wavetank.insight.facility.topic_server import TopicServer

    if math.isnan(for_s):
        raise BadValueError("A time to run is a number of seconds.", given=for_s, where="--for-s")
    site = Site(**check_parameters(Site, {"servers": servers}, where="launch twin", what="option"))
    rules = Rules(**check_parameters(Rules, {"late_s": late_s}, where="launch twin", what="option"))
    twin = LiveTwin(site, forecast=forecast, interval_min=every_min)
    return asyncio.run(_serve(TopicServer(ingestion=Ingestion(rules), twin=twin), port, for_s))


async def _serve(server: TopicServer, port: int, for_s: float) -> int:
    stop, interrupted = asyncio.Event(), False

    def end() -> None:
        nonlocal interrupted
        interrupted = True
        stop.set()

    def ready(bound: int) -> None:
        say(f"http://127.0.0.1:{bound}/advice")
        say_wrapped(f"Messages go to 127.0.0.1:{bound}, a line each; Ctrl-C ends.")

    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(each, end)
    if for_s:
        loop.call_later(for_s, stop.set)
    try:
        await server.serve(port, ready, stop)
    except OSError as error:
        raise WavetankError(
            "The port cannot be had.", given=port, hint=f"--port 0 takes a free one ({error})"
        ) from error
    return INTERRUPTED if interrupted else 0
