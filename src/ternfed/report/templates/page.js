"use strict";
// What a page can do where scripts run: sort its tables, give them as CSV, tell the numbers under the pointer.
addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("table").forEach((table) => { sortable(table); downloadable(table); });
  document.querySelectorAll(".sheet[data-curves]").forEach(pointable);
});

function made(tag, attributes, text) {
  const element = document.createElement(tag);
  Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
  element.textContent = text || "";
  return element;
}

// The first number in a cell, 1,229.27 say; what has none comes last.
function numberIn(text) {
  const found = text.replace(/,(?=\d{3})/g, "").match(/-?\d+(\.\d+)?/);
  return found ? Number(found[0]) : null;
}

function sortable(table) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((cell, place) => {
    cell.setAttribute("aria-sort", "none");
    cell.tabIndex = 0;
    const sort = () => {
      const down = cell.getAttribute("aria-sort") === "ascending", numeric = cell.classList.contains("n");
      const key = (row) => (numeric ? numberIn(row.cells[place].textContent) : row.cells[place].textContent);
      const order = (one, other) => {
        const [a, b] = [key(one), key(other)];
        if (a === null || b === null) return (a === null) - (b === null);
        return (down ? -1 : 1) * (numeric ? a - b : a.localeCompare(b));
      };
      [...body.rows].sort(order).forEach((row) => body.append(row));
      [...cell.parentNode.cells].forEach((other) => other.setAttribute("aria-sort", "none"));
      cell.setAttribute("aria-sort", down ? "descending" : "ascending");
    };
    cell.addEventListener("click", sort);
    cell.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}

function csvOf(table) {
  const quoted = (cell) => `"${cell.textContent.trim().replaceAll('"', '""')}"`;
  return [...table.rows].map((row) => [...row.cells].map(quoted).join(",")).join("\r\n") + "\r\n";
}

function downloadable(table) {
  const button = made("button", { class: "csv", type: "button" }, "CSV");
  button.addEventListener("click", () => {
    const address = URL.createObjectURL(new Blob([csvOf(table)], { type: "text/csv" }));
    const link = made("a", { href: address, download: `${table.id || "table"}.csv` });
    link.click();
    URL.revokeObjectURL(address);
  });
  table.parentNode.after(button);
}

// Where a pointer stands in a figure, the nearest place of each line in that panel.
function pointable(sheet) {
  const panels = JSON.parse(sheet.dataset.curves);
  const clear = () => sheet.querySelectorAll(".tip, .rule").forEach((old) => old.remove());
  const short = (value) => String(+value.toPrecision(4));
  sheet.addEventListener("pointerleave", clear);
  sheet.addEventListener("pointermove", (event) => {
    clear();
    const box = sheet.getBoundingClientRect(), x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
    const panel = panels.find(({ box: [left, top, right, bottom] }) => x >= left && x <= right && y >= top && y <= bottom);
    if (!panel) return;
    const scale = panel.log ? Math.log : (value) => value, [low, high] = panel.x.map(scale), [left, top, right, bottom] = panel.box;
    const share = (value) => left + ((scale(value) - low) / (high - low)) * (right - left);
    const nearest = (line) => line.points.reduce((best, point) => (Math.abs(share(point[0]) - x) < Math.abs(share(best[0]) - x) ? point : best));
    const lines = panel.lines.filter((line) => line.points.length).map((line) => [line, nearest(line)]);
    if (!lines.length) return;
    const rule = made("div", { class: "rule" }), tip = made("div", { class: "tip" });
    Object.assign(rule.style, { left: `${100 * x}%`, top: `${100 * top}%`, height: `${100 * (bottom - top)}%` });
    tip.append(made("div", {}, panel.of));
    for (const [line, [at, value]] of lines) {
      const row = made("div", {}, `${line.name}: ${short(value)} at ${short(at)}`);
      row.style.color = line.colour;
      tip.append(row);
    }
    sheet.append(rule, tip);
    const wide = tip.offsetWidth, room = box.width - x * box.width - 12;
    tip.style.left = `${room > wide ? x * box.width + 12 : Math.max(0, x * box.width - wide - 12)}px`;
    tip.style.top = `${100 * top}%`;
  });
}
