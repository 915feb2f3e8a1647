from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.protocols.digraphs.signing import SCHEMES, scheme


@pytest.mark.parametrize("name", SCHEMES)
@given(content=st.binary(max_size=40), node=st.integers(0, 5), flipped=st.integers(0, 15))
def test_only_the_node_itself_signs_what_verifies(name: str, content: bytes, node: int, flipped: int) -> None:
    signs = scheme(name, 7)
    signature = signs.sign(node, content)
    assert signs.verify(node, content, signature)
    assert not signs.verify(node, content + b"x", signature)
    assert not signs.verify(node + 1, content, signature)
    assert not scheme(name, 8).verify(node, content, signature)
    forged = bytearray(signature)
    forged[flipped] ^= 1
    assert not signs.verify(node, content, bytes(forged))
    assert not signs.verify(node, content, b"")


def test_equal_seeds_give_equal_signatures() -> None:
    for name, size in (("keyed-hash", 16), ("ed25519", 64)):
        assert scheme(name, 1).sign(2, b"m") == scheme(name, 1).sign(2, b"m")
        assert len(scheme(name, 1).sign(2, b"m")) == size


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(BadValueError):
        scheme("rot13", 0)
