// Live progress. The server renders every state; this asks it again when the farm says that something happened,
// and swaps in the parts of the page that are marked `data-live`. Without it the page reads the same, on reload.
"use strict";

(() => {
  const QUIET_MS = 1000; // at most one refresh a second
  const POLL_MS = 5000; // when the event stream is not to be had

  const main = document.getElementById("content");
  const address = main && main.dataset.events;
  if (!address) return;

  let timer = 0;
  let stream = null;
  let busy = false;

  const schedule = (delay) => {
    if (!timer) timer = window.setTimeout(refresh, delay);
  };

  const swap = (fresh) => {
    for (const part of document.querySelectorAll("[data-live]")) {
      const replacement = fresh.getElementById(part.id);
      if (!replacement || part.isEqualNode(replacement) || part.contains(document.activeElement)) continue;
      part.replaceWith(document.importNode(replacement, true));
    }
  };

  // All of the page is new, but for a form that its reader has begun to fill in.
  const end = (fresh) => {
    const whole = document.importNode(fresh.getElementById("content"), true);
    for (const form of main.querySelectorAll("form.form")) {
      const isBegun = [...form.elements].some((one) => one.defaultValue !== undefined && one.type !== "hidden" && one.value !== one.defaultValue);
      const place = whole.querySelector(`#${form.id}`);
      if (place && (isBegun || form.contains(document.activeElement))) place.replaceWith(form);
    }
    main.replaceChildren(...whole.childNodes);
    document.title = fresh.title;
  };

  const announce = (fresh) => {
    const said = document.getElementById("announcement");
    const news = fresh.getElementById("announcement");
    if (said && news && said.textContent !== news.textContent) said.textContent = news.textContent;
  };

  const stop = () => {
    if (stream) stream.close();
    stream = null;
  };

  async function refresh() {
    timer = 0;
    if (busy) return schedule(QUIET_MS);
    busy = true;
    try {
      const answer = await fetch(window.location.href, { credentials: "same-origin", cache: "no-store" });
      if (!answer.ok) return schedule(POLL_MS);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      announce(fresh);
      if (!fresh.getElementById("content")?.dataset.events) {
        stop();
        end(fresh);
        return undefined;
      }
      swap(fresh);
      if (!stream) schedule(POLL_MS);
    } catch {
      schedule(POLL_MS);
    } finally {
      busy = false;
    }
    return undefined;
  }

  const listen = () => {
    stream = new EventSource(address);
    stream.onmessage = () => schedule(QUIET_MS);
    for (const kind of ["state", "progress", "step", "eval", "phase", "log", "checkpoint", "cancel-requested", "end"]) {
      stream.addEventListener(kind, () => schedule(QUIET_MS));
    }
    stream.onerror = () => {
      // The browser reconnects by itself unless the stream was refused or is over.
      if (stream && stream.readyState === EventSource.CLOSED) stream = null;
      schedule(QUIET_MS);
    };
  };

  listen();
  window.addEventListener("pagehide", stop);
})();
