"""llama.cpp's own server as the whole of a process: started with one JSON text, ended by SIGTERM.

The package ``xllamacpp`` runs the server in threads of the process that makes it, so that it is given one of its own.
"""

from __future__ import annotations

import signal
import sys

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the server is started.

    Attributes
    ----------
    model : str
        Path of a GGUF file.
    name : str
        Under which it is served.
    port : int
        On loopback.
    slots : int
        Most requests that are generated for at once.
    slot_tokens : int
        Context of each.
    batch_tokens : int
        Most tokens of a step.
    threads : int
        That compute; connections have more, which sleep.
    prefix_caching : bool
        Whether a slot keeps its last context for a prompt that begins alike.
    """

    model: str
    name: str
    port: int
    slots: int
    slot_tokens: int
    batch_tokens: int
    threads: int
    prefix_caching: bool


# One thread per connection: requests that wait for a slot hold one each, and pages for health and metrics need some.
_HTTP_THREADS = 160
_CACHE_MIB = 256


def main(text: str) -> None:
    """Serve until SIGTERM or SIGINT."""
    import xllamacpp

    options = msgspec.json.decode(text, type=Options)
    # Blocked in all threads, so that the one that waits gets it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    asked = xllamacpp.CommonParams()
    asked.model.path = options.model
    asked.model_alias = {options.name}
    asked.hostnames = ["127.0.0.1"]
    asked.port = options.port
    asked.n_parallel = options.slots
    asked.n_ctx = options.slots * options.slot_tokens
    asked.n_batch = options.batch_tokens
    asked.cpuparams.n_threads = options.threads
    asked.cpuparams_batch.n_threads = options.threads
    asked.n_threads_http = _HTTP_THREADS
    asked.cache_prompt = options.prefix_caching
    # Contexts whose slot another request takes are kept beside the slots, as by default, within limits.
    asked.cache_ram_mib = _CACHE_MIB if options.prefix_caching else 0
    asked.endpoint_metrics = True
    asked.fit_params = False
    asked.ui = False
    try:
        server = xllamacpp.Server(asked)
    except RuntimeError as error:
        # What llama.cpp printed says more than a traceback of its binding.
        raise SystemExit(f"llama.cpp's server did not start: {error}") from None
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    del server


if __name__ == "__main__":
    main(sys.argv[1])
