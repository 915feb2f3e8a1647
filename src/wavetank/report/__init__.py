"""Reports: the records of one run as a table and as one HTML page that needs nothing else.

``tables`` holds the model of the main table and its renderings (text, Rich, Markdown, HTML), ``charts`` draws a
study's charts as SVG on what ``canvas`` offers, ``page`` puts both into the page, and ``scale`` chooses units and words
for all of them.  Nothing here measures or estimates: what is shown comes from
the records, their summaries and the findings on claims.  Matplotlib, Jinja and Rich are imported when they are needed.
"""

from wavetank.report.page import render
from wavetank.report.tables import Table, main_table

__all__ = ["Table", "main_table", "render"]
