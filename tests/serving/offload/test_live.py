"""Real threads: every byte as it was, the loop left anywhere, files that change, threads that die."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.serving.offload.chunkflow import ChunkFlow
from wavetank.serving.offload.live import (
    Block,
    ChunkedWeights,
    Link,
    StreamError,
    opened,
    read_exactly,
    resident_tensors,
)
from wavetank.serving.offload.rivals import FixedYield
from wavetank.serving.offload.weight_files import MANIFEST, open_blocks, write_blocks
from wavetank.sim.links import CopyView, TokenBucket

Weights = list[dict[str, np.ndarray[Any, Any]]]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Fail a test that leaves a copying thread behind."""
    yield
    gc.collect()
    for each in threading.enumerate():
        if each.name == "chunked-weights":
            each.join(2)
            assert not each.is_alive()


@pytest.fixture
def truth(tmp_path: Path) -> Weights:
    """Return the weights of a folder of five blocks of unequal tensors."""
    drawn = np.random.default_rng(3)
    blocks = [
        {f"t{i}": drawn.integers(0, 256, (3, 100 * i + 7), np.uint8) for i in range(4)}
        | {"f": drawn.standard_normal(50 + number).astype(np.float32)}
        for number in range(5)
    ]
    write_blocks(tmp_path, blocks)
    return blocks


def same(block: Block, truth: Weights) -> bool:
    """Return whether a block has the bytes that were written."""
    return set(block) == set(truth[block.number]) and all(
        np.array_equal(block[name], each) for name, each in truth[block.number].items()
    )


class Jittery:
    """A rule that lets copies wait at random, and takes its time."""

    def __init__(self, seed: int) -> None:
        self.drawn = np.random.default_rng(seed)

    def waits(self, view: CopyView) -> bool:
        time.sleep(float(self.drawn.exponential(2e-4)))
        return view.due_ps > 0 and bool(self.drawn.random() < 0.01)


@pytest.mark.parametrize(
    ("resident", "chunk_bytes", "ahead"),
    [(0.0, 10_000, 1), (0.0, 1, 1), (0.3, 100, 0), (0.5, 333, 2), (1.0, 7, 1), (0.99, 64, 9), (0.0, 100, 5)],
)
def test_every_byte_of_every_block_is_as_it_was_written(
    tmp_path: Path, truth: Weights, resident: float, chunk_bytes: int, ahead: int
) -> None:
    rule = ChunkFlow() if chunk_bytes == 1 else Jittery(chunk_bytes)
    with ChunkedWeights(tmp_path, resident=resident, chunk_bytes=chunk_bytes, ahead=ahead, rule=rule) as weights:
        assert len(weights) == 5
        for _ in range(3):
            numbers = []
            for block in weights:
                assert same(block, truth)
                with weights.collective():
                    assert same(block, truth)
                numbers.append(block.number)
            assert numbers == [0, 1, 2, 3, 4]
        counted = weights.counted
    whole = sum(each.nbytes for block in truth for each in block.values())
    assert counted.blocks == 15
    assert counted.copied_bytes <= (3 + 1) * whole * (1 - resident)
    if resident == 0:
        assert counted.copied_bytes >= 3 * whole
        assert counted.bytes_per_s > 0
    if resident == 1:
        assert (counted.copied_bytes, counted.peak_bytes) == (0, whole)
        assert not any(each.name == "chunked-weights" for each in threading.enumerate())


