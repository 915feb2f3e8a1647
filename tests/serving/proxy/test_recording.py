"""Recordings: what is written is the trace that compare reads."""

# Servers, a client and its requests are opened one inside the other, a line each.
# ruff: noqa: SIM117

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.serving.proxy.recording import Recording
from wavetank.workloads import read_trace


def record(path: Path, *rows: dict[str, Any], block_tokens: int = 16, **more: Any) -> None:
    async def main() -> None:
        recording = Recording(path, block_tokens=block_tokens, **more)
        for row in rows:
            recording.add(**{"reported": True, "model": "m", "blocks": None, **row})
        await recording.close()

    asyncio.run(main())


def row(arrived_s: float, prompt: int = 10, output: int = 5, **more: Any) -> dict[str, Any]:
    return {"arrived_s": arrived_s, "prompt_tokens": prompt, "output_tokens": output, **more}


def test_requests_come_back_in_order_of_arrival(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    record(path, row(5.0, 30, 7, model="b"), row(3.0, 10, 900, model="a"), row(3.5, 20, 1, model="b"))
    trace = read_trace(path)
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 0.5, 2.0], abs=1e-5)
    assert trace.prompt_tokens.tolist() == [10, 20, 30]
    assert trace.output_tokens.tolist() == [900, 1, 7]
    assert [trace.model_names[code] for code in trace.model] == ["a", "b", "b"]  # type: ignore[union-attr]
    assert trace.block_ids is None
    first = json.loads(path.read_text().splitlines()[0])
    assert list(first) == ["wavetank_recording", "arrival_s", "prompt_tokens", "output_tokens", "lengths", "model"]


def test_blocks_come_back_as_the_trace_wants_them(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    big = 2**63 - 1
    record(
        path,
        row(0.0, 40, blocks=[big, 7, 9]),
        row(1.0, 16, blocks=[big]),
        # Long tokens: more pieces of text than the tokens fill.
        row(2.0, 17, blocks=[big, 7, 11, 12]),
        row(3.0, 1, blocks=[]),
    )
    trace = read_trace(path)
    assert trace.block_tokens == 16
    assert trace.block_offsets.tolist() == [0, 3, 4, 6, 6]  # type: ignore[union-attr]
    assert trace.block_ids.tolist() == [0, 1, 2, 0, 0, 1]  # type: ignore[union-attr]


def test_a_recording_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "traffic.ndjson"
    record(path, row(0.0))
    record(path, row(1.0, blocks=[1]))
    assert len(read_trace(path)) == 2
    assert oct(path.stat().st_mode)[-3:] == "600"


@pytest.mark.parametrize("torn", ['{"wavetank_rec', '{"wavetank_recording":1,"arrival_s":17', "{"])
def test_a_line_that_a_crash_tore_is_left_out_and_cut_off(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "traffic.jsonl"
    record(path, row(0.0, 10), row(1.0, 20))
    with path.open("a") as file:
        file.write(torn)
    assert read_trace(path).prompt_tokens.tolist() == [10, 20]
    record(path, row(2.0, 30))
    assert read_trace(path).prompt_tokens.tolist() == [10, 20, 30]
    path.write_text(torn)
    record(path, row(2.0, 30))
    assert read_trace(path).prompt_tokens.tolist() == [30]


@pytest.mark.parametrize(
    "content", ["arrival_s,prompt_tokens\n", "{}\n", "[]\n", "x", '{"wavetank_recording":2}\n',
                '{"wavetank_recording":1\n', '{"wavetank_recording":1,"block_tokens":64}\n'],
)  # fmt: skip
def test_another_file_is_not_written_to(tmp_path: Path, content: str) -> None:
    path = tmp_path / "traffic.jsonl"
    path.write_text(content)
    with pytest.raises(BadFileError):
        record(path, row(0.0))
    assert path.read_text() == content


def test_what_cannot_be_written_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(BadValueError, match="JSON lines"):
        record(tmp_path / "traffic.csv")
    with pytest.raises(BadFileError, match="No such file"):
        record(tmp_path / "missing" / "traffic.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(BadFileError, match="Is a directory"):
        record(tmp_path / "folder.jsonl")


def test_a_full_disk_costs_the_rows_not_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "traffic.jsonl"
    real, full = os.write, [True]

    def write(file: int, data: bytes) -> int:
        if full[0] and data.startswith(b'{"wavetank_recording"') and len(data) > 20:
            real(file, data[:20])
            full.append(True)
            raise OSError(28, "No space left on device")
        return real(file, data)

    reported: list[tuple[str, int]] = []

    async def main() -> None:
        recording = Recording(
            path,
            block_tokens=16,
            written=lambda n: reported.append(("written", n)),
            lost=lambda n: reported.append(("lost", n)),
        )
        monkeypatch.setattr("wavetank.serving.proxy.recording.os.write", write)
        recording.add(reported=True, model="m", blocks=None, **row(0.0, 10))
        await recording.flush()
        full[0] = False
        recording.add(reported=True, model="m", blocks=None, **row(1.0, 20))
        await recording.close()

    asyncio.run(main())
    assert reported == [("lost", 1), ("written", 1)]
    assert read_trace(path).prompt_tokens.tolist() == [20]


def test_the_routers_traffic_is_the_trace_that_is_read(live: Any, tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    secret = "a secret nobody may read"

    async def main() -> None:
        async with live.backends(2) as servers, live.routing(*servers, record=str(path), block_tokens=8) as router:
            async with aiohttp.ClientSession(router.address) as client:
                bodies = [
                    live.ask(secret * 10),
                    live.ask(secret * 10, stream=True),
                    live.ask(secret * 10 + "more", stream=True, stream_options={"include_usage": True}),
                ]
                for body in bodies:
                    async with client.post("/v1/chat/completions", json=body) as answer:
                        await answer.read()
                async with client.post("/v1/completions", json={"model": "m", "prompt": [1, 2, 3] * 7}) as answer:
                    await answer.read()
                async with client.post("/v1/chat/completions", data=b"nonsense") as answer:
                    assert answer.status == 400

    live.run(main())
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["lengths"] for each in rows] == ["reported", "estimated", "reported", "reported"]
    # 244 bytes at first, then at the ratio that ten reported tokens taught.
    assert [each["output_tokens"] for each in rows] == [3, 8, 8, 3]
    assert (rows[0]["prompt_tokens"], rows[2]["prompt_tokens"], rows[3]["prompt_tokens"]) == (10, 21, 10)
    assert secret not in path.read_text()
    trace = read_trace(path)
    assert len(trace) == 4
    assert (np.diff(trace.arrival_s) >= 0).all()
    offsets, ids = trace.block_offsets, trace.block_ids
    assert offsets is not None
    assert ids is not None
    # The first and the third prompt begin alike.
    assert ids[offsets[0]] == ids[offsets[2]]
    assert ids[offsets[3]] not in ids[: offsets[3]]


def test_compare_reads_a_recording(live: Any, tmp_path: Path) -> None:
    from wavetank.serving.routing.baselines import RoundRobin
    from wavetank.serving.routing.study import LLMRouting

    path = tmp_path / "traffic.jsonl"
    record(path, *(row(0.05 * number, 100 + number, 20, blocks=[number]) for number in range(60)))
    study = LLMRouting(trace=str(path), workers=2, layout="replicas", load=0.0, loads=(0.5,), refreshes_s=(0.1,))
    past, served = study.split(0)
    assert len(past) + len(served) == 60
    assert served.block_tokens == 16
    assert study.serve(RoundRobin(), served).finish_s.size == len(served)
