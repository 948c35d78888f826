// Sizes as text, and elements with text in them. Whatever a reader typed or a file says goes in as text, never as HTML.
export const KIB = 1024;
export const MIB = 1024 * KIB;
export const GIB = 1024 * MIB;

/** Bytes, short: "800 MiB", "1.5 GiB", "512 B". */
export function size(bytes) {
  const unit = bytes >= GIB ? [GIB, "GiB"] : bytes >= MIB ? [MIB, "MiB"] : bytes >= KIB ? [KIB, "KiB"] : [1, "B"];
  return `${(bytes / unit[0]).toLocaleString("en", { maximumFractionDigits: unit[0] === 1 ? 0 : 2 })} ${unit[1]}`;
}

/** Bytes in MiB as the course prints them: three decimals at most, and bytes below 0.1 MiB. */
export function mib(bytes) {
  if (bytes !== 0 && bytes < MIB / 10) return `${bytes.toLocaleString("en")} B`;
  const digits = (bytes * 1000) % MIB === 0 ? 0 : 3;
  return `${(bytes / MIB).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: 3 })} MiB`;
}

/** Bytes so that none is lost: MiB where three decimals say them, else every byte. */
export function exact(bytes) {
  return (bytes * 1000) % MIB === 0 ? mib(bytes) : `${bytes.toLocaleString("en")} B`;
}

/** A new element: its class, and what is in it, texts or other elements. */
export function element(tag, { cls, text, ...attributes } = {}, ...inside) {
  const made = document.createElement(tag);
  if (cls) made.className = cls;
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...inside);
  return made;
}

/** Show a message in its place, or hide the place. */
export function say(id, message) {
  const place = document.getElementById(id);
  place.textContent = message || "";
  place.hidden = !message;
}

/** A table from rows of cells; the first row and the first cell of each row are headings. */
export function fillTable(table, caption, rows) {
  const cell = (value, row, column) => {
    const made = element(row === 0 || column === 0 ? "th" : "td", { text: value });
    if (row === 0) made.scope = "col";
    else if (column === 0) made.scope = "row";
    return made;
  };
  const lines = rows.map((cells, row) => element("tr", {}, ...cells.map((value, column) => cell(value, row, column))));
  table.replaceChildren(
    element("caption", { cls: "hidden", text: caption }),
    element("thead", {}, lines[0]),
    element("tbody", {}, ...lines.slice(1)),
  );
}
