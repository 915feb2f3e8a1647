"""Small platforms and applications whose times can be computed by hand."""

from __future__ import annotations

from wavetank.serving.workflows.interface import Application, Device, Platform, Stage
from wavetank.workloads.workflows import Workflow

GB = 1e9


def platform(
    speeds: tuple[float, ...] = (1.0, 1.0),
    models: tuple[str, ...] = ("a", "b"),
    *,
    room: int = 1,
    load_s: float = 0.0,
    token_bytes: float = 0.0,
    network: float = 1e18,
) -> Platform:
    """Devices with room for some models of 1 GB; 1,000 tokens of a prompt take 1 s there, and so do 10 of an answer."""
    return Platform(
        devices=tuple(
            Device(
                name=f"d{i}", weights_bytes=room * GB, cache_bytes=1000.0, load_bytes_per_s=GB / max(load_s, 1e-12),
                prefill_per_s=dict.fromkeys(models, 1000.0 * speed), decode_per_s=dict.fromkeys(models, 10.0 * speed),
            )
            for i, speed in enumerate(speeds)
        ),
        model_bytes=dict.fromkeys(models, GB),
        token_bytes=dict.fromkeys(models, token_bytes),
        network_bytes_per_s=network,
    )  # fmt: skip


def application(
    parents: tuple[tuple[int, ...], ...],
    seconds: tuple[float, ...],
    *,
    models: tuple[str, ...] = (),
    edge_bytes: tuple[tuple[float, ...], ...] = (),
    arrival_s: float = 0.0,
    **more: object,
) -> Application:
    """Stages that take so long on a device of speed 1: all of it prompt but one token of the answer."""
    names = tuple(f"t{i}" for i in range(len(parents)))
    stages = tuple(
        Stage(model=model, prompt_tokens=round(each * 1000 - 100), output_tokens=1, **more)  # type: ignore[arg-type]
        for each, model in zip(seconds, models or ("a",) * len(parents), strict=True)
    )
    return Application(
        workflow=Workflow(name="made", tasks=names, parents=parents, edge_bytes=edge_bytes), stages=stages,
        arrival_s=arrival_s,
    )  # fmt: skip
