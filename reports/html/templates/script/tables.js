// Tables that readers sort by a column, and whose columns they choose.
const units = { ms: 1, s: 1e3, min: 6e4, h: 36e5 };

// What a cell sorts by: its number, a latency in milliseconds; null where it has none.
function valueOf(text) {
  const found = /^[^\d-]*(-?[\d,]*\.?\d+)\s*(ms|s|min|h)?\b/.exec(text.replace("\u2212", "-"));
  return found ? Number(found[1].replace(/,/g, "")) * (units[found[2]] || 1) : null;
}

function sort(table, column) {
  const heads = all("thead th", table), body = table.tBodies[0];
  const rising = heads[column].getAttribute("aria-sort") !== "ascending";
  const rows = Array.from(body.rows).map((row) => ({ row, text: row.cells[column].textContent }));
  const numbers = !heads[column].classList.contains("text");
  rows.sort((a, b) => {
    if (!numbers) return (rising ? 1 : -1) * a.text.localeCompare(b.text, "en", { numeric: true });
    const [one, other] = [valueOf(a.text), valueOf(b.text)];
    if (one === null || other === null) return (one === null) - (other === null); // without a value: last, either way
    return (rising ? 1 : -1) * (one - other);
  });
  body.append(...rows.map(({ row }) => row));
  heads.forEach((head, place) => head.setAttribute("aria-sort", place === column ? (rising ? "ascending" : "descending") : "none"));
}

function columns(table) {
  const heads = all("thead th", table);
  const choice = made("fieldset", {}, made("legend", { textContent: "Columns" }));
  heads.slice(1).forEach((head, place) => {
    const box = made("input", { type: "checkbox", checked: !head.classList.contains("off") });
    box.addEventListener("change", () => {
      Array.from(table.rows).forEach((row) => row.cells[place + 1].classList.toggle("off", !box.checked));
    });
    const unit = head.querySelector("small");
    choice.append(made("label", {}, box, head.dataset.name + (unit ? ` (${unit.textContent})` : "")));
  });
  table.parentElement.before(choice);
}

all("table.sortable").forEach((table) => {
  all("thead th", table).forEach((head, column) => {
    const words = head.firstChild;
    head.dataset.name = words.textContent;
    head.setAttribute("aria-sort", "none");
    const button = made("button", { type: "button", className: "sort", onclick: () => sort(table, column) });
    words.replaceWith(button);
    button.append(words);
  });
  if (table.querySelector("th.off")) columns(table);
});
