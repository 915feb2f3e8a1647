"""The study of answers, with an untrained decoder."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from wavetank.serving.reuse import study_agreement  # noqa: E402
from wavetank.serving.reuse.irminsul import Irminsul  # noqa: E402
from wavetank.serving.reuse.moving_rivals import CacheBlend, UnturnedRows  # noqa: E402
from wavetank.serving.reuse.rivals import NoReuse  # noqa: E402
from wavetank.serving.reuse.study_agreement import ReuseAgreement  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_prompts_come_back_longer_shorter_and_exchanged() -> None:
    study = ReuseAgreement(prompts=1)
    prompts = study.served(3)
    assert [len(text) for text, _ in prompts] == [640, 672, 608, 639 + 1]
    assert all(len(following) == 48 for _, following in prompts)
    first, exchanged = prompts[0][0], prompts[3][0]
    assert np.array_equal(np.sort(first), np.sort(exchanged))
    assert not np.array_equal(first, exchanged)
    # What follows exchanged parts is what followed the part that is last now.
    assert np.array_equal(prompts[3][1], first[426:474])
    again = study.served(3)
    assert all(np.array_equal(one[0], other[0]) for one, other in zip(prompts, again, strict=True))


def test_full_computation_agrees_with_itself_and_moved_rows_nearly(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(study_agreement._SIZES, "width", 32)
    study = ReuseAgreement(prompts=1, prompt_tokens=320, following_tokens=4, agains=(1_024,), steps=0)
    study.check()
    systems = {"none": NoReuse(), "ours": Irminsul(), "unturned": UnturnedRows(), "blend": CacheBlend()}
    found = {
        name: {(metric, *at.values()): value for metric, value, at in study.measure(system, 0).rows}
        for name, system in systems.items()
    }
    assert found["none"]["kl_nats",] == 0.0
    assert found["none"]["computed_share",] == 1.0
    assert found["ours"]["computed_share",] < 0.9
    assert abs(found["ours"]["kl_nats", 1024.0]) < 1e-9
    assert found["ours"]["top1_agreement", 1024.0] == 1.0
    assert found["ours"]["kl_nats",] < found["unturned"]["kl_nats",]
    assert found["blend"]["computed_share",] > found["ours"]["computed_share",]
    assert study.notes()
