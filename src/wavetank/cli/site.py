"""Pages over a folder of runs, the ledger and the catalog: what ``wavetank serve`` shows, made on request.

Each page is a function of what is on disk; nothing is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote, urlencode

from wavetank import html_page, units
from wavetank.errors import BadValueError, WavetankError
from wavetank.ledger import catalog, claims
from wavetank.ledger.catalog import PaperEntry
from wavetank.ledger.claims import Finding, evidence_folder
from wavetank.ledger.facts import cited
from wavetank.ledger.verdicts import GOOD
from wavetank.run import comparison
from wavetank.run.comparison import Comparison
from wavetank.run.difference import difference, in_words
from wavetank.study.study import settings_of
from wavetank.svg import escape

MOST_RUNS = 500

_STYLE = """
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding-bottom: .7rem; border-bottom: 1px solid var(--grid); }
form { display: flex; flex-wrap: wrap; gap: .5rem; margin: 0 0 1rem; }
input, button { font: inherit; padding: .3rem .6rem; border: 1px solid var(--grid); border-radius: 4px;
  background: var(--panel); color: var(--text); }
table.plain tbody th { white-space: normal; min-width: 14rem; max-width: 34rem; }
td { min-width: 4.5rem; }
table.runs td { min-width: 0; }
@media (max-width: 48rem) {
  table.runs thead { display: none; }
  table.runs tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--grid); }
  table.runs td { display: block; border: 0; padding: .1rem 0; }
  table.runs td:first-child { float: right; }
}
"""

Query = Mapping[str, str]


class NotFoundError(WavetankError):
    """A page that does not exist."""


def page(runs: Path, path: str, query: Query) -> bytes:
    """Return a page.

    Parameters
    ----------
    runs : Path
        The folder of all runs.
    path : str
        The path of the request, decoded, beginning with ``/``.
    query : mapping of str to str

    Raises
    ------
    NotFoundError
        If there is no such page.
    WavetankError
        If a run cannot be read.
    """
    parts = [part for part in path.split("/") if part]
    if len(parts) == 3 and parts[0] == "run":
        return _report(runs, parts[1], parts[2])
    pages: dict[str, Callable[[], tuple[str, str]]] = {
        "": lambda: _runs(runs, query),
        "diff": lambda: _diff(runs, query),
        "ledger": lambda: _ledger(parts[1:]),
        "catalog": lambda: _catalog(parts[1:], query),
    }
    first = parts[0] if parts else ""
    if first not in pages or (first in ("", "diff") and len(parts) > 1) or len(parts) > 2:
        raise NotFoundError(
            "There is no such page.", given=path, allowed="/, /diff, /ledger, /catalog, /run/STUDY/TIME"
        )
    title, body = pages[first]()
    nav = '<nav><a href="/">Runs</a><a href="/ledger">Ledger</a><a href="/catalog">Catalog</a></nav>'
    return html_page.page(title, f"{nav}\n<h1>{escape(title)}</h1>\n{body}", style=_STYLE).encode()


def failure(title: str, error: WavetankError) -> bytes:
    """Return the page of an error."""
    nav = '<nav><a href="/">Runs</a><a href="/ledger">Ledger</a><a href="/catalog">Catalog</a></nav>'
    lines = "".join(f"<p>{escape(line)}</p>" for line in str(error).splitlines())
    return html_page.page(title, f"{nav}\n<h1>{escape(title)}</h1>\n{lines}", style=_STYLE).encode()


def _folder(runs: Path, study: str, name: str) -> Path:
    """Return a run's folder: a direct child of a study's folder, so that no path leaves the folder of runs."""
    folder = runs / study / name
    names = {study, name}
    if names & {"", ".", ".."} or any("/" in each or "\\" in each or "\0" in each for each in names):
        raise NotFoundError("This is not a run.", given=f"{study}/{name}")
    if not (folder / "study.toml").is_file() or folder.resolve().parent != (runs / study).resolve():
        raise NotFoundError("There is no such run.", given=f"{study}/{name}")
    return folder


def _known(runs: Path) -> list[Path]:
    """Return the folders of runs, the newest first."""
    found = [path.parent for path in runs.glob("*/*/study.toml")]
    return sorted(found, key=lambda folder: (folder.name, folder.parent.name), reverse=True)


def _runs(runs: Path, query: Query) -> tuple[str, str]:
    wanted = query.get("q", "").casefold()
    folders = [each for each in _known(runs) if wanted in _searched(each)]
    rows = []
    for folder in folders[:MOST_RUNS]:
        label = f"{folder.parent.name}/{folder.name}"
        try:
            result = comparison.load(folder)
            answer = result.answer.sentence if result.answer else ""
            about = f"{len(result.plan.systems)} systems, {len(result.plan.seeds)} seeds"
            about = "; ".join([about, *_chosen(result)])
            if not result.records:
                answer = "no records yet"
        except WavetankError as error:
            answer, about = f"cannot be read: {error.problem}", ""
        check = f'<input type="checkbox" name="run" value="{escape(label)}" aria-label="choose {escape(label)}">'
        link = f'<a href="/run/{quote(folder.parent.name)}/{quote(folder.name)}">{escape(label)}</a>'
        rows.append(f"<tr><td>{check}</td><td>{link}</td><td>{escape(about)}</td><td>{escape(answer)}</td></tr>")
    search = (
        f'<form method="get" action="/"><input name="q" value="{escape(query.get("q", ""))}" '
        'placeholder="study, time or trace" aria-label="part of a study, a time or a setting">'
        "<button>Filter</button></form>"
    )
    if not rows:
        empty = "No run matches." if wanted else f"There is no run in {runs}. wavetank compare STUDY makes one."
        return "Runs", f'{search}<p class="quiet">{escape(empty)}</p>'
    more = f'<p class="quiet">The newest {MOST_RUNS} of {len(folders)}.</p>' if len(folders) > MOST_RUNS else ""
    table = (
        '<form method="get" action="/diff"><button>Compare two chosen runs</button>'
        '<div class="scroll"><table class="plain runs"><thead><tr><th></th><th>run</th><th>what ran</th>'
        "<th>answer</th></tr>"
        f"</thead><tbody>{''.join(rows)}</tbody></table></div></form>"
    )
    return "Runs", search + more + table


def _searched(folder: Path) -> str:
    """Return what a filter looks in: the name of a run, its systems and its settings."""
    try:
        plan = (folder / "study.toml").read_text(encoding="utf-8", errors="replace")
    except OSError:
        plan = ""
    return f"{folder.parent.name}/{folder.name}\n{plan}".casefold()


def _chosen(result: Comparison) -> list[str]:
    """Return the settings of a run that are not the study's defaults, files by their names."""
    defaults = {item.name: item.default for item in dataclasses.fields(result.study)}
    return [
        f"{name}={Path(value).name if isinstance(value, str) and '/' in value else units.typed(value) or 'none'}"
        for name, value in settings_of(result.study).items()
        if units.typed(value) != units.typed(defaults[name])
    ]


