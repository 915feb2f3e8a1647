from __future__ import annotations

import pytest

from wavetank import protocols


def test_every_public_name_is_there() -> None:
    assert all(getattr(protocols, name) is not None for name in protocols.__all__)
    assert set(protocols.__all__) <= set(dir(protocols))
    with pytest.raises(AttributeError):
        _ = protocols.nothing_of_the_kind
