"""The workload card of a run: model, data, hardware, plan of parallelism and libraries, checked against a schema.

The keys are those of CCL-Bench's cards, so that its public cards can be read.  What a card does not say is None; a
metric that needs it then has no figure.

Source: "CCL-Bench 1.0: A Trace-Based Benchmark for LLM Infrastructure", arXiv 2605.06544, 2026.
"""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from wavetank.errors import BadFileError, missing_extra
from wavetank.files import read_text

_LARGEST_BYTES = 1 << 20
Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Size = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Rate = Annotated[float, msgspec.Meta(gt=0)]


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a model."""

    num_params: Size | None = None
    num_params_active: Size | None = None
    num_params_embedding: Size | None = None
    num_layers: Count | None = None
    num_heads: Count | None = None
    head_dim: Count | None = None


class CardModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is computed."""

    phase: Literal["training", "inference", "serving"] | None = None
    moe: bool | None = None
    granularity: str | None = None
    model_family: str | None = None
    precision: str | None = None
    epochs: Count | None = None
    iteration: Count | None = None
    model_arch: Architecture = Architecture()


class CardData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it is computed of: sequences of a step, and tokens of each."""

    batch_size: Count | None = None
    batch_size_scope: str | None = None
    seq_len: Count | None = None
    input_len: Count | None = None
    output_len: Count | None = None
    dataset: str | None = None


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How devices are connected; bandwidths in Gbit/s between nodes, then within one."""

    topology: str | None = None
    bandwidth_gbps: tuple[Rate, ...] = ()


class Devices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which devices, and how many in all and of a node.

    ``peak_tflops`` is ours: the dense peak of one of them at the card's precision.
    """

    type: str | None = None
    model: str | None = None
    total_count: Count | None = None
    count_per_node: Count | None = None
    peak_tflops: Rate | None = None


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine."""

    network_topo: Topology = Topology()
    xpu_spec: Devices = Devices()
    driver_version: str | None = None


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Model, data and machine."""

    model: CardModel = CardModel()
    data: CardData = CardData()
    hardware: Hardware = Hardware()


class Framework(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What runs the model."""

    name: str | None = None
    version: str | None = None
    compiler_tool_selection: str | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ranks of each kind of parallelism, and the size of a pipeline's microbatch."""

    dp_replicate: Count | None = None
    dp_shard: Count | None = None
    tp: Count | None = None
    pp: Count | None = None
    cp: Count | None = None
    ep: Count | None = None
    pp_mb: Count | None = None


class Library(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What communicates."""

    name: str | None = None
    version: str | None = None
    env: dict[str, str] | None = None


class Executor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Framework, plan and library of collectives."""

    framework: Framework = Framework()
    model_plan_parallelization: Plan = Plan()
    communication_library: Library = Library()
    protocol_selection: tuple[str, ...] = ()


class TraceKinds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which traces there are."""

    traces: tuple[str, ...] = ()
    metrics_specific_trace: tuple[str, ...] = ()


class Card(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload card.

    Raises
    ------
    BadFileError
        By :func:`read_card` and :func:`card_of`, if it does not fit the schema; the error names the place.
    """

    version: Count
    description: str = ""
    hf_url: str | None = None
    trace_url: str | None = None
    contributor: str | None = None
    contact: str | None = None
    workload: Workload = Workload()
    executor: Executor = msgspec.field(default=Executor(), name="Model-executor")
    metric_source: TraceKinds = TraceKinds()

    def field(self, path: str) -> Any:
        """Return a field by its path in the card.

        Parameters
        ----------
        path : str
            As in ``workload.data.batch_size``; ``executor`` stands for ``Model-executor``.

        Returns
        -------
        object
            None where the card does not say.
        """
        found: Any = self
        for part in path.split("."):
            found = getattr(found, part)
        return found

    def written(self) -> str:
        """Return the card as JSON, without what it does not say."""
        return json.dumps(_said(msgspec.to_builtins(self)), indent=2) + "\n"


def _said(value: Any) -> Any:
    if isinstance(value, dict):
        parts = {key: _said(each) for key, each in value.items()}
        return {key: each for key, each in parts.items() if each not in (None, "", {}, [], ())}
    return value


def card_of(content: Any, where: str = "the card") -> Card:
    """Return a card from plain values.

    Parameters
    ----------
    content : object
        Mappings, lists, texts and numbers.
    where : str
        For messages.

    Raises
    ------
    BadFileError
        If they do not fit the schema.
    """
    try:
        card = msgspec.convert(content, Card, strict=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadFileError(f"This is no workload card: {error}.", where=where, given=type(content).__name__,
                           allowed="the fields of wavetank.insight.metrics.cards.Card") from error  # fmt: skip
    rates = (*card.workload.hardware.network_topo.bandwidth_gbps, card.workload.hardware.xpu_spec.peak_tflops or 1.0)
    if not all(map(math.isfinite, rates)):
        raise BadFileError("A rate of the card is not finite.", where=where, given=rates)
    return card


def read_card(path: Path) -> Card:
    """Read a workload card.

    Parameters
    ----------
    path : Path
        JSON, TOML or, with the library PyYAML, YAML: the end of its name says which.

    Raises
    ------
    BadFileError
        If it cannot be read or does not fit the schema.
    MissingExtraError
        For YAML without PyYAML.
    """
    text = read_text(path, largest_bytes=_LARGEST_BYTES)
    try:
        if path.suffix in (".yaml", ".yml"):
            content = _yaml(text)
        elif path.suffix == ".toml":
            content = tomllib.loads(text)
        else:
            content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFileError(f"The card cannot be read: {error}.", given=path.name, where=str(path)) from error
    return card_of(content, str(path))


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise missing_extra("pyyaml", "insight", needed_for="A card in YAML") from None
    try:
        # A few lines of references to references stand for more values than memory holds.
        if any(isinstance(each, yaml.AliasToken) for each in yaml.scan(text)):
            raise ValueError("references are not read")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")) from error
