"""``wavetank launch router``: a routing policy in front of OpenAI-compatible servers."""

from __future__ import annotations

import logging
import sys

import click

from wavetank.exits import INTERRUPTED
from wavetank.serving.proxy.configuration import RouterConfiguration, RouterSettings, make_configuration
from wavetank.settings import assigned, options
from wavetank.terminal import say


@click.command()
@click.option("--policy", metavar="NAME", help="A router of the catalog (wavetank list serving).")
@click.option("--backend", "backends", metavar="URL", multiple=True, help="http://HOST:PORT; repeatable.")
@click.option("--set", "pairs", metavar="KEY=VALUE", multiple=True, help="A parameter of the policy; repeatable.")
@click.option("--config", "file", metavar="FILE", help="TOML: policy, backends, [parameters], settings; flags win.")
@options(RouterSettings, typed=False)
def command(
    policy: str | None, backends: tuple[str, ...], pairs: tuple[str, ...], file: str | None, **settings: str | None
) -> int:
    """Route OpenAI requests to backends as a policy decides: the same object that `compare` simulates.

    Serves completions, responses, messages, embeddings, rerank, audio and more, /v1/models, /health and /metrics until
    SIGTERM or Ctrl-C, which finish requests in flight first.  SIGHUP reads the file and the keys again.  Durations and
    sizes take units: --refresh-s 100ms, --max-body-bytes 16MiB.
    """

    def again() -> RouterConfiguration:
        return make_configuration(
            file=file,
            policy=policy,
            backends=backends,
            parameters=assigned(pairs, "horizon_steps=8"),
            settings={name: value for name, value in settings.items() if value is not None},
        )

    configuration = again()
    from wavetank.serving.proxy.router import run

    chosen = configuration.settings
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("wavetank.router").setLevel(logging.WARNING if chosen.log == "none" else logging.INFO)
    # What clients send is theirs to answer for: the HTTP library's traces of it fill no log.
    logging.getLogger("wavetank.router.http").setLevel(logging.CRITICAL)
    count = len(configuration.backends)

    def ready(address: str) -> None:
        say(f"router on {address}, policy {configuration.policy}, {count} backend{'s' if count > 1 else ''}")
        sys.stdout.flush()

    return 0 if run(configuration, ready, again) else INTERRUPTED
