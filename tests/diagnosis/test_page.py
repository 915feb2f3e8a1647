"""A finding on a page has its sentence, its evidence and where each figure comes from, and no markup of its own."""

from __future__ import annotations

from wavetank.diagnosis.findings import Evidence, Finding
from wavetank.diagnosis.page import finding_block


def test_a_block_has_sentence_advice_and_evidence_and_escapes_what_files_say() -> None:
    found = Finding(
        label="odd", where="<b>n1</b>", severity="warning", confidence=0.5, says="{where} has {idle_share}.",
        evidence=(Evidence(name="idle_share", value=0.25, how="idle / all"),), advice="Look at {where}.",
    )  # fmt: skip
    block = finding_block(found)
    assert "&lt;b&gt;n1&lt;/b&gt; has 25 %." in block and "<b>" not in block
    assert "idle / all" in block and "warning" in block and "Look at" in block
