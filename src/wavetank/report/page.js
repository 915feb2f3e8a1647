"use strict";
(() => {
  const root = document.documentElement;
  const table = document.querySelector("table.figures");
  const numbers = JSON.parse(document.getElementById("numbers").textContent);
  const hidden = new Map(); // figure -> ids of the series that are switched off

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
    const heads = [...table.tHead.rows[0].cells].slice(1).filter((cell) => !cell.hidden);
    const lines = [[...(cased ? ["case"] : []), "system"]];
    for (const { dataset } of heads) {
      const unit = dataset.unit ? ` (${dataset.unit})` : "";
      lines[0].push(`${dataset.name}${unit}`, `${dataset.name} low`, `${dataset.name} high`, `${dataset.name} seeds`);
    }
    for (const body of table.tBodies) {
      for (const row of body.rows) {
        if (row.classList.contains("case") || row.hidden) continue;
        const [name, ...cells] = row.cells;
        const line = [...(cased ? [body.dataset.case] : []), name.dataset.value];
        for (const { dataset } of cells.filter((cell) => !cell.hidden)) line.push(dataset.value, dataset.low, dataset.high, dataset.seeds);
        lines.push(line);
      }
    }
    return lines.map((line) => line.map(quoted).join(",")).join("\r\n") + "\r\n";
  }

  function save(name, type, content) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
    link.download = `${numbers.study}-${name}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  function button(text, act) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.addEventListener("click", act);
    return made;
  }

  function made(tag, className, ...children) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    node.append(...children);
    return node;
  }

  function copying() {
    const note = document.getElementById("copied"), area = document.getElementById("csv");
    document.getElementById("save").addEventListener("click", () => save("figures.csv", "text/csv", csv()));
    document.getElementById("copy").addEventListener("click", async () => {
      const text = csv();
      try {
        await navigator.clipboard.writeText(text);
        note.textContent = "Copied.";
      } catch {
        // A page opened from a file may not be allowed to copy: the text is shown, selected.
        area.value = text;
        area.hidden = false;
        area.focus();
        area.select();
        note.textContent = "Press Ctrl+C to copy the text below.";
      }
    });
  }

  // A system that is switched off disappears from a chart; its legend, where there is one, shows it.
  function show(figure, index, shown) {
    for (const part of figure.querySelectorAll(`.series[data-series="${index}"]`)) part.classList.toggle("off", !shown);
    const key = figure.querySelector(`.legend button[data-series="${index}"]`);
    if (key) key.setAttribute("aria-pressed", String(shown));
    shown ? hidden.get(figure).delete(index) : hidden.get(figure).add(index);
  }

  function filter() {
    const box = document.getElementById("filter"), body = () => [...table.tBodies].flatMap((each) => [...each.rows]);
    const group = (title, names, act) => {
      const field = made("fieldset", "", made("legend", "", title));
      names.forEach((name, place) => {
        const check = document.createElement("input");
        check.type = "checkbox";
        check.checked = true;
        check.addEventListener("change", () => act(name, check.checked, place));
        field.append(made("label", "", check, name));
      });
      box.append(field);
    };
    const heads = [...table.tHead.rows[0].cells].slice(1);
    group("Systems", numbers.systems, (name, shown) => {
      for (const row of body()) if (row.cells[0].dataset.value === name) row.hidden = !shown;
      for (const [slug, chart] of Object.entries(numbers.charts)) {
        for (const [index, system] of chart.series) {
          if (system === name) show(document.getElementById(slug), String(index), shown);
        }
      }
    });
    group("Columns", heads.map((head) => head.querySelector(".label").textContent), (name, shown, place) => {
      for (const row of [table.tHead.rows[0], ...body()]) {
        if (!row.classList.contains("case")) row.cells[place + 1].hidden = !shown;
      }
    });
  }

  function written(value) {
    if (typeof value !== "number") return value === null ? "-" : String(value);
    const most = Math.abs(value) >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 };
    return Math.abs(value) < 1e-4 && value ? value.toPrecision(3) : value.toLocaleString("en-US", most);
  }

  function figureOf([, , , , median, low, high], unit) {
    const ends = low === null || high === null || low === high ? "" : ` (${written(low)} to ${written(high)})`;
    return `${written(median)}${ends}${unit && ` ${unit}`}`;
  }

  // The values below the pointer (or the next ones, with the arrow keys), and a crosshair at the nearest.
  function pointed(figure, chart, svg, panel, tip) {
    const [along, up] = chart.names;
    const looks = new Map(chart.series.map(([index, name, colour]) => [index, { name, colour }]));
    const curves = ["sweep", "distribution", "timeline"].includes(chart.kind);
    const rows = ["bars", "forest"].includes(chart.kind);
    const marks = () => panel.marks.filter(([index]) => !hidden.get(figure).has(String(index)));
    const SVG = "http://www.w3.org/2000/svg";
    let pointer = null, current = null;

    function leave() {
      pointer?.remove();
      pointer = current = null;
      tip.hidden = true;
    }

    function mark(name, values) {
      const node = document.createElementNS(SVG, name);
      for (const [key, value] of Object.entries(values)) node.setAttribute(key, value);
      pointer.append(node);
    }

    function point(nearest) {
      pointer?.remove();
      current = nearest;
      const [, x, y, at] = nearest, [left, top, right, bottom] = panel.box;
      pointer = document.createElementNS(SVG, "g");
      pointer.setAttribute("class", "pointer");
      if (!rows) mark("line", { x1: x, x2: x, y1: top, y2: bottom });
      if (!rows) mark("line", { x1: left, x2: right, y1: y, y2: y });
      mark("circle", { cx: x, cy: y, r: 6 });
      svg.append(pointer);
      const beside = curves ? marks().filter((each) => Math.abs(each[1] - x) < 0.6) : [nearest];
      beside.sort((one, other) => one[2] - other[2]);
      const place = along[0] && at !== "" ? `${along[0]} ${typeof at === "number" ? written(at) : at} ${along[1]}` : "";
      const lines = beside.map((each) => {
        const dot = made("i", ""), look = looks.get(each[0]);
        dot.style.background = look.colour;
        const line = made("div", each === nearest ? "nearest" : "", dot, made("span", "", look.name));
        line.append(made("span", "", figureOf(each, up[1])));
        return line;
      });
      tip.replaceChildren(made("p", "", [panel.heading, place.trim(), up[0]].filter(Boolean).join(", ")), ...lines);
      tip.hidden = false;
      const matrix = svg.getScreenCTM(), size = tip.getBoundingClientRect();
      const spotX = matrix.a * x + matrix.e, spotY = matrix.d * y + matrix.f;
      const over = spotX + 14 + size.width > innerWidth;
      tip.style.left = `${Math.max(4, over ? spotX - 14 - size.width : spotX + 14)}px`;
      tip.style.top = `${Math.max(4, Math.min(spotY + 10, innerHeight - size.height - 4))}px`;
    }

    function near(event) {
      const matrix = svg.getScreenCTM();
      const x = (event.clientX - matrix.e) / matrix.a, y = (event.clientY - matrix.f) / matrix.d;
      const all = marks();
      if (!all.length) return null;
      const far = rows
        ? (each) => Math.abs(each[2] - y)
        : curves ? (each) => Math.abs(each[1] - x) * 1000 + Math.abs(each[2] - y) : (each) => Math.hypot(each[1] - x, each[2] - y);
      const best = all.reduce((one, other) => (far(other) < far(one) ? other : one));
      return far(best) > (rows ? 12 : curves ? Infinity : 60) ? null : best;
    }

    function follow(event) {
      const nearest = near(event);
      nearest ? point(nearest) : leave();
    }

    for (const event of ["pointermove", "pointerdown"]) svg.addEventListener(event, follow);
    for (const event of ["pointerleave", "blur"]) svg.addEventListener(event, leave);
    svg.tabIndex = 0;
    svg.setAttribute("aria-description", "Arrow keys go through the figures.");
    svg.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const all = marks().sort((one, other) => (rows ? one[2] - other[2] : one[1] - other[1] || one[2] - other[2]));
      if (!step || !all.length) return;
      event.preventDefault();
      const from = current ? all.indexOf(current) : step > 0 ? -1 : all.length;
      point(all[Math.max(0, Math.min(all.length - 1, from + step))]);
    });
  }

  function chartCsv(figure, chart) {
    const named = ([name, unit], other) => (name || other) + (unit ? ` (${unit})` : "");
    const lines = [["panel", "system", named(chart.names[0], "place"), named(chart.names[1], "value"), "low", "high"]];
    const systems = new Map(chart.series.map(([index, name]) => [index, name]));
    for (const { heading, marks } of chart.panels) {
      for (const [index, , , at, ...values] of marks) {
        if (!hidden.get(figure).has(String(index))) lines.push([heading, systems.get(index), at, ...values]);
      }
    }
    return lines.map((line) => line.map(quoted).join(",")).join("\r\n") + "\r\n";
  }

  // The drawing as a picture: with the page's colours of the moment, its title and its legend.
  async function chartPng(figure, chart) {
    const style = getComputedStyle(root), colour = (name) => style.getPropertyValue(name).trim();
    const body = getComputedStyle(document.body), font = body.fontFamily, scale = 2, edge = 14;
    const plain = (text) => text
      .replace(/var\((--[\w-]+),[^)]*\)/g, (all, name) => colour(name) || all)
      .replaceAll("currentColor", body.color);
    const looks = `text{font-family:${font.replaceAll('"', "'")};paint-order:stroke;stroke:${colour("--bg")};stroke-width:3px}`;
    const drawings = await Promise.all([...figure.querySelectorAll("svg.chart")].map(async (svg, number) => {
      const copy = svg.cloneNode(true), { width, height } = svg.viewBox.baseVal;
      for (const part of copy.querySelectorAll(".pointer, .off")) part.remove();
      copy.setAttribute("width", width * scale);
      copy.setAttribute("height", height * scale);
      const sheet = document.createElementNS("http://www.w3.org/2000/svg", "style");
      sheet.textContent = looks;
      copy.prepend(sheet);
      const image = new Image();
      image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(plain(new XMLSerializer().serializeToString(copy)))}`;
      await image.decode();
      return { image, width, height, heading: chart.panels[number].heading };
    }));
    const keys = figure.querySelector(".legend") ? chart.series.filter(([index]) => !hidden.get(figure).has(String(index))) : [];
    const width = Math.max(...drawings.map((each) => each.width)) + 2 * edge, across = 2;
    const legend = Math.ceil(keys.length / across) * 16;
    const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
    canvas.width = width * scale;
    canvas.height = scale * (3 * edge + 12 + legend + drawings.reduce((sum, each) => sum + each.height + (each.heading ? 20 : 0), 0));
    pen.scale(scale, scale);
    pen.fillStyle = colour("--bg");
    pen.fillRect(0, 0, canvas.width, canvas.height);
    const write = (text, x, y, weight) => {
      pen.fillStyle = body.color;
      pen.font = `${weight} 12px ${font}`;
      pen.fillText(text, x, y, width - x - edge);
    };
    let y = edge + 12;
    write(chart.title, edge, y, 600);
    for (const each of drawings) {
      if (each.heading) write(each.heading, edge, (y += 20), 400);
      pen.drawImage(each.image, edge, y + 6, each.width, each.height);
      y += each.height;
    }
    keys.forEach(([, name, css], number) => {
      const x = edge + (number % across) * ((width - edge) / across), top = y + 20 + 16 * Math.floor(number / across);
      pen.fillStyle = plain(css);
      pen.fillRect(x, top - 8, 14, 8);
      write(name, x + 20, top, 400);
    });
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }

  function charts() {
    const tip = made("div", "tip");
    tip.setAttribute("role", "status");
    tip.hidden = true;
    document.body.append(tip);
    for (const [slug, chart] of Object.entries(numbers.charts)) {
      const figure = document.getElementById(slug);
      hidden.set(figure, new Set());
      const series = [...figure.querySelectorAll(".series")];
      const hot = (index) => {
        figure.classList.toggle("focused", index !== null);
        for (const part of series) part.classList.toggle("hot", part.dataset.series === index);
      };
      for (const part of series) {
        part.addEventListener("pointerenter", () => hot(part.dataset.series));
        part.addEventListener("pointerleave", () => hot(null));
      }
      for (const key of figure.querySelectorAll(".legend button")) {
        const index = key.dataset.series;
        const shown = () => key.getAttribute("aria-pressed") === "true";
        for (const event of ["pointerenter", "focus"]) key.addEventListener(event, () => shown() && hot(index));
        for (const event of ["pointerleave", "blur"]) key.addEventListener(event, () => hot(null));
        key.addEventListener("click", () => {
          show(figure, index, !shown());
          hot(shown() ? index : null);
        });
      }
      figure.querySelectorAll("svg.chart").forEach((svg, number) => pointed(figure, chart, svg, chart.panels[number], tip));
      figure.querySelector(".panels").after(made(
        "div", "tools",
        button("CSV", () => save(`${slug}.csv`, "text/csv", chartCsv(figure, chart))),
        button("PNG", async () => save(`${slug}.png`, "image/png", await chartPng(figure, chart))),
      ));
    }
    addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
  }

  charts();
  if (table) {
    sortable();
    copying();
    filter();
  } else {
    for (const id of ["copy", "save"]) document.getElementById(id).hidden = true;
  }
  root.dataset.ready = "yes";
})();
