"""Three intakes on the same messages: two are right, one is fast."""

from __future__ import annotations

import pytest

from wavetank.insight.facility.intakes import Batch, InOrder, LateWindow
from wavetank.insight.facility.study_ingest import FacilityIngest, wrong_share

CALM = FacilityIngest(servers=(3,), messages=200, twice=0.0, delayed=0.0)
ROUGH = FacilityIngest(servers=(3,), messages=200, twice=0.2, delayed=0.3)


def means(study: FacilityIngest, system) -> tuple[dict, list]:
    sent, messages = study.made(3, 4, 1)
    until_s = (max(minute for _, minute in sent) + 1) * 60
    return sent, system.means(messages, until_s)


@pytest.mark.parametrize("system", [LateWindow(), InOrder()])
def test_in_order_and_once_all_are_right(system) -> None:
    sent, found = means(CALM, system)
    assert wrong_share(found, sent) == 0.0 and len(found) == len(sent) == 3 * 3 * 4


def test_late_and_double_messages_mislead_who_goes_in_order() -> None:
    sent, found = means(ROUGH, LateWindow())
    assert wrong_share(found, sent) == 0.0
    assert wrong_share(means(ROUGH, InOrder())[1], sent) > 0.3


def test_a_batch_job_gives_the_same_means() -> None:
    pytest.importorskip("pandas")
    for study in (CALM, ROUGH):
        sent, found = means(study, Batch())
        assert wrong_share(found, sent) == 0.0 and len(found) == len(sent)
        ours = {(each.topic, each.minute): each.readings for each in means(study, LateWindow())[1]}
        assert ours == {(each.topic, each.minute): each.readings for each in found}
