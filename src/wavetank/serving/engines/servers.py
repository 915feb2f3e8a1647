"""Model servers that nobody here wrote: how each is started, asked, and seen by the simulator.

Both batch continuously on the processor: llama.cpp's own server, from the package ``xllamacpp``, and Transformers'
``transformers serve --continuous-batching``.  They serve a model that was made here
(:class:`wavetank.serving.engines.tiny_llama.TinyLlama`), because nothing can be downloaded.
:mod:`wavetank.serving.engines.running` runs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from wavetank.live.processes import python_code, python_module
from wavetank.platforms.step_time import StepTime
from wavetank.serving.engines.llamacpp_process import Options
from wavetank.serving.engines.tiny_llama import MODEL, TinyLlama
from wavetank.serving.simulator.cluster import Cluster
from wavetank.settings import check_ranges, setting


@dataclass(frozen=True)
class Command:
    """What starts a server.

    Attributes
    ----------
    words : sequence of str
        Program and arguments.
    environment : mapping
        On top of this process's own; None takes a variable away.
    """

    words: Sequence[str]
    environment: Mapping[str, str | None] = field(default_factory=dict)


class Server(Protocol):
    """A kind of model server.

    Attributes
    ----------
    as_text : bool
        Whether prompts must be text: it takes no token ids.
    reports_cached : bool
        Whether its answers say how many prompt tokens came from the prefix cache.
    """

    @property
    def as_text(self) -> bool:
        """Whether prompts must be text."""

    @property
    def reports_cached(self) -> bool:
        """Whether its answers say what came from the prefix cache."""

    def command(self, port: int, folder: Path) -> Command:
        """Return what starts it on a port of loopback; ``folder`` is its own for as long as it runs."""

    def cluster(self, workers: int, step_time: StepTime, refresh_s: float) -> Cluster:
        """Return how the simulator sees a number of them behind a router."""


def _threads(count: int) -> dict[str, str | None]:
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(count))


@dataclass(frozen=True, kw_only=True)
class LlamaCpp:
    """Every step decodes a token for each slot that generates and fills what is left of the batch with prompts.

    A slot keeps its last context; a prompt goes to the free slot whose context begins alike, and only the rest of it is
    computed.  The simulator's prefix cache is by blocks and drops what was used least recently: it finds more than the
    slots do when requests with one prefix run at the same time.
    """

    layers: int = setting(8, says="Layers of the model; 8 are 4.5 million parameters", low=1, high=64)
    slots: int = setting(16, unit="requests", says="Most requests that are generated for at once", low=1, high=128)
    slot_tokens: int = setting(2048, unit="tokens", says="Context of each slot", low=16, high=100_000)
    batch_tokens: int = setting(2048, unit="tokens", says="Most tokens of a step", low=32, high=100_000)
    threads: int = setting(1, says="Threads that compute", low=1, high=256)
    prefix_caching: bool = setting(True, says="Whether slots keep their contexts for prompts that begin alike")

    as_text = False
    reports_cached = True

    def __post_init__(self) -> None:
        check_ranges(self)

    def command(self, port: int, folder: Path) -> Command:
        """Return what starts it on a port of loopback."""
        options = Options(
            model=str(TinyLlama(layers=self.layers).gguf()),
            name=MODEL,
            port=port,
            slots=self.slots,
            slot_tokens=self.slot_tokens,
            batch_tokens=self.batch_tokens,
            threads=self.threads,
            prefix_caching=self.prefix_caching,
        )
        words = python_module("wavetank.serving.engines.llamacpp_process", msgspec.json.encode(options).decode())
        return Command(words, _threads(self.threads))

    def cluster(self, workers: int, step_time: StepTime, refresh_s: float) -> Cluster:
        """Return how the simulator sees a number of them behind a router."""
        return Cluster(
            workers=workers,
            step_time=step_time,
            max_running=self.slots,
            max_batched_tokens=max(self.batch_tokens, self.slots),
            kv_capacity_tokens=self.slots * self.slot_tokens,
            kv_watermark=0.0,
            prefix_caching=self.prefix_caching,
            refresh_s=refresh_s,
        )


_SERVE = "from transformers.cli.transformers import main; main()"


@dataclass(frozen=True, kw_only=True)
class TransformersServe:
    """Paged attention in torch: decodes first, then prompts, up to the tokens of a batch; prefixes share blocks.

    Its server takes text alone and refuses fields that OpenAI does not have.
    """

    layers: int = setting(8, says="Layers of the model; 8 are 4.5 million parameters", low=1, high=64)
    continuous: bool = setting(True, says="Whether it batches continuously; else it answers one request at a time")
    blocks: int = setting(1024, says="Blocks of the KV cache", low=16, high=10**6)
    block_tokens: int = setting(32, unit="tokens", says="Tokens of a block", low=1, high=1024)
    batch_tokens: int = setting(256, unit="tokens", says="Most tokens of a step", low=32, high=8192)
    threads: int = setting(1, says="Threads that compute", low=1, high=256)

    as_text = True
    reports_cached = False

    def __post_init__(self) -> None:
        check_ranges(self)

    def command(self, port: int, folder: Path) -> Command:
        """Return what starts it on a port of loopback."""
        words = ["serve", MODEL, "--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port)]
        if self.continuous:
            words += [
                "--continuous-batching", "--cb-num-blocks", str(self.blocks), "--cb-block-size",
                str(self.block_tokens), "--cb-max-batch-tokens", str(self.batch_tokens),
            ]  # fmt: skip
        environment = {
            # Other entries of the user's cache, and the network, are out of reach.
            "HF_HUB_CACHE": str(TinyLlama(layers=self.layers).hub() / "hub"),
            "HF_HOME": str(folder),
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "CUDA_VISIBLE_DEVICES": "",
        }
        return Command(python_code(_SERVE, *words), {**environment, **_threads(self.threads)})

    def cluster(self, workers: int, step_time: StepTime, refresh_s: float) -> Cluster:
        """Return how the simulator sees a number of them behind a router."""
        return Cluster(
            workers=workers,
            step_time=step_time,
            max_running=self.batch_tokens if self.continuous else 1,
            max_batched_tokens=self.batch_tokens,
            kv_capacity_tokens=self.blocks * self.block_tokens,
            kv_watermark=0.0,
            prefix_caching=self.continuous,
            refresh_s=refresh_s,
        )