def _report(runs: Path, study: str, name: str) -> bytes:
    from wavetank.report.page import render

    folder = _folder(runs, study, name)
    kept = folder / "report.html"
    if kept.is_file() and not kept.is_symlink():
        return kept.read_bytes()
    result = comparison.load(folder)
    if not result.records:
        raise NotFoundError(
            "This run has no records yet.", given=f"{study}/{name}", hint=f"wavetank compare {study} --resume {folder}"
        )
    return render(result).encode()


def _diff(runs: Path, query: Query) -> tuple[str, str]:
    chosen = [each for each in query.get("run", "").split("\n") if each]
    if len(chosen) != 2:
        raise BadValueError(
            "Two runs are compared.", given=f"{len(chosen)} chosen", hint="choose two on the page of runs"
        )
    # The page of runs has the newest first.
    folders = [_folder(runs, *each.partition("/")[::2]) for each in reversed(chosen)]
    before, after = (comparison.load(folder) for folder in folders)
    found = difference(before, after)
    parts = []
    for name, folder, result in (("Before", folders[0], before), ("After", folders[1], after)):
        label = f"{folder.parent.name}/{folder.name}"
        sentence = result.answer.sentence if result.answer else "nothing competes in this study"
        link = f'<a href="/run/{quote(folder.parent.name)}/{quote(folder.name)}">{escape(label)}</a>'
        parts.append(f"<p><strong>{name}</strong> {link}: {escape(sentence)}</p>")
    settings = html_page.table(found.settings) if found.settings else "<p>They are equal.</p>"
    parts.append(f"<h2>Settings</h2>{settings}")
    for name, systems in (("Only before", found.only_before), ("Only after", found.only_after)):
        if systems:
            parts.append(f"<p>{name}: {escape(', '.join(systems))}</p>")
    rows = [(each.system, each.place, each.metric, in_words(each)) for each in found.figures]
    figures = html_page.table(rows) if rows else "<p>The runs have no figure in common.</p>"
    parts.append(f"<h2>Figures</h2>{figures}")
    return f"{before.plan.study}: two runs", "\n".join(parts)


def _judged() -> tuple[Finding, ...]:
    """Return the ledger, judged again only where the evidence has changed since the last request."""
    return _judged_of(tuple(sorted((str(file), file.stat().st_mtime_ns) for file in evidence_folder().glob("*/*/*"))))


