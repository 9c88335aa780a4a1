// Tables of a report: a click on a head sorts, a field above filters. Without scripts the page has neither.
(function () {
  "use strict";
  const FEWEST_SORTED = 3, FEWEST_FILTERED = 8;
  const PREFIXES = { n: 1e-9, "µ": 1e-6, m: 1e-3, k: 1e3, K: 1e3, M: 1e6, G: 1e9, T: 1e12 };
  const UNIT = /^([nµmkKMGT]?)(i?)(B\/s|B|s|FLOP\/s|FLOP|Hz|J)$/;

  // The number that a text begins with, in the base unit: "3.21 ms", "1.5 MiB", "12 %", "1/256", "2.1×"; null for others.
  function number(text) {
    const tile = /^(\d+)\s*×\s*(\d+)$/.exec(text);
    if (tile) return Number(tile[1]) * 1e6 + Number(tile[2]);
    const found = /^([-−+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?:\/(\d+))?\s*(\S*)/.exec(text);
    if (!found) return text === "none" ? 0 : null;
    let value = Number(found[1].replace("−", "-")) / Number(found[2] || 1);
    const unit = UNIT.exec(found[3]);
    if (unit && unit[1]) value *= unit[2] ? 1024 ** (" KMGT".indexOf(unit[1])) : PREFIXES[unit[1]];
    return value;
  }

  // The main text of a cell, without the interval beside it.
  function main(cell) {
    const copy = cell.cloneNode(true);
    for (const more of copy.querySelectorAll("small")) more.remove();
    return copy.textContent.replace(/\s+/g, " ").trim();
  }

  // The value of a row in a column; null where it has none, as behind the reason of a failed row.
  function value(row, column, numeric) {
    const cell = row.cells[column];
    if (!cell || cell.colSpan > 1) return null;
    const text = main(cell);
    if (text === "" || text.startsWith("–") && !/\w/.test(text)) return null;
    return numeric ? number(text) : text;
  }

  function compare(a, b) {
    return typeof a === "number" && typeof b === "number" ? a - b
      : String(a).localeCompare(String(b), "en", { numeric: true });
  }

  function sorted(rows, column, numeric, direction) {
    const keyed = rows.map((row, place) => ({ row, place, key: value(row, column, numeric) }));
    keyed.sort(function (a, b) {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.place - b.place;
      return direction * compare(a.key, b.key) || a.place - b.place;
    });
    return keyed.map((each) => each.row);
  }

  // First click: upwards, second: downwards, third: the order of the file.
  function sortable(table) {
    const body = table.tBodies[0], original = Array.from(body.rows);
    const heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach(function (head, column) {
      if (!head.textContent) return;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.title = "sort by this column";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", function () {
        const next = { ascending: "descending", descending: "" }[head.getAttribute("aria-sort")] ?? "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        if (next) head.setAttribute("aria-sort", next);
        table.classList.toggle("sorted", next !== "");
        const numeric = head.classList.contains("n");
        body.append(...(next ? sorted(original, column, numeric, next === "ascending" ? 1 : -1) : original));
      });
    });
  }

  // A word occurs in a row, or is all of a column's cell: dtype=f32. After a minus it must not.
  function matches(cells, words) {
    return words.every(function (word) {
      const not = word.length > 1 && word[0] === "-", text = not ? word.slice(1) : word;
      const found = cells.some((cell) => cell.all.includes(text) || cell.named === text);
      return found !== not;
    });
  }

  // The text of a cell, and that of its column and itself without spaces: n=2048.
  function searched(heads, cell, column) {
    const named = heads[column] + "=" + main(cell);
    return { all: cell.textContent.toLowerCase(), named: named.toLowerCase().replace(/\s+/g, "") };
  }

  function filterable(scroll, table) {
    const rows = Array.from(table.tBodies[0].rows);
    const heads = Array.from(table.tHead.rows[0].cells, (head) => head.textContent);
    const texts = rows.map((row) => Array.from(row.cells, (cell, column) => searched(heads, cell, column)));
    const tools = document.createElement("div"), field = document.createElement("input");
    const count = document.createElement("output");
    tools.className = "tools";
    field.type = "search";
    field.placeholder = "filter rows, as: flash dtype=f32 -ok";
    field.setAttribute("aria-label", "filter the rows of the table");
    function show() {
      const words = field.value.toLowerCase().split(/\s+/).filter((word) => word !== "");
      let shown = 0;
      rows.forEach(function (row, index) {
        const fits = matches(texts[index], words);
        row.classList.toggle("off", !fits);
        shown += fits;
      });
      count.textContent = words.length ? shown + " of " + rows.length + " rows" : rows.length + " rows";
    }
    field.addEventListener("input", show);
    tools.append(field, count);
    scroll.before(tools);
    show();
  }

  for (const table of document.querySelectorAll(".scroll > table:not(.nested)")) {
    const rows = table.tBodies[0].rows.length;
    if (rows >= FEWEST_SORTED) sortable(table);
    if (rows >= FEWEST_FILTERED) filterable(table.parentElement, table);
  }
})();