def test_memory_is_what_stays_and_the_landing_slots(tmp_path: Path, truth: Weights) -> None:
    with ChunkedWeights(tmp_path, ahead=1) as weights:
        largest = max(sum(-(-each.nbytes // 64) * 64 for each in block.values()) for block in truth)
        assert weights.counted.peak_bytes == 2 * largest


def test_whole_tensors_stay_and_no_less_than_the_share(tmp_path: Path, truth: Weights) -> None:
    block = open_blocks(tmp_path)[0]
    for share in (0.0, 0.01, 0.4, 0.77, 1.0):
        kept = sum(each.n_bytes for each in resident_tensors(block, share))
        smallest = min(each.n_bytes for each in block.tensors)
        assert share * block.n_bytes <= kept <= share * block.n_bytes + max(smallest, block.n_bytes * 0.4)
    assert resident_tensors(block, 0.0) == ()
    assert set(resident_tensors(block, 1.0)) == set(block.tensors)


def test_a_share_is_what_is_written_and_no_tensor_more(tmp_path: Path) -> None:
    write_blocks(tmp_path, [{f"p{i}": np.zeros(100, np.uint8) for i in range(100)}])
    (block,) = open_blocks(tmp_path)
    assert [len(resident_tensors(block, i / 100)) for i in range(101)] == list(range(101))


def test_a_loop_can_be_left_at_every_block_and_the_next_begins_at_the_first(tmp_path: Path, truth: Weights) -> None:
    with ChunkedWeights(tmp_path, chunk_bytes=500, ahead=2) as weights:
        for leave in (0, 1, 4, 2, 0, 3):
            for block in weights:
                assert same(block, truth)
                if block.number == leave:
                    break
        assert [block.number for block in weights if same(block, truth)] == [0, 1, 2, 3, 4]


def test_an_error_of_the_loop_passes_and_ends_the_thread(tmp_path: Path, truth: Weights) -> None:
    with pytest.raises(KeyboardInterrupt), ChunkedWeights(tmp_path) as weights:
        for _ in weights:
            raise KeyboardInterrupt
    with pytest.raises(StreamError, match="closed"):
        iter(weights)


def test_closing_within_a_loop_ends_it_with_an_error(tmp_path: Path, truth: Weights) -> None:
    slow = Link(TokenBucket(bytes_per_s=20_000))
    weights = ChunkedWeights(tmp_path, link=slow)
    with pytest.raises(StreamError, match="closed"):
        for _ in weights:
            began = time.monotonic()
            weights.close()
            # Not the tenths of seconds that the chunk under way would take.
            assert time.monotonic() - began < 2
    weights.close()


def test_weights_that_nobody_closes_leave_no_thread(tmp_path: Path, truth: Weights) -> None:
    weights = ChunkedWeights(tmp_path)
    assert next(iter(weights)).number == 0
    (thread,) = [each for each in threading.enumerate() if each.name == "chunked-weights"]
    del weights
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()


def test_a_block_that_was_left_has_no_weights(tmp_path: Path, truth: Weights) -> None:
    with ChunkedWeights(tmp_path) as weights:
        blocks = list(weights)
    for block in blocks:
        with pytest.raises(StreamError, match="left this block"):
            block["f"]
        with pytest.raises(StreamError):
            len(block)


def test_weights_cannot_be_written_and_take_one_loop_at_a_time(tmp_path: Path, truth: Weights) -> None:
    with ChunkedWeights(tmp_path, resident=0.5) as weights:
        for block in weights:
            for name in block:
                with pytest.raises(ValueError, match="read-only"):
                    block[name][...] = 0
            with pytest.raises(StreamError, match="A loop is"):
                iter(weights)


def rewritten(path: Path, *, keeps_time: bool) -> None:
    """Change a byte in the middle of a file, as somebody who writes into it would."""
    was = path.stat()
    raw = bytearray(path.read_bytes())
    raw[-20] ^= 1
    with path.open("r+b") as file:
        file.write(raw)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns + (0 if keeps_time else 1)))


@pytest.mark.parametrize("resident", [0.0, 1.0])
def test_of_two_loops_that_were_made_before_either_began_one_may_begin(
    tmp_path: Path, truth: Weights, resident: float
) -> None:
    with ChunkedWeights(tmp_path, resident=resident) as weights:
        one, other = iter(weights), iter(weights)
        block = next(one)
        with pytest.raises(StreamError, match="A loop is"):
            next(other)
        assert same(block, truth)
        assert [each.number for each in one if same(each, truth)] == [1, 2, 3, 4]
        late = iter(weights)
    with pytest.raises(StreamError, match="closed"):
        next(late)


@pytest.mark.parametrize("resident", [0.0, 1.0])
def test_what_was_closed_within_a_loop_says_so(tmp_path: Path, truth: Weights, resident: float) -> None:
    weights = ChunkedWeights(tmp_path, resident=resident)
    with pytest.raises(StreamError, match="closed within a loop"):
        for _ in weights:
            weights.close()


def test_an_interrupt_while_the_loop_waits_leaves_copies_that_step_aside(
    tmp_path: Path, truth: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[CopyView] = []

    class Watching(FixedYield):
        def waits(self, view: CopyView) -> bool:
            seen.append(view)
            return super().waits(view)

    with ChunkedWeights(tmp_path, rule=Watching(), chunk_bytes=50) as weights:

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with weights.collective():
            monkeypatch.setattr(weights, "_check_alive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(iter(weights))
            monkeypatch.undo()
            seen.clear()
            deadline = time.monotonic() + 5
            while not seen and time.monotonic() < deadline:
                time.sleep(0.01)
            # Nobody waits any more.
            assert seen[-1].due_ps > 0
        assert [block.number for block in weights if same(block, truth)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("sums", [True, False])
@pytest.mark.parametrize("how", ["bytes", "time", "shorter", "replaced", "gone"])
def test_weights_that_change_under_the_copy_are_an_error(
    tmp_path: Path, truth: Weights, how: str, sums: bool
) -> None:
    if not sums:
        (tmp_path / MANIFEST).unlink()
    path = tmp_path / "0003.safetensors"
    with ChunkedWeights(tmp_path, ahead=1) as weights:
        for block in weights:
            assert same(block, truth)
        if how in ("bytes", "time"):
            rewritten(path, keeps_time=how == "bytes")
        elif how == "shorter":
            with path.open("r+b") as file:
                file.truncate(path.stat().st_size - 30)
        elif how == "replaced":
            write_blocks(tmp_path / "other", truth)
            (tmp_path / "other" / path.name).replace(path)
        else:
            path.unlink()
        seen = []
        with pytest.raises(BadFileError, match=r"change|checksum|gone"):
            for _ in range(2):
                for block in weights:
                    assert same(block, truth)
                    seen.append(block.number)
        assert seen == [0, 1, 2]


def test_bytes_that_were_wrong_from_the_start_are_an_error(tmp_path: Path, truth: Weights) -> None:
    rewritten(tmp_path / "0000.safetensors", keeps_time=True)
    with pytest.raises(BadFileError, match="checksum"):
        ChunkedWeights(tmp_path, resident=1.0)
    with pytest.raises(BadFileError, match="checksum"), ChunkedWeights(tmp_path) as weights:
        next(iter(weights))


def test_a_file_that_ends_too_soon_is_an_error(tmp_path: Path, truth: Weights) -> None:
    block = open_blocks(tmp_path)[0]
    with opened(block) as file, pytest.raises(BadFileError, match="shorter"):
        read_exactly(file, np.empty(10, np.uint8), block.identity.n_bytes - 5, block)


def test_a_copy_steps_aside_for_a_collective_and_goes_on_when_it_is_needed(tmp_path: Path, truth: Weights) -> None:
    with ChunkedWeights(tmp_path, ahead=1, chunk_bytes=50, patience_s=20) as weights:
        loop = iter(weights)
        assert same(next(loop), truth)
        with weights.collective():
            # The collective does not end, and the loop needs the next blocks all the same.
            assert same(next(loop), truth)
            assert same(next(loop), truth)
        assert len(list(loop)) == 2


def test_a_collective_that_never_ends_is_named_where_copies_always_yield(tmp_path: Path, truth: Weights) -> None:
    with ChunkedWeights(tmp_path, rule=FixedYield(), patience_s=0.3) as weights:
        with weights.collective(), pytest.raises(StreamError, match="does not come"):
            list(weights)
        assert same(next(iter(weights)), truth)


def test_copies_stand_still_while_a_collective_runs(tmp_path: Path, truth: Weights) -> None:
    with ChunkedWeights(tmp_path, rule=FixedYield(), ahead=1, link=Link(TokenBucket(bytes_per_s=200_000)),
                        chunk_bytes=100) as weights:  # fmt: skip
        loop = iter(weights)
        next(loop)
        with weights.collective():
            time.sleep(0.02)
            before = weights.counted.copied_bytes
            time.sleep(0.05)
            assert weights.counted.copied_bytes == before
        assert len(list(loop)) == 4


class Broken:
    """A rule that fails after some questions."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.left = error, 12

    def waits(self, view: CopyView) -> bool:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return False


@pytest.mark.parametrize("error", [RuntimeError("rule"), SystemExit(3), MemoryError()])
def test_a_thread_that_dies_is_an_error_of_the_loop(tmp_path: Path, truth: Weights, error: BaseException) -> None:
    with ChunkedWeights(tmp_path, rule=Broken(error)) as weights:
        with pytest.raises(StreamError, match="failed"):
            for _ in range(5):
                for block in weights:
                    assert same(block, truth)
        with pytest.raises(StreamError, match="failed"):
            list(weights)


@pytest.mark.parametrize(
    "wrong",
    [
        {"resident": -0.1}, {"resident": 1.1}, {"resident": float("nan")}, {"resident": True}, {"chunk_bytes": 0},
        {"chunk_bytes": 1.5}, {"ahead": -1}, {"ahead": True}, {"patience_s": 0.0}, {"patience_s": float("inf")},
    ],
)  # fmt: skip
def test_settings_outside_their_ranges_are_refused(tmp_path: Path, truth: Weights, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        ChunkedWeights(tmp_path, **wrong)


def test_a_link_passes_bytes_at_its_rate_and_lets_go_when_nobody_needs_them() -> None:
    link = Link(TokenBucket(bytes_per_s=1_000_000))
    began = time.monotonic()
    link.send(50_000)
    assert time.monotonic() - began >= 0.05
    Link(TokenBucket(bytes_per_s=1)).send(10**6, lambda: True)
    assert time.monotonic() - began < 30
