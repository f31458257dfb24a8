// Narrows a page's entries (`[data-words]`) to those that hold every typed word. Without it the field is not shown, and
// the browser's own search finds the same.
"use strict";

(() => {
  const form = document.getElementById("filter");
  const field = document.getElementById("filter-words");
  const count = document.getElementById("filter-count");
  if (!form || !field || !count) return;
  const entries = [...document.querySelectorAll("[data-words]")];
  const groups = [...new Set(entries.map((entry) => entry.parentElement))];

  const narrow = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const entry of entries) {
      entry.hidden = !words.every((word) => entry.dataset.words.includes(word));
      if (!entry.hidden) shown += 1;
    }
    for (const group of groups) group.hidden = ![...group.querySelectorAll("[data-words]")].some((one) => !one.hidden);
    count.textContent = words.length ? `${shown} of ${entries.length}` : "";
  };

  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") target.open = true;
  };

  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  field.addEventListener("input", narrow);
  window.addEventListener("hashchange", open);
  narrow();
  open();
})();
