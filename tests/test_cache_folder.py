from __future__ import annotations

from pathlib import Path

import pytest

from wavetank.cache_folder import cache_folder


def test_the_folder_is_below_the_one_that_the_user_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "wavetank"


@pytest.mark.parametrize("given", ["", "relative/folder"])
def test_without_an_absolute_path_it_is_in_the_home_folder(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert cache_folder() == tmp_path / ".cache" / "wavetank"
