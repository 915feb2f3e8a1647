"""The skeleton of every HTML page: one file that loads nothing, readable in light, in dark and on paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wavetank.svg import MONOSPACE, TONES, escape, printable


def _tones(column: int) -> str:
    names = {"bg": "paper", "text": "ink", "muted": "quiet", "panel": "panel", "grid": "grid", "accent": "accent"}
    return " ".join(f"--{name}: {TONES[tone][column]};" for name, tone in names.items())


STYLE = f"""
:root {{
  color-scheme: light dark;
  {_tones(0)}
  --mono: {MONOSPACE};
}}
@media screen and (prefers-color-scheme: dark) {{
  :root {{
    {_tones(1)}
  }}
}}
* {{ box-sizing: border-box; }}
html {{ font: 100%/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif; }}
body {{ margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 80rem; background: var(--bg); color: var(--text);
  overflow-wrap: break-word; }}
a {{ color: var(--accent); text-underline-offset: .15em; }}
:focus-visible {{ outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 2px; }}
h1 {{ font-size: clamp(1.5rem, 1.1rem + 1.7vw, 2.1rem); line-height: 1.2; margin: .2rem 0 .6rem; max-width: 46rem;
  text-wrap: balance; letter-spacing: -.01em; }}
h2 {{ font-size: 1.3rem; line-height: 1.3; margin: 0 0 .8rem; }}
h3 {{ font-size: 1.02rem; margin: 1.6rem 0 .5rem; }}
h4 {{ font-size: 1rem; margin: 0 0 .2rem; }}
p {{ margin: 0 0 .6rem; max-width: 48rem; }}
.quiet {{ color: var(--muted); font-size: .9rem; }}
section, footer {{ margin-top: 2.6rem; }}
code {{ font-family: var(--mono); font-size: .9em; }}
.scroll {{ overflow-x: auto; max-width: 100%; }}
table {{ border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; line-height: 1.35; }}
th {{ font-weight: 600; }}
table.plain th, table.plain td {{ text-align: left; vertical-align: top; padding: .28rem 1.1rem .28rem 0;
  border-bottom: 1px solid var(--grid); }}
table.plain tbody th {{ font-weight: 400; white-space: nowrap; }}
svg.drawing {{ display: block; max-width: 100%; height: auto; margin: .6rem 0; }}
.scroll > svg.drawing {{ max-width: none; }}
@media print {{
  :root {{ --bg: #fff; --panel: #f6f7f9; --text: #000; --muted: #444; --grid: #ccc; }}
  html {{ font-size: 70%; }}
  body {{ max-width: none; padding: 0; }}
  .scroll {{ overflow: visible; }}
  .scroll > svg.drawing {{ max-width: 100%; }}
  svg.drawing, tr {{ break-inside: avoid; }}
  h2, h3 {{ break-after: avoid; }}
}}
""".strip()


def page(title: str, body: str, *, style: str = "", made_by: str = "wavetank") -> str:
    """Return a whole page.

    Parameters
    ----------
    title : str
        Shown by the browser around the page, not in it.
    body : str
        Markup.
    style : str
        Style sheet after the one that all pages share.
    made_by : str
        The program, with its version where that is known.
    """
    return printable(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta name="generator" content="{escape(made_by)}">\n<title>{escape(title)}</title>\n'
        # Without an icon of its own a page that is served makes browsers ask for one.
        f'<link rel="icon" href="data:,">\n<style>\n{STYLE}\n{style}\n</style>\n</head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def findings(title: str, *parts: str) -> str:
    """Return the page of a checker: the title above its parts, and below them what made the page."""
    footer = '<footer class="quiet">Made by wavetank; this file needs nothing else.</footer>'
    return page(title, "\n".join([f"<h1>{escape(title)}</h1>", *parts, footer]))


def table(rows: Iterable[Sequence[object]]) -> str:
    """Return a table whose first column names the rows; the cells are text, which is escaped here."""
    lines = [
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(each)}</td>" for each in row[1:])}</tr>\n'
        for row in rows
    ]
    return f'<div class="scroll"><table class="plain"><tbody>\n{"".join(lines)}</tbody></table></div>'
