"""Machines: what ships, parts of them, and files that are none."""

import pytest

from wavetank.errors import BadFileError, BadValueError, UnknownNameError
from wavetank.platforms.machines import load_machines, machine, machines

MINE = """
[mine]
device = "L4"
levels = [{ name = "node", size = 4, alpha_s = 1e-6, bytes_per_s = 1e10 }]
source = "made up"
"""


@pytest.mark.parametrize("name", machines())
def test_every_machine_is_cited_and_a_network_gives_a_rank_what_its_device_has(name):
    found = machine(name)
    assert found.source
    first = found.levels[1]
    assert first.shared
    assert first.bytes_per_s / found.node == found.device.network_bytes_per_s
    assert found.levels[0].bytes_per_s == found.device.link_bytes_per_s
    assert found.node % found.nics == 0
    assert found.nics > 1


def test_parts_of_a_machine_keep_whole_units():
    frontier = machine("Frontier")
    assert [level.size for level in frontier.fabric(4).levels] == [4]
    assert [level.size for level in frontier.fabric(128).levels] == [8, 16]
    assert [level.size for level in frontier.fabric(1024).levels] == [8, 16, 8]
    for ranks in (1, 8, 64, 512):
        assert frontier.fabric(ranks).ranks == ranks
    for ranks in (12, 8 * 17, 0, 10**6, True):
        with pytest.raises(BadValueError):
            frontier.fabric(ranks)


def test_latencies_can_be_multiplied_and_nothing_else_changes():
    frontier = machine("Frontier")
    slower = frontier.with_latencies(3.0)
    assert [level.alpha_s for level in slower.levels] == pytest.approx([6e-6, 12e-6, 24e-6])
    assert slower.with_latencies(1 / 3).levels[1].bytes_per_s == frontier.levels[1].bytes_per_s
    with pytest.raises(BadValueError):
        frontier.with_latencies(-1.0)


def test_a_name_that_is_none_has_its_nearest():
    with pytest.raises(UnknownNameError) as caught:
        machine("frontier")
    assert caught.value.nearest == "Frontier"


def test_a_users_file_is_read_and_a_broken_one_named(tmp_path):
    file = tmp_path / "machines.toml"
    file.write_text(MINE)
    assert load_machines(file)["mine"].node == 4
    for old, new in (("size = 4", "width = 4"), ('source = "made up"', ""), ("[mine]", "[mine"), ("[{", "[[{")):
        file.write_text(MINE.replace(old, new))
        with pytest.raises(BadFileError):
            load_machines(file)
    for old, new in (("size = 4", "size = 0"), ("1e10 }", "1e10, links = 2 }")):
        file.write_text(MINE.replace(old, new))
        with pytest.raises(BadValueError):
            load_machines(file)
    with pytest.raises(BadFileError, match="cannot be read"):
        load_machines(tmp_path / "nowhere.toml")
