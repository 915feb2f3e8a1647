"""Findings as parts of an offline page: the sentence, the advice, and the evidence by its side."""

from __future__ import annotations

from wavetank import html_page, units
from wavetank.diagnosis.findings import Finding
from wavetank.svg import escape


def finding_block(found: Finding) -> str:
    """Return a finding with its evidence and how each figure is read.

    Parameters
    ----------
    found : Finding
    """
    rows = [(each.key, each.shown, each.how) for each in found.evidence]
    return (
        f"<h3>{escape(found.label)}, {escape(found.where)}: {escape(found.severity)}, "
        f"confidence {escape(units.show(found.confidence))}</h3>\n<p>{escape(found.sentence(found.says))}</p>\n"
        f"<p>{escape(found.sentence(found.advice))}</p>\n{html_page.table(rows)}"
    )
