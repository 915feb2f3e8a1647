from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from wavetank.errors import BadFileError, UnknownNameError
from wavetank.protocols.checking import KINDS, kind_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("strb.ta", "threshold"),
        ("aba.TA.gz", "threshold"),
        ("phase.eta", "threshold"),
        ("bcast.tla", "threshold"),
        ("etcd_000.log", "history"),
        ("run.jsonl", "history"),
        ("Http.nuscr", "session"),
        ("raft.toml", "instance"),
    ],
)
def test_a_files_name_tells_its_kind(name: str, kind: str) -> None:
    assert kind_of(Path("some") / name) == kind


def test_a_given_kind_goes_before_the_name() -> None:
    assert kind_of(Path("strb.ta"), "history") == "history"
    with pytest.raises(UnknownNameError) as caught:
        kind_of(Path("strb.ta"), "histories")
    assert caught.value.nearest == "history"


def test_a_name_that_tells_nothing_is_refused_with_what_is_known() -> None:
    with pytest.raises(BadFileError) as caught:
        kind_of(Path("model.tax"))
    assert caught.value.nearest == ".ta"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_checker_whose_settings_are_explained(kind: str) -> None:
    checker = KINDS[kind].load()
    assert dataclasses.is_dataclass(checker)
    assert callable(checker.check)
    for field in dataclasses.fields(checker):
        assert field.metadata["says"]


def test_no_ending_belongs_to_two_kinds() -> None:
    endings = [ending for facts in KINDS.values() for ending in facts.endings]
    assert len(endings) == len(set(endings))
