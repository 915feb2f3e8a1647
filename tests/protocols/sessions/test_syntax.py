import pickle

import pytest

from wavetank.errors import BadFileError
from wavetank.protocols.sessions.parser import parse_protocols
from wavetank.protocols.sessions.syntax import IllFormedError, Place, where


def test_a_place_is_reported_with_line_and_column():
    assert where("a.nuscr", Place(2, 5)) == "a.nuscr, line 2, column 5"


def test_a_broken_rule_keeps_its_name_and_parts_across_processes():
    error = IllFormedError("No.", rule="roles", given="x", where="a.nuscr, line 1, column 1", hint="rename")
    back = pickle.loads(pickle.dumps(error))
    assert (back.rule, str(back)) == ("roles", str(error))
    assert isinstance(back, BadFileError)


@pytest.mark.parametrize(
    ("pragmas", "nested", "refined"),
    [("", False, False), ("(*# NestedProtocols #*)", True, False), ("(*# RefinementTypes #*)", False, True)],
)
def test_pragmas_turn_extensions_on(pragmas, nested, refined):
    module = parse_protocols(f"{pragmas}\nprotocol P(role A) {{}}")
    assert (module.has_nested, module.has_refinements) == (nested, refined)
