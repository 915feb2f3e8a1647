from __future__ import annotations

from pathlib import Path

import pytest

from wavetank.ledger import code

BEFORE = '"""Words."""\n\n\ndef add(a, b):\n    """Return the sum."""\n    return a + b  # a sum\n'


@pytest.mark.parametrize("after", [
    BEFORE.replace("Words.", "Other words."), BEFORE.replace("# a sum", ""), BEFORE.replace("a + b", "a  +  b"),
    BEFORE.replace('    """Return the sum."""\n', ""),
])  # fmt: skip
def test_words_and_layout_do_not_count(after: str) -> None:
    assert code.meaning(after) == code.meaning(BEFORE)


@pytest.mark.parametrize("after", [
    BEFORE.replace("a + b", "a - b"), BEFORE.replace("add", "sum"), BEFORE + "add(1, 2)\n",
    BEFORE.replace("(a, b)", "(b, a)"),
])  # fmt: skip
def test_what_the_code_does_counts(after: str) -> None:
    assert code.meaning(after) != code.meaning(BEFORE)


def test_a_change_anywhere_in_a_folder_changes_its_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "_PACKAGE", tmp_path)
    inner = tmp_path / "area" / "problem" / "live"
    inner.mkdir(parents=True)
    (inner / "a.py").write_text("x = 1\n")
    found = []
    for text in ("x = 1\n", "x = 1  # one\n", "x = 2\n"):
        (inner / "a.py").write_text(text)
        code.checksum.cache_clear()
        found.append(code.checksum("area/problem"))
    assert found[0] == found[1] != found[2]
    (inner / "a.py").rename(inner / "b.py")
    code.checksum.cache_clear()
    assert code.checksum("area/problem") != found[2]


def test_what_is_not_there_has_no_checksum() -> None:
    assert code.checksum("no/such") == code.checksum("") == ""
