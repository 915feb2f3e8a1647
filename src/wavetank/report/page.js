"use strict";
(() => {
  const root = document.documentElement;
  const table = document.querySelector("table.figures");

  function number(cell) {
    const text = cell.dataset.value;
    if (text === undefined || text === "nan") return NaN;
    return text === "inf" ? Infinity : text === "-inf" ? -Infinity : Number(text);
  }

  // Rows are sorted inside their case; cells without a figure always come last.
  function sort(column, ascending) {
    for (const body of table.tBodies) {
      const rows = [...body.rows].filter((row) => !row.classList.contains("case"));
      rows.sort((one, other) => {
        const a = one.cells[column], b = other.cells[column];
        if (column === 0) return (ascending ? 1 : -1) * a.dataset.value.localeCompare(b.dataset.value);
        const x = number(a), y = number(b);
        if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
        return x === y ? 0 : (x < y) === ascending ? -1 : 1;
      });
      body.append(...rows);
    }
  }

  function sortable() {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sorter";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const first = head.dataset.better === "higher" ? "descending" : "ascending";
        const then = first === "ascending" ? "descending" : "ascending";
        const next = before === first ? then : first;
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", next);
        sort(column, next === "ascending");
      });
    });
  }

  function quoted(value) {
    const text = String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  function csv() {
    const cased = table.querySelector("tr.case") !== null;
    const heads = [...table.tHead.rows[0].cells].slice(1);
    const lines = [[...(cased ? ["case"] : []), "system"]];
    for (const { dataset } of heads) {
      const unit = dataset.unit ? ` (${dataset.unit})` : "";
      lines[0].push(`${dataset.name}${unit}`, `${dataset.name} low`, `${dataset.name} high`, `${dataset.name} seeds`);
    }
    for (const body of table.tBodies) {
      for (const row of body.rows) {
        if (row.classList.contains("case")) continue;
        const [name, ...cells] = row.cells;
        const line = [...(cased ? [body.dataset.case] : []), name.dataset.value];
        for (const { dataset } of cells) line.push(dataset.value, dataset.low, dataset.high, dataset.seeds);
        lines.push(line);
      }
    }
    return lines.map((line) => line.map(quoted).join(",")).join("\r\n") + "\r\n";
  }

  function copying() {
    const button = document.getElementById("copy"), told = document.getElementById("copied");
    const area = document.getElementById("csv");
    button.addEventListener("click", async () => {
      const text = csv();
      try {
        await navigator.clipboard.writeText(text);
        told.textContent = "Copied.";
      } catch {
        // A page opened from a file may not be allowed to copy: the text is shown, selected.
        area.value = text;
        area.hidden = false;
        area.focus();
        area.select();
        told.textContent = "Press Ctrl+C to copy the text below.";
      }
    });
  }

  function charts() {
    for (const figure of document.querySelectorAll("figure")) {
      const series = [...figure.querySelectorAll(".series")];
      const hot = (index) => {
        figure.classList.toggle("focused", index !== null);
        for (const part of series) part.classList.toggle("hot", part.dataset.series === index);
      };
      for (const part of series) {
        part.addEventListener("pointerenter", () => hot(part.dataset.series));
        part.addEventListener("pointerleave", () => hot(null));
      }
      for (const button of figure.querySelectorAll(".legend button")) {
        const index = button.dataset.series;
        const shown = () => button.getAttribute("aria-pressed") === "true";
        for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => shown() && hot(index));
        for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => hot(null));
        button.addEventListener("click", () => {
          button.setAttribute("aria-pressed", String(!shown()));
          for (const part of series) {
            if (part.dataset.series === index) part.classList.toggle("off", !shown());
          }
          hot(shown() ? index : null);
        });
      }
    }
  }

  if (table) {
    sortable();
    copying();
  } else {
    document.getElementById("copy").hidden = true;
  }
  charts();
  root.dataset.ready = "yes";
})();