@lru_cache(maxsize=1)
def _judged_of(evidence: tuple[tuple[str, int], ...]) -> tuple[Finding, ...]:
    return tuple(claims.ledger())


def _ledger(rest: list[str]) -> tuple[str, str]:
    papers = catalog.everything().papers
    if rest:
        paper = catalog.paper(rest[0])
        if paper is None:
            raise NotFoundError("There is no such paper.", given=rest[0])
        return _paper(paper)
    findings = _judged()
    rows, reached, total = [], 0, 0
    for paper in papers.values():
        found = claims.headlines(paper, findings)
        good = sum(each.verdict in GOOD for each in found)
        reached, total = reached + good, total + len(found)
        link = f'<a href="/ledger/{quote(paper.name)}">{escape(paper.name)}</a>'
        title = escape(str(paper.source.get("title", "")))
        rows.append(f"<tr><td>{link}</td><td>{title}</td><td>{good} of {len(found)}</td></tr>")
    table = (
        '<div class="scroll"><table class="plain"><thead><tr><th>paper</th><th>title</th>'
        f"<th>headlines reached</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
    return "Ledger", f"<p>{reached} of {total} headlines of {len(papers)} papers reached.</p>{table}"


def _paper(paper: PaperEntry) -> tuple[str, str]:
    systems = [entry.name for entry in catalog.everything() if entry.paper == paper.name]
    findings = [each for each in _judged() if each.claim.system in systems]
    text, address = cited(paper.source)
    source = f'<a href="{escape(address)}">{escape(text)}</a>' if address else escape(text)
    parts = [f"<p>{source}</p>", "<h2>Headlines</h2>"]
    headlines = claims.headlines(paper, findings)
    parts.append(html_page.table((each.headline.says, each.verdict, each.headline.why) for each in headlines))
    parts.append("<h2>Claims</h2>" + html_page.table(_claim(each) for each in findings))
    names = "".join(f'<li><a href="/catalog/{quote(name)}">{escape(name)}</a></li>' for name in systems)
    parts.append(f"<h2>Systems</h2><ul>{names}</ul>")
    return paper.name, "\n".join(parts)


def _claim(found: Finding) -> tuple[str, ...]:
    claim = found.claim
    ours = f"{units.show(found.found.centre)} ({found.found.within(units.show)})" if found.found.count else ""
    asked = [
        f"{word} {units.stated(value)}"
        for word, value in (("paper", claim.paper), ("at least", claim.at_least), ("at most", claim.at_most))
        if value is not None
    ]
    history = "; ".join(f"{started[:10]}: {verdict}" for started, verdict in found.history)
    return (f"{claim.system}: {claim.says}", found.verdict, ", ".join(asked), ours, found.machine, history, claim.note)


def _catalog(rest: list[str], query: Query) -> tuple[str, str]:
    everything = catalog.everything()
    if rest:
        entry = everything.systems.get(rest[0])
        if entry is None:
            raise NotFoundError("There is no such system.", given=rest[0])
        text, address = cited(entry.source)
        source = f'<a href="{escape(address)}">{escape(text)}</a>' if address else escape(text)
        rows = [
            ("role", f"{entry.role}: {catalog.ROLES[entry.role]}"),
            *((word, catalog.RUNS[word]) for word in entry.runs),
            ("studies", ", ".join(entry.studies)),
            *(("differs", each) for each in entry.differs),
        ]
        return entry.name, f"<p>{escape(entry.does)}</p><p>{source}</p>{html_page.table(rows)}"
    wanted = query.get("q", "")
    lines: list[str] = []
    search = (
        f'<form method="get" action="/catalog"><input name="q" value="{escape(wanted)}" '
        'aria-label="words to search for"><button>Search</button></form>'
    )
    words = wanted.casefold().split()
    for entry in everything:
        said = f"{entry.name} {entry.does} {entry.area} {entry.problem} {entry.role} {entry.paper}".casefold()
        if all(word in said for word in words):
            link = f'<a href="/catalog/{quote(entry.name)}">{escape(entry.name)}</a>'
            place = f"{entry.area}/{entry.problem}".rstrip("/")
            cells = (escape(place), link, entry.role, escape(entry.does))
            lines.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    if not lines:
        hint = urlencode({"q": ""})
        return "Catalog", f'{search}<p class="quiet">No system matches. <a href="/catalog?{hint}">Show all</a></p>'
    table = (
        '<div class="scroll"><table class="plain"><thead><tr><th>problem</th><th>system</th><th>role</th>'
        f"<th>what it does</th></tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )
    return "Catalog", search + table
