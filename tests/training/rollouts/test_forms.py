"""A form codes and decodes as its name says, and knows no other."""

import numpy as np
import pytest

from wavetank.errors import UnknownNameError
from wavetank.training.rollouts.delta import FORMATS, encode
from wavetank.training.rollouts.forms import DeltaForm


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_coded_is_what_comes_back(form):
    before = np.arange(50, dtype=np.uint16)
    after = before.copy()
    after[[3, 49]] = (7, 65535)
    stream = DeltaForm(form=form).encode(before, after)
    assert stream == encode(before, after, form)
    assert (DeltaForm(form=form).decode(stream, before) == after).all()


def test_other_forms_are_refused():
    with pytest.raises(UnknownNameError):
        DeltaForm(form="zip").encode(np.zeros(3, np.uint16), np.ones(3, np.uint16))
