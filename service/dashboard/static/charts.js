// Charts that people can zoom and point at: each picture with `data-chart` is drawn again by uPlot, from the page's own
// JSON tables. What the attribute holds is said in `charts/interactive.py`. When anything fails the picture stays.
"use strict";

(() => {
  if (typeof uPlot !== "function") return;

  const REACH_PX = 28; // how near a pointer must be to a dot
  const ZOOM = 0.6;
  const STEP_SHARE = 0.02; // of the width, for an arrow key with Shift
  const SMOOTHEST = 8; // the widest mean goes over an 8th of the line on each side
  const charts = new Set();
  const tables = new Map(); // address -> the last table, so that a live page's charts do not blink
  const kept = new Map(); // chart's id -> what its reader chose

  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const shown = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(3).replace(/^-/, "−");
    return Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 }).replace(/^-/, "−");
  };

  const make = (tag, fields = {}, ...children) => {
    const found = Object.assign(document.createElement(tag), fields);
    found.append(...children);
    return found;
  };

  // The mean of the neighbours within `reach`, as the server's smoothed line is.
  const smoothed = (values, reach) =>
    values.map((value, index) => {
      if (value === null) return null;
      const near = values.slice(Math.max(0, index - reach), index + reach + 1).filter((one) => one !== null);
      return near.reduce((sum, one) => sum + one, 0) / near.length;
    });

  const fetchTable = async (address) => {
    const answer = await fetch(address, { credentials: "same-origin", cache: "no-store" });
    if (!answer.ok) throw new Error(`${address}: ${answer.status}`);
    const table = await answer.json();
    tables.set(address, table);
    return table;
  };

  // [[x, y, name], ...] of one line, x rising.
  const pointsOf = (spec, line) => {
    if (line.points) return line.points.map(([x, y], at) => [x, y, line.labels?.[at] ?? ""]).sort((a, b) => a[0] - b[0]);
    const table = tables.get(line.source || spec.source);
    const x = line.x || spec.x;
    return table.rows
      .filter((row) => row[x] !== null && (!line.only || row[line.only[0]] === line.only[1]))
      .map((row) => [
        (row[x] + (spec.x_shift ?? 0)) * (spec.x_factor ?? 1),
        row[line.column] === null ? null : row[line.column] * (line.factor ?? 1),
        line.names ? row[line.names] : "",
      ])
      .filter(([at, y]) => (!spec.is_log?.[0] || at > 0) && (!spec.is_log?.[1] || y > 0))
      .sort((a, b) => a[0] - b[0]);
  };

  // Columns that share x: a place of x is there once, unless a line has several values at it.
  const aligned = (lines) => {
    const columns = [];
    lines.forEach((points, index) => {
      for (const [at, y, name] of points) columns.push({ at, index, y, name });
    });
    columns.sort((a, b) => a.at - b.at);
    const data = [[], ...lines.map(() => [])];
    const names = lines.map(() => []);
    let taken = new Set();
    for (const { at, index, y, name } of columns) {
      const last = data[0].length - 1;
      if (last < 0 || data[0][last] !== at || taken.has(index)) {
        data[0].push(at);
        for (const values of data.slice(1)) values.push(null);
        taken = new Set();
      }
      taken.add(index);
      data[index + 1][data[0].length - 1] = y;
      names[index][data[0].length - 1] = name;
    }
    return { data, names };
  };

  class Chart {
    constructor(frame) {
      this.frame = frame;
      this.spec = JSON.parse(frame.dataset.chart);
      const figure = frame.closest("[id]");
      this.id = figure ? figure.id : "";
      this.title = frame.querySelector("svg[aria-label]")?.getAttribute("aria-label") || "chart";
      this.chosen = kept.get(this.id) || { reach: 24, isLog: Boolean(this.spec.is_log?.[1]), scales: null, isWhole: false };
      kept.set(this.id, this.chosen);
      this.sources = [...new Set([this.spec.source, ...this.spec.lines.map((line) => line.source)].filter(Boolean))];
    }

    async start() {
      charts.add(this);
      if (this.sources.length && this.sources.every((address) => tables.has(address))) this.draw();
      await Promise.all(this.sources.map(fetchTable));
      if (this.frame.isConnected) this.draw();
    }

    draw() {
      const { spec } = this;
      const lines = spec.lines.map((line) => ({ ...line, values: pointsOf(spec, line) }));
      const drawn = lines.filter((line) => line.values.length);
      if (!drawn.length) return;
      const smooth = drawn.filter((line) => line.is_smoothed).map((line) => ({ ...line, label: `${line.label}, mean`, isMean: true }));
      for (const line of smooth) {
        const reach = Math.max(1, Math.round(line.values.length / this.chosen.reach));
        const means = smoothed(line.values.map((point) => point[1]), reach);
        line.values = line.values.map(([at, , name], index) => [at, means[index], name]);
      }
      this.lines = [...drawn, ...smooth];
      const { data, names } = aligned(this.lines.map((line) => line.values));
      this.names = names;
      if (!this.box) this.build();
      this.plot?.destroy();
      this.plot = new uPlot(this.options(data), data, this.box);
      const canvas = this.box.querySelector("canvas");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", this.title);
      this.frame.classList.add("is-live");
      this.say(data[0][0], `${this.spec.x_title} ${shown(data[0][0])}`);
      this.restore();
    }

    build() {
      this.box = make("div", { className: "live-chart", tabIndex: 0 });
      this.box.setAttribute("role", "slider"); // of x: what is there is its value
      this.box.setAttribute("aria-label", `${this.title}. Arrow keys move, plus and minus zoom, 0 shows all.`);
      this.box.addEventListener("keydown", (event) => this.key(event));
      this.frame.append(...(this.spec.has_tools === false ? [] : [this.tools()]), this.box);
      this.watch = new ResizeObserver(() => this.plot && this.plot.setSize(this.size()));
      this.watch.observe(this.frame);
    }

    tools() {
      const button = (label, act) => {
        const found = make("button", { type: "button", className: "button small-button", textContent: label });
        found.addEventListener("click", act);
        return found;
      };
      const bar = make("div", { className: "chart-tools" },
        button("Zoom in", () => this.zoom(ZOOM)), button("Zoom out", () => this.zoom(1 / ZOOM)), button("Show all", () => this.all()));
      if (this.spec.lines.some((line) => line.is_smoothed)) {
        const range = make("input", { type: "range", min: "0", max: "100", value: String(this.position()) });
        range.addEventListener("input", () => {
          this.chosen.reach = SMOOTHEST * 50 ** ((100 - Number(range.value)) / 100);
          this.draw();
        });
        bar.append(make("label", {}, "Smoothing ", range));
      }
      if (this.spec.can_be_log) {
        const box = make("input", { type: "checkbox", checked: this.chosen.isLog });
        box.addEventListener("change", () => {
          this.chosen.isLog = box.checked;
          this.chosen.scales = null;
          this.draw();
        });
        bar.append(make("label", {}, box, " Log scale"));
      }
      return bar;
    }

    position() {
      return Math.round(100 - (100 * Math.log(this.chosen.reach / SMOOTHEST)) / Math.log(50));
    }

    size() {
      const style = getComputedStyle(this.frame);
      const inner = this.frame.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
      return { width: Math.max(inner, 160), height: this.spec.height ?? 260 };
    }

    options(data) {
      const { spec } = this;
      const isDotted = this.lines.some((line) => line.kind === "dots");
      const font = `11px ${ink("sans")}`;
      const axis = (label, more) => ({
        label, font, labelFont: `600 ${font}`, labelSize: 18, stroke: ink("ink-2"),
        grid: { stroke: ink("line"), width: 1 }, ticks: { stroke: ink("line-strong"), width: 1, size: 4 },
        values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : shown(tick))), ...more,
      });
      const isLog = [Boolean(spec.is_log?.[0]), this.chosen.isLog && data.slice(1).every((ys) => ys.every((y) => y === null || y > 0))];
      return {
        ...this.size(),
        scales: {
          // A logarithmic axis must end at a round number, to which the library's own range goes.
          x: { time: false, distr: isLog[0] ? 3 : 1, ...(isLog[0] ? {} : { range: (u, low, high) => this.range(u.data[0], low, high) }) },
          y: { distr: isLog[1] ? 3 : 1, ...(spec.range_y && !isLog[1] ? { range: (u, low, high) => this.height(u, low, high) } : {}) },
        },
        axes: [axis(spec.x_title, { size: 32 }), axis(spec.y_title, { size: 56 })],
        series: [{ label: spec.x_title, value: (u, value) => shown(value) }, ...this.lines.map((line, index) => this.series(line, index))],
        bands: spec.band ? [{ series: [spec.band[0] + 1, spec.band[1] + 1], fill: `${ink("accent")}33` }] : undefined,
        legend: { live: true },
        cursor: {
          ...(spec.sync ? { sync: { key: spec.sync, setSeries: false } } : {}),
          drag: { x: true, y: isDotted, uni: isDotted ? 30 : undefined, dist: 5 },
          ...(isDotted ? { dataIdx: (u, index, closest) => this.nearest(u, index, closest) } : {}),
        },
        hooks: { draw: [(u) => this.marks(u)], setScale: [(u, key) => this.remember(u, key)] },
      };
    }

    // Before anybody zooms: where the chart says, if it says it.
    range(xs, low, high) {
      const isWhole = low <= xs[0] && high >= xs[xs.length - 1];
      if (this.spec.range_x && isWhole) return this.spec.range_x;
      return [low, low === high ? low + 1 : high];
    }

    // Up to where the server's picture goes, until somebody zooms or asks for all.
    height(u, low, high) {
      const [first, last] = this.spec.range_x ?? [u.data[0][0], u.data[0][u.data[0].length - 1]];
      const { min, max } = u.scales.x;
      const isZoomed = (min ?? first) > first || (max ?? last) < last;
      return isZoomed || this.chosen.isWhole ? uPlot.rangeNum(low, high, 0.1, true) : this.spec.range_y;
    }

    series(line, index) {
      const color = ink(line.ink);
      const isFaint = line.is_smoothed && !line.isMean;
      const hasOthers = this.lines.some((other) => other.source !== line.source || other.points);
      return {
        label: line.label,
        stroke: isFaint ? `${color}8c` : color,
        width: line.kind === "dots" ? 0 : isFaint ? 1 : 2,
        dash: line.is_dashed ? [6, 4] : undefined,
        spanGaps: Boolean(line.points) || (hasOthers && (line.source || "") !== ""),
        paths: line.kind === "dots" ? () => null : undefined,
        points: line.kind === "dots" ? { show: true, size: 7, fill: color, stroke: color } : { show: line.values.length === 1 },
        value: (u, value, series, at) => {
          const name = at === null || at === undefined ? "" : this.names[index][at];
          return value === null || value === undefined ? "–" : `${name ? `${name}: ` : ""}${shown(value)}`;
        },
      };
    }

    // Of dots: the one that the pointer is nearest to, in both directions.
    nearest(u, index, closest) {
      if (index === 0 || this.lines[index - 1].kind !== "dots") return closest;
      const { left, top } = u.cursor;
      let [best, found] = [REACH_PX ** 2, null];
      u.data[index].forEach((y, at) => {
        if (y === null) return;
        const away = (u.valToPos(u.data[0][at], "x") - left) ** 2 + (u.valToPos(y, "y") - top) ** 2;
        if (away < best) [best, found] = [away, at];
      });
      return found;
    }

    marks(u) {
      const { ctx } = u;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = ink("ink");
      ctx.font = `${11 * devicePixelRatio}px ${ink("sans")}`;
      ctx.setLineDash([5, 4]);
      (this.spec.marks ?? []).forEach(([at, label], row) => {
        const x = u.valToPos(at, "x", true);
        if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) return;
        ctx.beginPath();
        ctx.moveTo(x, u.bbox.top);
        ctx.lineTo(x, u.bbox.top + u.bbox.height);
        ctx.stroke();
        const isBeforeAnother = this.spec.marks.some(([other]) => other > at && u.valToPos(other, "x", true) - x < 160 * devicePixelRatio);
        ctx.textAlign = isBeforeAnother || x > u.bbox.left + u.bbox.width / 2 ? "right" : "left";
        ctx.fillText(label, x + (ctx.textAlign === "right" ? -5 : 5), u.bbox.top + (14 + 14 * row) * devicePixelRatio);
      });
      ctx.setLineDash([]);
      this.lines.forEach((line, index) => line.labels && this.nameDots(u, line, index));
      ctx.restore();
    }

    nameDots(u, line, index) {
      u.ctx.fillStyle = ink("ink");
      u.ctx.textAlign = "left";
      u.data[index + 1].forEach((y, at) => {
        const x = u.data[0][at];
        if (y === null || x < u.scales.x.min || x > u.scales.x.max || y < u.scales.y.min || y > u.scales.y.max) return;
        u.ctx.fillText(this.names[index][at], u.valToPos(x, "x", true) + 8 * devicePixelRatio, u.valToPos(y, "y", true) + 4 * devicePixelRatio);
      });
    }

    remember(u, key) {
      if (key !== "x" || !this.plot) return;
      const [low, high] = [u.scales.x.min, u.scales.x.max];
      const [first, last] = this.ends();
      this.chosen.scales = low > first || high < last ? [low, high] : null;
      this.box.dataset.from = low;
      this.box.dataset.to = high;
    }

    ends() {
      const xs = this.plot.data[0];
      return this.spec.range_x ?? [xs[0], xs[xs.length - 1]];
    }

    restore() {
      if (this.chosen.scales) this.show(...this.chosen.scales);
      else this.remember(this.plot, "x");
    }

    show(low, high) {
      this.plot.setScale("x", { min: low, max: high });
    }

    all() {
      this.chosen.scales = null;
      this.chosen.isWhole = true;
      this.plot.setData(this.plot.data, true);
      for (const other of charts) if (this.spec.sync && other !== this && other.spec.sync === this.spec.sync && other.chosen.scales) other.all();
    }

    zoom(factor) {
      const { x } = this.plot.scales;
      const [first, last] = this.ends();
      const isLog = x.distr === 3;
      const [to, back] = isLog ? [Math.log10, (value) => 10 ** value] : [(value) => value, (value) => value];
      const at = this.plot.cursor.left >= 0 ? this.plot.posToVal(this.plot.cursor.left, "x") : back((to(x.min) + to(x.max)) / 2);
      const [low, high] = [x.min, x.max].map((end) => back(to(at) + (to(end) - to(at)) * factor));
      if (low <= first && high >= last) return this.all();
      const others = [...charts].filter((other) => other.plot && this.spec.sync && other.spec.sync === this.spec.sync);
      for (const one of others.length ? others : [this]) one.show(Math.max(low, first), Math.min(high, last));
      return undefined;
    }

    key(event) {
      if (event.target !== this.box) return;
      const acts = { "+": () => this.zoom(ZOOM), "=": () => this.zoom(ZOOM), "-": () => this.zoom(1 / ZOOM), 0: () => this.all(),
        ArrowLeft: () => this.move(-1, event.shiftKey), ArrowRight: () => this.move(1, event.shiftKey) };
      if (!acts[event.key]) return;
      event.preventDefault();
      acts[event.key]();
    }

    move(direction, isFar) {
      const { data, scales } = this.plot;
      const seen = data[0].flatMap((at, index) => (at >= scales.x.min && at <= scales.x.max ? [index] : []));
      if (!seen.length) return;
      const now = seen.indexOf(this.at ?? -1);
      const by = isFar ? Math.max(1, Math.round(seen.length * STEP_SHARE)) : 1;
      const place = now < 0 ? (direction > 0 ? 0 : seen.length - 1) : Math.min(Math.max(now + direction * by, 0), seen.length - 1);
      this.at = seen[place];
      const index = this.lines.findIndex((_, line) => data[line + 1][this.at] !== null);
      const top = index < 0 ? 0 : this.plot.valToPos(data[index + 1][this.at], "y");
      this.plot.setCursor({ left: this.plot.valToPos(data[0][this.at], "x"), top }, true);
      const told = this.lines.map((line, number) => [line.label, data[number + 1][this.at], this.names[number][this.at]]);
      this.say(data[0][this.at], `${this.spec.x_title} ${shown(data[0][this.at])}: ${told.filter(([, y]) => y !== null)
        .map(([label, y, name]) => `${name || label} ${shown(y)}`).join(", ")}`);
    }

    say(x, text) {
      const xs = this.plot.data[0];
      for (const [name, value] of Object.entries({ valuemin: xs[0], valuemax: xs[xs.length - 1], valuenow: x, valuetext: text })) {
        this.box.setAttribute(`aria-${name}`, value);
      }
    }

    stop() {
      charts.delete(this);
      this.watch?.disconnect();
      this.plot?.destroy();
    }
  }

  const enhance = (root) => {
    for (const frame of root.querySelectorAll("[data-chart]:not([data-live-chart])")) {
      frame.dataset.liveChart = "";
      const chart = new Chart(frame);
      chart.start().catch(() => chart.plot || chart.stop());
    }
  };

  new MutationObserver(() => {
    for (const chart of charts) if (!chart.frame.isConnected) chart.stop();
    enhance(document);
  }).observe(document.getElementById("content"), { childList: true, subtree: true });
  const redraw = () => charts.forEach((chart) => chart.plot && chart.draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  enhance(document);
})();
