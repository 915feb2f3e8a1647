"""The made model: its words are the replay's, and its files are whole, reused, and made anew when damaged."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.serving.engines import tiny_llama
from wavetank.serving.engines.tiny_llama import FIRST_WORD, TinyLlama, vocabulary

SMALL = TinyLlama(layers=1, heads=1, head_dim=8, feed_forward=8)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "wavetank" / "engines"


def test_the_default_has_the_size_that_is_promised_and_counts_its_weights() -> None:
    assert TinyLlama().parameters == 4_009_440
    for model in (SMALL, TinyLlama(layers=3, heads=2, head_dim=16, feed_forward=40)):
        assert sum(rows.size for rows in model.weights().values()) == model.parameters


def test_weights_come_from_the_seed_alone() -> None:
    ours, again, others = SMALL.weights(), SMALL.weights(), TinyLlama(**{**vars(SMALL), "seed": 1}).weights()
    assert all((ours[name] == again[name]).all() for name in ours)
    drawn = [name for name in ours if "norm" not in name]
    assert all((ours[name] != others[name]).any() for name in drawn)


def test_no_answer_holds_anything_but_words() -> None:
    head = SMALL.weights()["lm_head.weight"]
    assert not head[:FIRST_WORD].any()
    # Whatever the model ends in, some word has a positive logit, and all others have none.
    for state in np.random.default_rng(0).standard_normal((50, 8)).astype(np.float32):
        assert int((head @ state).argmax()) >= FIRST_WORD


def test_the_words_are_those_of_a_replay() -> None:
    pytest.importorskip("aiohttp", reason="the replay needs aiohttp")
    from wavetank.serving.proxy.replay import as_text, prompt_ids
    from wavetank.workloads import RequestTrace

    trace = RequestTrace(arrival_s=[0.0, 0.0], prompt_tokens=[700, 5], output_tokens=[1, 1])
    tokens = vocabulary()
    for seed in (0, 7000):
        for number in (0, 1):
            ids = prompt_ids(trace, number, seed)
            assert "".join(tokens[i] for i in ids).replace(tiny_llama._byte_letters()[32], " ") == as_text(ids)
    assert len(set(tokens)) == len(tokens) == FIRST_WORD + 26**3


def test_every_word_is_made_by_its_merges_and_by_no_others() -> None:
    """Byte-level BPE by the book: of the pairs that stand side by side, the first in the list becomes one token."""
    ranks = {tuple(pair.split(" ")): rank for rank, pair in enumerate(tiny_llama._merges())}
    blank = tiny_llama._byte_letters()[32]
    for word in ("abc", "zzz", "the", "qx", "a", "abcd"):
        parts = [blank, *word]
        while pairs := [pair for pair in itertools.pairwise(parts) if pair in ranks]:
            best = min(pairs, key=ranks.__getitem__)
            at = list(itertools.pairwise(parts)).index(best)
            parts[at : at + 2] = ["".join(best)]
        wanted = [blank + word[:3], *word[3:]]
        assert parts == wanted


class TestFiles:
    @pytest.fixture(params=["gguf", "hub"])
    def made(self, request: Any) -> Any:
        pytest.importorskip("gguf" if request.param == "gguf" else "safetensors", reason="the extra engines")
        place = getattr(SMALL, request.param)()
        folder = place.parent if request.param == "gguf" else place
        return request.param, folder

    def test_they_are_reused_while_their_checksums_hold(self, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        layout, folder = made
        file = next(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 100_000)
        before = file.stat().st_mtime_ns
        getattr(SMALL, layout)()
        assert file.stat().st_mtime_ns == before
        good = file.read_bytes()
        for damaged in (good[:-1], good[:5000] + b"\0" * 64 + good[5064:]):
            file.write_bytes(damaged)
            getattr(SMALL, layout)()
            assert file.read_bytes() == good
        file.unlink()
        getattr(SMALL, layout)()
        assert file.read_bytes() == good
        assert [path.name for path in folder.parent.iterdir()] == [folder.name]

    def test_a_manifest_that_is_none_makes_them_anew(self, made: Any) -> None:
        layout, folder = made
        for content in ("", "[]", "{}", '{"../x": "y"}', "\xff"):
            (folder / "checksums.json").write_text(content, encoding="latin-1")
            getattr(SMALL, layout)()
            assert len(json.loads((folder / "checksums.json").read_text())) >= 1

    def test_other_settings_have_other_files(self, made: Any) -> None:
        layout, folder = made
        other = getattr(TinyLlama(**{**vars(SMALL), "seed": 3}), layout)()
        assert folder not in (other, other.parent)


def test_two_that_make_it_at_once_both_get_it(own_cache: Path) -> None:
    pytest.importorskip("gguf", reason="the extra engines")
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(SMALL.gguf())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert tiny_llama._is_whole(found[0].parent)
    assert len(list(own_cache.iterdir())) == 1


def test_a_write_that_is_broken_off_leaves_nothing(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(model: TinyLlama, folder: Path) -> None:
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny_llama, "_require", lambda package: None)
    monkeypatch.setattr(tiny_llama, "_write_gguf", breaks)
    with pytest.raises(KeyboardInterrupt):
        SMALL.gguf()
    assert list(own_cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tiny_llama, "_require", lambda package: None)
    with pytest.raises(WavetankError, match="cannot be written into the cache folder"):
        SMALL.gguf()


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_llama.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(WavetankError, match="gguf") as caught:
        SMALL.gguf()
    assert "engines" in str(caught.value.hint)


@pytest.mark.parametrize("wrong", [{"head_dim": 7}, {"layers": 0}, {"seed": -1}, {"context_tokens": 1}])
def test_wrong_shapes_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(BadValueError):
        TinyLlama(**wrong)
