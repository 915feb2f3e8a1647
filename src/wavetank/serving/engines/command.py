"""``wavetank launch model-server``: a model server that nobody here wrote, with a model that is made here."""

from __future__ import annotations

import click

from wavetank.terminal import say


@click.command()
@click.option(
    "--engine",
    type=click.Choice(["llamacpp", "transformers"]),
    default="llamacpp",
    show_default=True,
    help="llama.cpp's own server, or Transformers' with continuous batching.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of loopback; 0 for any free port.")
@click.option("--core", type=click.IntRange(0), help="The one core on which it runs; all by default.")
@click.option("--layers", type=click.IntRange(1, 64), default=8, show_default=True, help="Layers of the model.")
def command(engine: str, port: int, core: int | None, layers: int) -> int:
    """Serve a tiny Llama of random weights over OpenAI's interface, by an engine of others on the processor.

    Prints its address once it answers; Ctrl-C ends it.  Its words mean nothing, its batching, its caches and its times
    are real.  Needs the extra engines.
    """
    import signal

    from wavetank.errors import BadValueError
    from wavetank.live.processes import own_cores
    from wavetank.serving.engines.running import running
    from wavetank.serving.engines.servers import LlamaCpp, Server, TransformersServe

    cores = [frozenset([core])] if core is not None else []
    if core is not None and cores[0] not in own_cores():
        allowed = ", ".join(str(*each) for each in own_cores()) or "none: this system cannot pin"
        raise BadValueError("This process may not use that core.", given=core, allowed=allowed, where="--core")
    server: Server = LlamaCpp(layers=layers) if engine == "llamacpp" else TransformersServe(layers=layers)
    # What asks to end is waited for, so that the server ends with this process.
    numbers = {signal.SIGTERM, signal.SIGINT}
    before = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        with running(server, 1, cores=cores, ports=[port] if port else []) as (found,):
            say(found.url)
            try:
                found.process.until(lambda: False, float("inf"), "ended")
            except KeyboardInterrupt:
                return 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
