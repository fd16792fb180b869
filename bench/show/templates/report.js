"use strict";
const charts = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");
const WIDTH = 440, HEIGHT = 290, TOP = 8, RIGHT = 14, BOTTOM = 40, ROW = 22, NAME = 50, LETTER = 7;
const DASHES = { "-": "", "--": "6 3", "-.": "7 3 1.5 3", ":": "1.5 3" };
const MARKS = {
  o: "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0", s: "M-3.2 -3.2h6.4v6.4h-6.4z", "^": "M0 -4L4 3.2H-4z",
  D: "M0 -4.4L4.4 0L0 4.4L-4.4 0z", x: "M-3.5 -3.5L3.5 3.5M3.5 -3.5L-3.5 3.5",
  "+": "M-4.5 0H4.5M0 -4.5V4.5", "|": "M0 -7V7", "": "",
};

function element(name, attributes = {}, parent = null, text = "") {
  const made = name in { svg: 0, g: 0, path: 0, line: 0, text: 0, rect: 0 }
    ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes))
    if (key === "hue") made.style.setProperty("--hue", value);  /* the page's policy forbids the attribute style */
    else made.setAttribute(key, value);
  if (text) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function si(value, digits = 3) {
  const size = Math.abs(value);
  for (const [letter, unit] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (size >= unit) return `${+(value / unit).toPrecision(digits)} ${letter}`;
  return size && size < 1e-3 ? value.toExponential(0) : `${+value.toPrecision(digits)}`;
}

/* Ticks with their names, which have as many digits as tell them apart. */
function named(ticks) {
  for (let digits = 3; ; digits++) {
    const names = ticks.map(tick => si(tick, digits));
    if (digits === 12 || new Set(names).size === names.length) return ticks.map((tick, place) => [tick, names[place]]);
  }
}

/* A scale from values to pixels, with its ticks. */
function scale(values, isLog, from, to, zero, isDate = false) {
  let low = Math.min(...values), high = Math.max(...values);
  isLog = isLog && low > 0;
  if (isLog) { low = Math.log10(low); high = Math.log10(high); } else if (zero) low = Math.min(0, low);
  const room = (high - low || 1) * 0.04;
  if (isLog || !zero) low -= room;
  high += room;
  const at = value => from + ((isLog ? Math.log10(value) : value) - low) / (high - low) * (to - from);
  const ticks = [];
  if (isLog) {
    const decades = high - low, steps = decades < 1.2 ? [1, 2, 5] : [1], every = Math.max(1, Math.ceil(decades / 6));
    for (let decade = Math.floor(low); decade <= high; decade++)
      for (const step of steps) {
        const value = step * 10 ** decade;
        if (decade % every === 0 && Math.log10(value) >= low && Math.log10(value) <= high) ticks.push(value);
      }
    if (ticks.length > 1) return { at, ticks };
    ticks.length = 0;
  }
  const [first, last] = isLog ? [10 ** low, 10 ** high] : [low, high];
  const rough = (last - first) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = (isDate ? [1, 1.5, 2, 3, 5, 7, 10] : [1, 2, 5, 10]).find(each => each * power >= rough) * power;
  for (let value = Math.ceil(first / step) * step; value <= last; value += step) ticks.push(+value.toPrecision(12));
  return { at, ticks };
}

/* Dates of ticks in days since 1970; times of day if they are closer than a day, years if they are months apart. */
function dated(ticks) {
  const step = ticks[1] - ticks[0], day = { month: "short", day: "numeric" };
  const format = step < 1 ? { hour: "2-digit", minute: "2-digit", hourCycle: "h23" } : step >= 50 ? { month: "short", year: "numeric" } : day;
  return ticks.map(tick => [tick, new Date(tick * 864e5).toLocaleString("en", { ...format, timeZone: "UTC" })]);
}

function mark(parent, style, x, y) {
  if (!style.marker) return;
  element("path", { d: MARKS[style.marker] ?? MARKS.o, class: "x+|".includes(style.marker) || style.markerfacecolor === "none" ? "mark bare" : "mark", transform: `translate(${x} ${y})` }, parent);
}

/* True: its series with a hatch are bars, one after the other. */
const isBar = style => "hatch" in style, hasBars = chart => Object.values(chart.styles).some(isBar);

/* Ranges of a history: buttons with the first day that they show. */
const ranges = [...document.querySelectorAll("[data-since]")], draws = [];
const since = () => Number(ranges.find(each => each.ariaPressed === "true")?.dataset.since ?? -Infinity);
for (const button of ranges) button.addEventListener("click", () => {
  for (const each of ranges) each.ariaPressed = String(each === button);
  for (const draw of draws) draw();
});

function fit(text, room) {  /* narrows a label that is wider than its room */
  if (text.getComputedTextLength() > room) { text.setAttribute("textLength", room); text.setAttribute("lengthAdjust", "spacingAndGlyphs"); }
}

function drawPanel(holder, chart, panel, off) {
  holder.textContent = "";
  element("h4", {}, holder, panel.title);
  const across = chart.kind === "rows", bars = hasBars(chart), places = !across && panel.ticks.length > 0;
  const width = Math.min(Math.max(holder.clientWidth || WIDTH, 240), 700);
  const above = across && (width < 500 || Math.max(...panel.ticks.map(name => name.length)) > NAME);  /* names of rows stand above them */
  const height = across ? TOP + BOTTOM + ROW * panel.ticks.length * (above ? 1.7 : 1) : HEIGHT;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${panel.title}: ${panel.y} ${panel.x}; the values are in the table below` }, holder);
  const first = since(), inRange = points => chart.x.date ? points.filter(d => d[0] >= first) : points;
  const shown = panel.series.filter(each => !off.has(each.name)).map(each => ({ ...each, points: inRange(each.points) })).filter(each => each.points.length);
  const points = shown.flatMap(each => each.points);
  if (!points.length) { element("text", { x: 20, y: 30 }, svg, "nothing to show"); return; }
  const left = across ? (above ? 8 : 300) : 60, right = width - (panel.right ? 58 : RIGHT), bottom = height - BOTTOM;
  const [parts, marks] = [true, false].map(kind => shown.filter(each => isBar(chart.styles[each.name]) === kind).flatMap(each => each.points));
  const totals = panel.ticks.map((_, row) => parts.reduce((sum, d) => sum + (d[1] === row ? d[0] : 0), 0));
  const xs = [...bars ? [0, ...totals] : [], ...marks.flatMap(d => across ? [d[0], d[2], d[3]] : [d[0]])];
  const x = places ? { at: v => left + (v + 0.5) / panel.ticks.length * (right - left) }
    : scale(xs, chart.x.log, left, right, bars, chart.x.date);
  const rows = v => TOP + (v + (above ? 0.72 : 0.5)) / panel.ticks.length * (bottom - TOP);
  const levels = panel.level === null ? [] : [panel.level];
  const ys = [...points.flatMap(d => [d[1], d[2], d[3]]), ...levels];
  const y = across ? { at: rows, ticks: [] } : scale(ys, chart.y.log, bottom, TOP, false);
  const names = places ? panel.ticks.map(name => name.replace(" + changes", "+")) : null;
  const every = names ? Math.ceil(names.length * (Math.max(...names.map(name => name.length)) + 1) * LETTER / (right - left)) : 1;
  for (const [tick, name] of names ? names.entries() : chart.x.date ? dated(x.ticks) : named(x.ticks)) {
    element("line", { class: "grid", x1: x.at(tick), x2: x.at(tick), y1: TOP, y2: bottom }, svg);
    if (names && (names.length - 1 - tick) % every) continue;  /* no room for all; the last one is named, and the pointer names each */
    element("text", { x: x.at(tick), y: bottom + 14, "text-anchor": "middle" }, svg, name);
  }
  for (const [tick, name] of named(y.ticks)) {
    element("line", { class: "grid", x1: left, x2: right, y1: y.at(tick), y2: y.at(tick) }, svg);
    element("text", { x: left - 5, y: y.at(tick) + 4, "text-anchor": "end" }, svg, name);
  }
  if (across) panel.ticks.forEach((name, row) => {
    const text = element("text", above ? { x: left, y: rows(row) - 9 } : { x: left - 8, y: rows(row) + 4, "text-anchor": "end" }, svg, name);
    fit(text, above ? width - left - 2 : left - 10);
  });
  else for (const level of levels) element("line", { class: "level", x1: left, x2: right, y1: y.at(level), y2: y.at(level) }, svg);
  const middle = (left + right) / 2;
  fit(element("text", { x: middle, y: height - 6, "text-anchor": "middle" }, svg, panel.x), 2 * Math.min(middle, width - middle) - 4);
  element("text", { transform: `translate(11 ${(TOP + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, svg, panel.y);
  if (panel.right) {
    const [label, factor] = panel.right, second = scale(ys.map(v => v * factor), chart.y.log, bottom, TOP, false);
    for (const [tick, name] of named(second.ticks)) element("text", { x: right + 5, y: second.at(tick) + 4 }, svg, name);
    element("text", { transform: `translate(${width - 4} ${(TOP + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, svg, label);
  }
  const targets = [], ends = new Map();
  for (const each of shown) {
    const style = chart.styles[each.name], group = element("g", { class: "series", hue: style.color }, svg);
    if (!across && style.linestyle !== "none") {
      const path = list => list.map(([a, b]) => `${x.at(a).toFixed(1)} ${y.at(b).toFixed(1)}`).join("L");
      const band = [...each.points.map(d => [d[0], d[3]]), ...[...each.points].reverse().map(d => [d[0], d[2]])];
      element("path", { class: "interval", d: `M${path(band)}z` }, group);
      element("path", { class: "line", d: `M${path(each.points)}`, "stroke-dasharray": DASHES[style.linestyle] }, group);
    }
    for (const point of each.points) {
      let px = x.at(point[0]), py = y.at(point[1]);
      if (isBar(style)) {
        const start = ends.get(point[1]) ?? 0, end = start + point[0];
        ends.set(point[1], end);
        element("rect", { class: "mark", x: x.at(start), y: py - 6, width: Math.max(0, x.at(end) - x.at(start) - 1), height: 12, "fill-opacity": style.hatch ? 0.35 : 1 }, group);
        px = (x.at(start) + x.at(end)) / 2;
      } else {
        const [x1, x2, y1, y2] = across ? [x.at(point[2]), x.at(point[3]), py, py] : [px, px, y.at(point[2]), y.at(point[3])];
        if (style.linestyle === "none") element("line", { class: "line", x1, x2, y1, y2 }, group);
        mark(group, style, px, py);
      }
      if (point[5] && across && !bars) {
        const text = element("text", { x: px + 8, y: py + 4 }, group, point[5]), long = text.getComputedTextLength() + 2;
        const inRow = points.filter(d => d[1] === point[1]).map(d => x.at(d[0])).sort((a, b) => b - a);
        const end = inRow.reduce((to, other) => other < px && other + 6 > to - long ? other - 8 : to, px - 8);  /* left of every mark in its way */
        if (px + 8 + long > width) { text.setAttribute("x", end); text.setAttribute("text-anchor", "end"); }
      }
      targets.push({ px, py, point, name: each.name });
    }
  }
  const nearest = event => {
    const box = svg.getBoundingClientRect(), k = width / box.width;
    const px = (event.clientX - box.left) * k, py = (event.clientY - box.top) * k;
    const near = targets.reduce((best, each) => Math.hypot(each.px - px, each.py - py) <= Math.hypot(best.px - px, best.py - py) ? each : best);
    return Math.hypot(near.px - px, near.py - py) > 60 ? null : near;
  };
  svg.addEventListener("click", event => { const link = nearest(event)?.point[6]; if (link) location.href = link; });
  svg.addEventListener("pointermove", event => {
    const near = nearest(event);
    svg.style.cursor = near?.point[6] ? "pointer" : "";
    if (!near) { tip.hidden = true; return; }
    const [a, b, low, high, note, label] = near.point;
    const where = chart.x.date ? new Date(a * 864e5).toISOString().slice(0, 16).replace("T", " ") : across ? panel.ticks[b] : places ? panel.ticks[a] : `${a.toLocaleString("en")} ${panel.x}`;
    tip.textContent = `${near.name}\n${where}\n${si(across ? a : b)} ${across ? panel.x : panel.y}${label ? `: ${label}` : ""}\n${low === high ? "" : `${si(low)} to ${si(high)}\n`}${note}`;
    tip.hidden = false;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 8))}px`;
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; });
}

function drawChart(place) {
  const chart = charts[place.dataset.chart], bars = hasBars(chart), off = new Set();
  const bar = element("div", { class: "bar tools" }, place), panels = element("div", { class: "panels" }, place);
  const holders = chart.panels.map(() => element("div", {}, panels));
  const draw = () => chart.panels.forEach((panel, index) => drawPanel(holders[index], chart, panel, off));
  for (const [name, style] of Object.entries(chart.styles)) {
    const button = element("button", { type: "button", "aria-pressed": "true" }, bar);
    const key = element("svg", { width: 30, height: 12, viewBox: "0 0 30 12", "aria-hidden": "true" }, button);
    const group = element("g", { class: "series", hue: style.color }, key);
    if (isBar(style)) element("rect", { class: "mark", x: 4, y: 1, width: 22, height: 10, "fill-opacity": style.hatch ? 0.35 : 1 }, group);
    else {
      if (style.linestyle !== "none") element("path", { class: "line", d: "M0 6H30", "stroke-dasharray": DASHES[style.linestyle] }, group);
      mark(group, style, 15, 6);
    }
    button.append(` ${name}`);
    button.addEventListener("click", () => {
      if (!off.delete(name)) off.add(name);
      button.setAttribute("aria-pressed", String(!off.has(name)));
      draw();
    });
  }
  const axes = bars ? "" : chart.kind === "rows" ? "x" : chart.x.date || chart.panels.some(panel => panel.ticks.length) ? "y" : "xy";
  for (const axis of axes) {
    const label = element("label", {}, bar), box = element("input", { type: "checkbox" }, label);
    box.checked = chart[axis].log;
    label.append(`log ${axis}`);
    box.addEventListener("change", () => { chart[axis].log = box.checked; draw(); });
  }
  draw();
  draws.push(draw);
  let width = place.clientWidth;
  new ResizeObserver(() => { if (place.clientWidth !== width) { width = place.clientWidth; draw(); } }).observe(place);
}

function makeSortable(table) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells], rows = [...body.rows];
  heads.forEach((head, column) => {
    const button = element("button", { type: "button" }, null, head.textContent);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      heads.forEach(each => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const isNumber = head.classList.contains("number");
      const key = row => isNumber ? parseFloat(row.cells[column].dataset.value ?? "NaN") : row.cells[column].textContent;
      const compare = (a, b) => isNumber ? a - b : a.localeCompare(b, "en", { numeric: true });
      const sorted = rows.map(row => [key(row), row]).sort(([a], [b]) => {
        if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);  /* what has no value comes last */
        return falling ? compare(b, a) : compare(a, b);
      });
      body.append(...sorted.map(([, row]) => row));
    });
  });
  if (rows.length < 8) return;
  const bar = element("div", { class: "bar tools" });
  table.parentElement.before(bar);
  const search = element("input", { type: "search", placeholder: "filter: all of these words", "aria-label": `filter ${table.caption.textContent}` }, bar);
  const choices = heads.flatMap((head, column) => {
    const values = [...new Set(rows.map(row => row.cells[column].textContent))];
    if (!("choice" in head.dataset) || values.length < 2) return [];
    const label = element("label", {}, bar, head.textContent), select = element("select", {}, label);
    for (const value of ["", ...values.sort()]) element("option", { value }, select, value || "all");
    return [[column, select]];
  });
  const count = element("span", { role: "status" }, bar);
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/);
    let n = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every(word => text.includes(word)) || choices.some(([column, select]) => select.value && row.cells[column].textContent !== select.value);
      n += !row.hidden;
    }
    count.textContent = `${n} of ${rows.length}`;
  };
  bar.addEventListener("input", filter);
  filter();
}

const theme = document.getElementById("theme");
const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const nameTheme = () => { theme.textContent = isDark() ? "light" : "dark"; };
theme.hidden = false;
theme.addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); });
nameTheme();
document.querySelectorAll("table.sortable").forEach(makeSortable);
document.querySelectorAll("[data-chart]").forEach(drawChart);
