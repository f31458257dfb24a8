// Tables that sort and search where they are, and texts that are copied by a button. Without it the same heads and
// forms lead to the same rows, by way of the server.
"use strict";

(() => {
  const ARROWS = { ascending: "M2 11 8 4l6 7", descending: "M2 5l6 7 6-7" };
  const NUMBER = /^[-+]?[\d,]*\.?\d+(?:e[-+]?\d+)?/i;

  const valueOf = (cell) => {
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    const text = cell.textContent.trim().replace(/^−/, "-");
    const found = cell.classList.contains("number") ? text.match(NUMBER) : null;
    if (cell.classList.contains("number")) return found ? Number(found[0].replaceAll(",", "")) : null;
    return text === "–" ? null : text.toLowerCase();
  };

  const arrow = (order) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    for (const [name, value] of [["class", "icon arrow"], ["viewBox", "0 0 16 16"], ["aria-hidden", "true"]]) made.setAttribute(name, value);
    path.setAttribute("d", ARROWS[order]);
    made.append(path);
    return made;
  };

  const sort = (head, table) => {
    const place = [...head.parentElement.children].indexOf(head);
    const isNumber = head.classList.contains("number");
    const was = head.getAttribute("aria-sort");
    const falls = was ? was === "ascending" : isNumber;
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [valueOf(row.cells[place]), row]);
    const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0) * (falls ? -1 : 1);
    rows.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : order(a, b)));
    body.append(...rows.map(([, row]) => row));
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falls ? "descending" : "ascending");
    for (const old of head.parentElement.querySelectorAll(".arrow")) old.remove();
    head.querySelector("a").append(arrow(head.getAttribute("aria-sort")));
    return falls;
  };

  // The address tells the order, as it does when the server sorts: who sends it to somebody sends what they see.
  const tell = (link, falls) => {
    const address = new URL(link.href);
    const name = address.searchParams.get("sort").replace(/^-/, "");
    address.searchParams.set("sort", (falls ? "-" : "") + name);
    window.history.replaceState(null, "", address);
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-live-table] thead th a");
    if (!link || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    tell(link, sort(link.closest("th"), link.closest("table")));
  });

  const find = (box) => {
    const words = box.value.trim().toLowerCase();
    const place = document.getElementById(box.dataset.finds);
    const rows = [...place.querySelectorAll("tbody tr")];
    for (const row of rows) row.hidden = !row.querySelector("th").textContent.toLowerCase().includes(words);
    const count = rows.filter((row) => !row.hidden).length;
    const said = place.querySelector("[data-found]");
    if (said) said.textContent = words ? `${count} of ${rows.length} shown` : "";
  };

  document.addEventListener("input", (event) => {
    if (event.target.matches("[data-finds]")) find(event.target);
  });

  // A hidden row that a chart's bar leads to is shown.
  window.addEventListener("hashchange", () => {
    const row = document.getElementById(decodeURIComponent(window.location.hash.slice(1)));
    if (row?.hidden) row.hidden = false;
  });

  const offerCopies = () => {
    for (const words of document.querySelectorAll(".words:not([data-offered])")) offerCopy(words);
  };

  const offerCopy = (words) => {
    words.dataset.offered = "";
    const button = Object.assign(document.createElement("button"), { type: "button", className: "button small-button", textContent: "Copy" });
    button.setAttribute("aria-label", `Copy: ${words.querySelector("h3").textContent}`);
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(words.querySelector("code").textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(words.querySelector("code"));
        button.textContent = "Selected: copy it by Ctrl+C";
      }
    });
    words.querySelector("h3").after(button);
  };

  // A page that follows by itself is another one once its run has ended.
  new MutationObserver(offerCopies).observe(document.getElementById("content"), { childList: true });
  offerCopies();
})();
