"""The page on the router in production: its files are taken as they stand, and every cell of ours has a test."""

import re
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("aiohttp", reason="the router needs aiohttp")

from wavetank.serving.proxy.configuration import make_configuration
from wavetank.serving.proxy.endpoints import ENDPOINTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guide" / "router.md").read_text()
FILES = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", FILES, ids=range(len(FILES)))
def test_a_configuration_of_the_page_is_taken(text, tmp_path):
    file = tmp_path / "router.toml"
    file.write_text(text)
    made = make_configuration(file=file)
    assert len(made.backends) + len(made.discover) == len(tomllib.loads(text).get("backends", [])) + len(
        tomllib.loads(text).get("discover", [])
    )


def test_every_line_of_ours_in_the_table_names_tests_that_exist():
    table = PAGE.partition("<!-- table")[2]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    assert len({len(row) for row in rows}) == 1
    assert len(rows) > 12
    for row in rows[2:]:
        names = re.findall(r"test_\w+\.py", row[2])
        assert bool(names) == (row[1] != "no"), row
        for name in names:
            assert "def test_" in (ROOT / "tests" / "serving" / "proxy" / name).read_text()


def test_the_page_lists_every_path():
    listed = PAGE.partition("## What is served")[2].partition("##")[0]
    paths = {path.replace("/{id}", "/") for path in re.findall(r"`(/[^`]+)`", listed)}
    assert paths == ENDPOINTS.keys() - {"/health", "/metrics", "/v1/messages/count_tokens"}
