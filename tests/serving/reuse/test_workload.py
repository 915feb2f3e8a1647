"""Prompts of files, of generated and of real agents; damaged files are named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.serving.reuse.interface import Prompt, Workload
from wavetank.serving.reuse.workload import (
    Edits,
    agent_prompts,
    edited,
    file_prompts,
    generated_prompts,
    trace_prompts,
)
from wavetank.workloads import datasets


def test_the_real_prompts_are_the_known_ones() -> None:
    if datasets.status("agent-transcripts").path is None:
        pytest.skip("needs the data set agent-transcripts")
    trimmed, whole = agent_prompts(observations=5), agent_prompts(observations=0)
    assert len(trimmed.prompts) == len(whole.prompts) == 104
    assert sum(each.tokens for each in whole.prompts) == 611_964
    assert sum(each.tokens for each in trimmed.prompts) == 552_399


def test_a_trace_of_blocks_has_an_id_per_block_and_the_tokens_of_its_rows(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    rows = [{"arrival_s": 0, "prompt_tokens": 1_000, "output_tokens": 5, "hash_ids": [7, 9]},
            {"arrival_s": 10, "prompt_tokens": 1_500, "output_tokens": 5, "hash_ids": [7, 9, 8]}]  # fmt: skip
    file.write_text("\n".join(map(json.dumps, rows)))
    found = trace_prompts(str(file))
    assert (found.unit, found.only_prefixes) == (512, True)
    assert [each.tokens for each in found.prompts] == [1_000, 1_500]
    assert found.prompts[0].ids.tolist() == found.prompts[1].ids[:2].tolist()
    assert len(set(found.prompts[1].ids.tolist())) == 3


def test_a_trace_without_blocks_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,10,5\n")
    with pytest.raises(BadFileError, match="no blocks"):
        trace_prompts(str(file))


def test_generated_prompts_repeat_their_seed_and_trim_old_observations() -> None:
    one, same, other = (generated_prompts(seed, sessions=2, turns=9, observations=3) for seed in (1, 1, 2))
    assert all(np.array_equal(a.ids, b.ids) for a, b in zip(one.prompts, same.prompts, strict=True))
    assert any(len(a.ids) != len(b.ids) for a, b in zip(one.prompts, other.prompts, strict=True))
    whole = generated_prompts(1, sessions=2, turns=9, observations=0)
    assert [each.session for each in one.prompts] == [0] * 9 + [1] * 9
    longer = [b.tokens - a.tokens for a, b in zip(one.prompts, whole.prompts, strict=True)]
    # Of n observations all but the first and the newest three are notes: from the sixth prompt on.
    assert [each != 0 for each in longer[:9]] == [False] * 5 + [True] * 4
    before, after = whole.prompts[7].ids, whole.prompts[8].ids
    assert np.array_equal(after[: len(before)], before)


def test_files_of_tokens_and_of_messages(tmp_path: Path) -> None:
    lines = [{"tokens": [1, 2**32 - 1, 3], "session": "a"}, {"tokens": [1]},
             {"messages": [{"role": "user", "content": "two words"}], "session": "a"}]  # fmt: skip
    text = "\n\n".join(map(json.dumps, lines))
    (tmp_path / "prompts.jsonl").write_text(text)
    (tmp_path / "prompts.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("prompts.jsonl", "prompts.jsonl.gz"):
        found = file_prompts(tmp_path / name).prompts
        assert found[0].ids.tolist() == [1, 2**32 - 1, 3]
        assert [each.tokens for each in found] == [3, 1, 4]
        assert [each.session for each in found] == [0, 1, 0]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", "{}", '{"tokens": []}', '{"tokens": [-1]}', '{"tokens": [true]}', '{"tokens": [1.0]}',
     '{"tokens": [4294967296]}', '{"messages": ["x"]}', '{"messages": [{"role": "user"}]}', "[" * 100_000,
     '{"messages": [{"role": 1, "content": "x"}]}'],
)  # fmt: skip
def test_damaged_lines_are_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'{{"tokens": [1]}}\n{text}' if text else "")
    with pytest.raises(BadFileError) as caught:
        file_prompts(file)
    assert ("line 2" in str(caught.value)) == bool(text)


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"\x1f\x8b\x08 cut"])
def test_files_that_cannot_be_read_are_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / ("prompts.jsonl.gz" if content and content[0] == 0x1F else "prompts.jsonl")
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadFileError, match="cannot be read"):
        file_prompts(file)


def test_edits_are_new_tokens_at_their_place_and_nothing_else() -> None:
    whole = Workload([Prompt(np.arange(1_000, dtype=np.uint32), 1_000, 0)] * 5)
    found = edited(whole, Edits(tokens=3, at=0.5), 0)
    new: set[int] = set()
    for prompt in found.prompts:
        inserted = np.flatnonzero(prompt.ids >= 1_000)
        assert 470 <= inserted[0] <= 530
        assert np.array_equal(np.delete(prompt.ids, inserted), np.arange(1_000))
        assert prompt.tokens == 1_003
        assert not new & set(prompt.ids[inserted].tolist())
        new |= set(prompt.ids[inserted].tolist())
    assert len(new) == 15
    assert edited(whole, Edits(), 0) is whole
    with pytest.raises(BadValueError, match="not known"):
        edited(whole._replace(only_prefixes=True), Edits(tokens=1), 0)
