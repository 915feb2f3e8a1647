"""The main table of a comparison: one model, rendered as plain text, Rich, Markdown and HTML.

Rows are systems (or case and system), columns the metrics that a study puts into its table.  A cell holds the median
over seeds, its interval, the ratio to the baseline, the paper's figure where a claim gives one, and whether the system
leads.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wavetank import units
from wavetank.report.scale import Scale, labels, listed, scale_for, shortened
from wavetank.study.answer import SHARED, SOLE, standings
from wavetank.study.records import canonical_at
from wavetank.study.summary import Row
from wavetank.study.timing import TimingStudy
from wavetank.svg import escape

if TYPE_CHECKING:
    import rich.table

    from wavetank.ledger.claims import Finding
    from wavetank.run.comparison import Comparison
    from wavetank.study.study import Metric

ROOMY = 5  # up to this many columns interval and ratio of a cell stand side by side
_MARKS = {SOLE: "*", SHARED: "~", "": ""}
GLYPHS = {SOLE: "★", SHARED: "≈", "": ""}
_ARROWS = {"lower": "↓ lower is better", "higher": "↑ higher is better", "": ""}
_SAYS = {
    SOLE: "leads: better than every other system, pair by pair",
    SHARED: "among the best: nobody is shown to be better, and others are worse",
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """One metric of the table.

    Attributes
    ----------
    metric : Metric
    label : str
        The metric's name in words, without its unit.
    scale : Scale
        The unit in which the whole column is shown.
    kinds : tuple of str
        What kind of figures these are; more than one only when records disagree with their study.
    """

    metric: Metric
    label: str
    scale: Scale
    kinds: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Return the kind in words; a mixture is called one."""
        return self.kinds[0] if len(self.kinds) == 1 else f"mixed: {listed(self.kinds)}"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One figure of the table.

    Attributes
    ----------
    row : Row or None
        None where the system gave no record.
    lead : str
        ``"sole"``, ``"shared"`` or empty.
    ratio : float
        Mean ratio to the baseline over paired replicates; NaN where there is none.
    ratio_within : str
        How far it is known, in words.
    papers : tuple of Finding
        Claims in which a source gives a figure of its own for this cell.
    """

    row: Row | None = None
    lead: str = ""
    ratio: float = math.nan
    ratio_within: str = ""
    papers: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Line:
    """One system, under one case.

    Attributes
    ----------
    system, case : str
    baseline : bool
    cells : tuple of Cell
        One a column.
    note : str
        What is missing: trials that failed, figures that were not recorded.
    """

    system: str
    case: str
    baseline: bool
    cells: tuple[Cell, ...]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """The main table of one run.

    Attributes
    ----------
    study : str
    baseline : str
    cases_by : str
        The coordinate behind the cases; empty when there is one case.
    sample : str
        How many seeds (processes, in a timing study) the run had, in words.
    columns : tuple of Column
    lines : tuple of Line
    """

    study: str
    baseline: str
    cases_by: str
    sample: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]

    def cases(self) -> Iterator[tuple[str, list[Line]]]:
        """Yield every case with its lines; one case without a name where the study has none."""
        grouped: dict[str, list[Line]] = {}
        for line in self.lines:
            grouped.setdefault(line.case, []).append(line)
        yield from grouped.items()

    def heading(self, case: str) -> str:
        """Return the heading of a case."""
        return f"{self.cases_by.replace('_', ' ')}: {case or 'all'}"

    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of figures in the table, in order of first appearance."""
        return tuple(dict.fromkeys(kind for column in self.columns for kind in column.kinds))

    def paper_lines(self) -> list[str]:
        """Return one line for every figure that a source gives, with ours beside it."""
        lines = []
        for line in self.lines:
            for column, cell in zip(self.columns, line.cells, strict=True):
                where = f" ({line.case})" if line.case else ""
                lines += [
                    f"{line.system}, {column.label}{where}: "
                    + paper_text(finding, column.scale, self.baseline, ours=True)
                    for finding in cell.papers
                ]
        return lines

    def legend(self, marks: Mapping[str, str] = _MARKS, times: str = "x") -> list[str]:
        """Return what the marks in the cells mean; only of marks that occur."""
        leads = {cell.lead for line in self.lines for cell in line.cells}
        parts = [f"{marks[lead]} {_SAYS[lead]}" for lead in (SOLE, SHARED) if lead in leads]
        if any(math.isfinite(cell.ratio) for line in self.lines for cell in line.cells):
            parts.append(f"{times} ratio to the baseline {self.baseline}, seed by seed")
        return parts

    def as_text(self, width: int = 80) -> str:
        """Return the table as plain text; columns that do not fit side by side follow in blocks below.

        Parameters
        ----------
        width : int
            Characters a line.
        """
        heads, bodies = self._text_columns()
        names = _row_names(self, most=max(12, width // 3))
        first = max((len(name) for name, is_case in names if not is_case), default=0)
        wide = [
            max(len(text) for text in [*body, *" ".join(head).split()])
            for head, body in zip(heads, bodies, strict=True)
        ]
        blocks: list[list[int]] = []
        room = 0
        for index in range(len(bodies)):
            if not blocks or 2 + wide[index] > room:
                blocks.append([])
                room = width - first
            blocks[-1].append(index)
            room -= 2 + wide[index]
        lines = [self._title()]
        for block in blocks:
            wrapped = {index: _head(heads[index], wide[index]) for index in block}
            depth = max(len(head) for head in wrapped.values())
            lines.append("")
            for level in range(depth):
                cells = (_at(wrapped[index], level - depth).ljust(wide[index]) for index in block)
                lines.append((" " * first + "".join(f"  {cell}" for cell in cells)).rstrip())
            for number, (name, is_case) in enumerate(names):
                if is_case:
                    lines.append(name)
                    continue
                cells = (bodies[index][number].ljust(wide[index]) for index in block)
                lines.append((name.ljust(first) + "".join(f"  {cell}" for cell in cells)).rstrip())
        if not blocks:
            lines += ["", *(name for name, _ in names), "", "No figures were recorded."]
        notes = ["(b) the baseline"] if any(line.baseline for line in self.lines) else []
        notes += [*self.legend(), *self.paper_lines(), *self._missing()]
        if notes:
            lines.append("")
            for note in notes:
                lines += textwrap.wrap(note, width, subsequent_indent="  ", break_long_words=False)
        return "\n".join(lines)

    def as_rich(self) -> rich.table.Table:
        """Return the table for a terminal."""
        import rich.box
        import rich.table
        from rich.text import Text

        table = rich.table.Table(
            box=rich.box.SIMPLE_HEAD,
            title=Text(self._title()),
            title_justify="left",
            caption=Text("\n".join([*self.legend(), *self._missing()])),
            caption_justify="left",
            pad_edge=False,
        )
        table.add_column("", no_wrap=True)
        for column in self.columns:
            head = Text(column.label, style="bold")
            head.append(f"\n{', '.join(filter(None, (column.scale.unit, column.metric.better)))}", style="dim not bold")
            head.append(f"\n{column.kind}", style="dim not bold")
            table.add_column(head, justify="right", no_wrap=True)
        for case, lines in self.cases():
            if self.cases_by:
                table.add_section()
                table.add_row(Text(self.heading(case), style="bold"))
            for line in lines:
                name = Text(line.system)
                if line.baseline:
                    name.append(" (baseline)", style="dim")
                cells = []
                for column, cell in zip(self.columns, line.cells, strict=True):
                    median, interval, ratio = _figures(cell, column.scale)
                    text = Text(
                        median + (f" {_MARKS[cell.lead]}" if cell.lead else ""),
                        style="bold green" if cell.lead == SOLE else "",
                    )
                    for extra in filter(None, (" ".join(filter(None, (interval, ratio))), *self._papers(cell, column))):
                        text.append(f"\n{extra}", style="dim not bold default")
                    cells.append(text)
                table.add_row(name, *cells)
        return table

    def as_markdown(self) -> str:
        """Return the table as a Markdown pipe table."""
        head = ["case"] if self.cases_by else []
        head.append("system")
        for column in self.columns:
            about = ", ".join(filter(None, (column.scale.unit, column.metric.better, column.kind)))
            head.append(f"{column.label} ({about})")
        rows = [head, ["---"] * (len(head) - len(self.columns)) + ["---:"] * len(self.columns)]
        for line in self.lines:
            row = [line.case or "all"] if self.cases_by else []
            row.append(line.system + (" (baseline)" if line.baseline else ""))
            for column, cell in zip(self.columns, line.cells, strict=True):
                median, interval, ratio = _figures(cell, column.scale)
                marked = {SOLE: f"**{median}**", SHARED: f"{median} {GLYPHS[SHARED]}", "": median}[cell.lead]
                parts = [marked, f"({interval})" if interval else "", ratio]
                parts += [f"[{text}]" for text in self._papers(cell, column)]
                row.append(" ".join(filter(None, parts)))
            rows.append(row)
        notes = [*self.legend({SOLE: "bold", SHARED: GLYPHS[SHARED]}), *self._missing()]
        body = ["| " + " | ".join(_markdown(text) for text in row) + " |" for row in rows]
        return "\n".join([*body, *(["", "; ".join(notes) + "."] if notes else [])]) + "\n"

    def as_html(self, *, styled: bool = True) -> str:
        """Return the table as an HTML fragment.

        Parameters
        ----------
        styled : bool
            Whether to bring the few style rules a notebook needs; the report has its own.
        """
        out = [
            f"<style>{_NOTEBOOK_STYLE}</style>" if styled else "",
            f'<table class="figures{" roomy" if len(self.columns) <= ROOMY else ""}">',
        ]
        out.append(("<caption>" if styled else '<caption class="unseen">') + f"{escape(self._title())}</caption>")
        out.append('<thead><tr><th scope="col" data-name="system"><span class="label">system</span></th>')
        for column in self.columns:
            data = {
                "name": column.metric.name,
                "unit": column.metric.unit,
                "better": column.metric.better,
                "kind": column.kind,
            }
            out.append(
                f'<th scope="col"{_data(data)} title="{escape(column.metric.of)}">'
                f'<span class="label">{escape(column.label)}</span> '
                f'<span class="unit">{escape(column.scale.unit)}</span> '
                f'<span class="better">{_ARROWS[column.metric.better]}</span> '
                f'<span class="kind">{escape(column.kind)}</span></th>'
            )
        out.append("</tr></thead>")
        for case, lines in self.cases():
            out.append(f"<tbody{_data({'case': case}) if self.cases_by else ''}>")
            if self.cases_by:
                out.append(
                    f'<tr class="case"><th scope="rowgroup" colspan="{len(self.columns) + 1}">'
                    f"<span>{escape(self.heading(case))}</span></th></tr>"
                )
            for line in lines:
                out.append(self._html_line(line))
            out.append("</tbody>")
        out.append("</table>")
        return "\n".join(filter(None, out))

    def _html_line(self, line: Line) -> str:
        tags = '<span class="tag">baseline</span>' if line.baseline else ""
        tags += f'<span class="note">{escape(line.note)}</span>' if line.note else ""
        cells = [f'<th scope="row"{_data({"value": line.system})}>{escape(line.system)} {tags}</th>']
        for column, cell in zip(self.columns, line.cells, strict=True):
            median, interval, ratio = _figures(cell, column.scale, dash="–", times="×")
            row = cell.row
            data: dict[str, object] = {}
            if row is not None and row.seeds:
                data = {"value": row.median, "low": row.low, "high": row.high, "seeds": row.seeds}
                if math.isfinite(cell.ratio):
                    data["ratio"] = cell.ratio
            mark = f' <span class="mark" title="{_SAYS[cell.lead]}">{GLYPHS[cell.lead]}</span>' if cell.lead else ""
            parts = [f'<span class="median">{median}{mark}</span>']
            parts += [f'<span class="interval">{interval}</span>'] if interval else []
            if ratio:
                parts.append(f'<span class="ratio" title="the ratio: {escape(cell.ratio_within)}">{ratio}</span>')
            parts += [f'<span class="paper">{escape(text)}</span>' for text in self._papers(cell, column, "×")]
            if row is not None and row.seeds < self._most_seeds(column):
                parts.append(f'<span class="few">n = {row.seeds}</span>')
            cells.append(f"<td{_data(data)}{f' class={cell.lead}' if cell.lead else ''}>{' '.join(parts)}</td>")
        return f"<tr{' class=baseline' if line.baseline else ''}>{''.join(cells)}</tr>"

    def _most_seeds(self, column: Column) -> int:
        index = self.columns.index(column)
        return max((cell.row.seeds for line in self.lines if (cell := line.cells[index]).row), default=0)

    def _papers(self, cell: Cell, column: Column, times: str = "x") -> list[str]:
        return [paper_text(finding, column.scale, self.baseline, times=times) for finding in cell.papers]

    def _missing(self) -> list[str]:
        found = dict.fromkeys(f"{line.system}: {line.note}" for line in self.lines if line.note)
        return list(found)

    def _title(self) -> str:
        systems = len({line.system for line in self.lines})
        kinds = self.kinds()
        about = [
            f"{systems} {'system' if systems == 1 else 'systems'}",
            self.sample,
        ]
        if len(kinds) == 1:
            about.append(f"all figures {kinds[0]}")
        return f"{self.study}: {', '.join(about)}"

    def _text_columns(self) -> tuple[list[list[str]], list[list[str]]]:
        """Return the header parts and the cells of every column, the parts of a cell lined up under each other."""
        heads, bodies = [], []
        one_kind = len(self.kinds()) == 1
        for index, column in enumerate(self.columns):
            about = ", ".join(filter(None, (column.scale.unit, column.metric.better)))
            heads.append([column.label, about, "" if one_kind else column.kind])
            parts: list[tuple[str, str, str, str]] = []
            for _, lines in self.cases():
                if self.cases_by:
                    parts.append(("", "", "", ""))
                for line in lines:
                    cell = line.cells[index]
                    median, interval, ratio = _figures(cell, column.scale)
                    parts.append((median, _MARKS[cell.lead], interval, ratio))
            wide = [max(len(part[number]) for part in parts) for number in range(4)]
            body = []
            for median, mark, interval, ratio in parts:
                text = median.rjust(wide[0]) + mark.ljust(wide[1])
                text += (" " + interval.ljust(wide[2])) if wide[2] else ""
                text += (" " + ratio.ljust(wide[3])) if wide[3] else ""
                body.append(text.rstrip())
            bodies.append(body)
        return heads, bodies


def main_table(comparison: Comparison) -> Table:
    """Build the main table of a comparison."""
    study, rows = comparison.study, comparison.rows
    cases_by = study.cases_by
    shown = [metric for metric in study.metrics if metric.table]
    places = _places(rows, {metric.name for metric in shown}, cases_by)
    index = {(row.system, row.metric, canonical_at(row.at)): row for row in rows}
    systems = comparison.plan.systems
    figures, exact = comparison.figures, study.exact
    # A reader of the table looks at all of these at once.
    judged = sum(1 for metric in shown if metric.better and metric.name in {row.metric for row in rows})
    looked_at = max(1, judged * len(places))
    named = labels(study.metrics)

    columns: list[Column] = []
    cells: dict[tuple[str, str, int], Cell] = {}
    for metric in shown:
        of_metric = {case: [row for s in systems if (row := index.get((s, metric.name, at)))] for case, at in places}
        flat = [row for found in of_metric.values() for row in found]
        if not flat:
            continue
        kinds = tuple(dict.fromkeys(row.kind for row in flat))
        for case, at in places:
            coordinates = json.loads(at)
            # Figures of different kinds are not comparable: neither leader nor ratio is shown.
            leads = {}
            if len(kinds) == 1 and metric.better:
                leads = standings(figures, metric, coordinates, comparison.who, columns=looked_at, exact=exact)
            for system in systems:
                row = index.get((system, metric.name, at))
                ratio, within = math.nan, ""
                base = index.get((study.baseline, metric.name, at))
                if len(kinds) == 1 and system != study.baseline and base is not None and not _is_unity(base):
                    found = figures.compare(system, study.baseline, metric, coordinates, exact=exact)
                    ratio, within = found.centre, found.within(units.show)
                papers = tuple(
                    finding
                    for finding in comparison.findings
                    if finding.claim.paper is not None
                    and (finding.claim.system, finding.claim.metric) == (system, metric.name)
                    and canonical_at(finding.claim.at) == at
                )
                cells[system, case, len(columns)] = Cell(
                    row=row, lead=leads.get(system, ""), ratio=ratio, ratio_within=within, papers=papers
                )
        columns.append(
            Column(
                metric=metric,
                label=named[metric.name],
                scale=scale_for(metric.unit, (row.median for row in flat)),
                kinds=kinds,
            )
        )
    notes = _notes(comparison, systems)
    lines = []
    for case, _ in places:
        for system in systems:
            mine = tuple(cells[system, case, number] for number in range(len(columns)))
            note = notes.get(system, "")
            # A system that is fine but was not asked in this case has nothing to say here.
            if note or len(places) == 1 or any(cell.row for cell in mine):
                is_base = system == study.baseline
                lines.append(Line(system=system, case=case, baseline=is_base, cells=mine, note=note))
    return Table(
        study=comparison.plan.study,
        baseline=study.baseline,
        cases_by=cases_by,
        sample=_sample(comparison),
        columns=tuple(columns),
        lines=tuple(lines),
    )


def paper_text(finding: Finding, scale: Scale, baseline: str, *, ours: bool = False, times: str = "x") -> str:
    """Write the figure that a source gives for a cell, with ours where the cell does not show it already.

    Parameters
    ----------
    finding : Finding
        Its claim has a figure of the source.
    scale : Scale
        In which the cell is shown.
    baseline : str
        The study's baseline.
    ours : bool
        Whether to name our figure in any case.
    times : str
        The sign before a ratio.
    """
    claim = finding.claim
    if claim.paper is None:
        return ""
    if finding.versus is None:
        text = f"paper {units.stated(scale.of(claim.paper))} {scale.unit}".rstrip()
        measured = f"{scale.text(finding.found.centre)} {scale.unit}".rstrip()
    else:
        of = "" if finding.versus == baseline else f" of {finding.versus}"
        text = f"paper {times}{units.stated(claim.paper)}{of}"
        measured = f"{times}{units.show(finding.found.centre)}"
    if ours or (finding.versus not in (None, baseline)):
        text += f", ours {measured}"
    return text


def _places(rows: Sequence[Row], metrics: set[str], cases_by: str) -> list[tuple[str, str]]:
    """Return the cases with their canonical coordinates; figures of all cases together come last."""
    found: dict[str, str] = {}
    whole = False
    for row in rows:
        if row.metric in metrics and not row.at:
            whole = True
        elif row.metric in metrics and cases_by and set(row.at) == {cases_by}:
            value = row.at[cases_by]
            found[units.stated(value) if isinstance(value, float) else str(value)] = canonical_at(row.at)
    if whole or not found:
        found[""] = canonical_at({})
    return list(found.items())


def _sample(comparison: Comparison) -> str:
    seeds = len(comparison.plan.seeds)
    if not isinstance(comparison.study, TimingStudy):
        return f"{seeds} {'seed' if seeds == 1 else 'seeds'}"
    rounds = comparison.study.rounds
    each = f"{rounds} {'round' if rounds == 1 else 'rounds'}"
    return f"{seeds} {'process' if seeds == 1 else 'processes'} of {each}"


def _notes(comparison: Comparison, systems: Sequence[str]) -> dict[str, str]:
    failed: dict[str, int] = defaultdict(int)
    for failure in comparison.failures:
        for system in failure.trial.partition("#")[0].split("+"):
            failed[system] += 1
    recorded = {record.system for record in comparison.records}
    notes = {}
    for system in systems:
        if system in failed and system not in recorded:
            notes[system] = "every trial failed"
        elif system in failed:
            planned = comparison.study.trials(comparison.plan.systems, comparison.plan.seeds)
            notes[system] = f"{failed[system]} of {sum(system in trial.systems for trial in planned)} trials failed"
        elif system not in recorded:
            notes[system] = "no figures were recorded"
    return notes


def _is_unity(base: Row) -> bool:
    # A metric that is itself a ratio to the baseline needs no ratio beside it.
    return base.unit == "" and base.least == base.most == 1.0


def _figures(cell: Cell, scale: Scale, dash: str = "..", times: str = "x") -> tuple[str, str, str]:
    if cell.row is None or not cell.row.seeds:
        return "-", "", ""
    # Nothing is a multiple of a baseline of 0.
    ratio = f"{times}{units.show(cell.ratio)}" if math.isfinite(cell.ratio) else ""
    return scale.text(cell.row.median), scale.interval(cell.row, dash), ratio


def _row_names(table: Table, most: int) -> list[tuple[str, bool]]:
    """Return the names that begin the lines of a text table, and whether each is the heading of a case."""
    names: list[tuple[str, bool]] = []
    full = {line.system for line in table.lines}
    short = {name: shortened(name, most) for name in full}
    if len(set(short.values())) < len(full):
        short = {name: name for name in full}
    for case, lines in table.cases():
        if table.cases_by:
            names.append((table.heading(case), True))
        indent = "  " if table.cases_by else ""
        names += [(f"{indent}{short[line.system]}{' (b)' if line.baseline else ''}", False) for line in lines]
    return names


def _head(parts: Sequence[str], width: int) -> list[str]:
    return [line for part in parts if part for line in textwrap.wrap(part, width)]


def _at(lines: Sequence[str], from_end: int) -> str:
    return lines[from_end] if -from_end <= len(lines) else ""


def _data(values: Mapping[str, Any]) -> str:
    return "".join(f' data-{name}="{escape(str(value))}"' for name, value in values.items() if value != "")


def _markdown(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


_NOTEBOOK_STYLE = """
table.figures { border-collapse: collapse; font-variant-numeric: tabular-nums; }
table.figures th, table.figures td { padding: .3em .7em; text-align: right; vertical-align: top; }
table.figures tr > th:first-child { text-align: left; }
table.figures thead th { border-bottom: 1px solid; vertical-align: bottom; }
table.figures caption { text-align: left; padding-bottom: .5em; }
table.figures .unit, table.figures .better, table.figures .kind, table.figures .interval, table.figures .ratio,
table.figures .paper, table.figures .few, table.figures .tag, table.figures .note {
  display: block; font-weight: normal; font-size: .85em; opacity: .75; }
table.figures td.sole .median { font-weight: bold; }
""".strip()
