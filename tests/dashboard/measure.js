// Run inside a page by test_browser.py: overflow, contrast (WCAG 2.2: 1.4.3, 1.4.11) and target sizes (2.5.8), as plain data.
() => {
  const parse = (text) => {
    const parts = text.match(/^rgba?\(([^)]+)\)$/);
    if (parts) {
      const [r, g, b, a = 1] = parts[1].split(/[ ,/]+/).filter(Boolean).map(Number);
      return { r, g, b, a };
    }
    const mixed = text.match(/^color\(srgb ([^)]+)\)$/);
    if (!mixed) return null;
    const [r, g, b, a = 1] = mixed[1].split(/[ /]+/).filter(Boolean).map(Number);
    return { r: r * 255, g: g * 255, b: b * 255, a };
  };
  const over = (top, below) => ({
    r: top.r * top.a + below.r * (1 - top.a),
    g: top.g * top.a + below.g * (1 - top.a),
    b: top.b * top.a + below.b * (1 - top.a),
    a: 1,
  });
  const luminance = ({ r, g, b }) => {
    const [x, y, z] = [r, g, b].map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const contrast = (one, other) => {
    const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const background = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color && color.a > 0) layers.push(color);
      if (color && color.a === 1) break;
    }
    return layers.reverse().reduce((below, top) => over(top, below), { r: 255, g: 255, b: 255, a: 1 });
  };
  // Text in a chart lies on the last filled shape drawn before it that covers its middle.
  const behind = (text) => {
    const box = text.getBoundingClientRect();
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    let found = background(text);
    for (const shape of text.ownerSVGElement.querySelectorAll("rect, circle")) {
      if (!(shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING)) continue;
      const style = getComputedStyle(shape);
      const fill = parse(style.fill);
      const area = shape.getBoundingClientRect();
      const covers = area.left <= x && x <= area.right && area.top <= y && y <= area.bottom;
      if (fill && fill.a > 0 && covers) found = over({ ...fill, a: fill.a * Number(style.fillOpacity) }, found);
    }
    return found;
  };
  const shown = (element) => {
    const box = element.getBoundingClientRect();
    return box.width > 1 && box.height > 1 && getComputedStyle(element).visibility !== "hidden";
  };
  const failures = [];
  let texts = 0;
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
    if (!own || !shown(element) || element.closest(".visually-hidden, .skip, title, option, script")) continue;
    const isDrawn = element instanceof SVGElement;
    const style = getComputedStyle(element);
    const ink = parse(isDrawn ? style.fill : style.color);
    const ground = isDrawn ? behind(element) : background(element);
    if (!ink) continue;
    texts += 1;
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = contrast(over(ink, ground), ground);
    if (ratio < (large ? 3 : 4.5)) failures.push(`${ratio.toFixed(2)}: ${element.textContent.trim().slice(0, 40)}`);
  }
  const shapes = [];
  for (const shape of document.querySelectorAll("rect[class^='phase-'], .median-line, circle.point, .curve.smooth, .attempt, .key")) {
    if (!shown(shape) && !shape.matches("path, line")) continue;
    const style = getComputedStyle(shape);
    const ground = background(shape.parentElement);
    const colors = shape instanceof SVGElement ? [style.fill, style.stroke] : [style.backgroundColor];
    const inks = colors.map(parse).filter((color) => color && color.a > 0);
    const best = Math.max(...inks.map((ink) => contrast(over(ink, ground), ground)));
    if (best < 3 && !/box-/.test(shape.className.baseVal ?? shape.className)) shapes.push(`${best.toFixed(2)}: ${shape.className.baseVal ?? shape.className}`);
  }
  const small = [...document.querySelectorAll("button, select, input, nav a, .button")]
    .filter(shown)
    .map((element) => [element.getBoundingClientRect(), element.outerHTML.slice(0, 60)])
    .filter(([box]) => box.height < 16 || box.width < 16)
    .map(([, text]) => text);
  const spilled = [...document.querySelectorAll(".figures > div, .facts > div")]
    .filter((element) => shown(element) && element.scrollWidth > element.clientWidth)
    .map((element) => element.textContent.trim().slice(0, 60));
  return {
    texts,
    spilled,
    failures: [...new Set(failures)],
    shapes: [...new Set(shapes)],
    small,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    unnamed: [...document.querySelectorAll("a, button, select, input:not([type=hidden])")]
      .filter((e) => !(e.textContent.trim() || e.getAttribute("aria-label") || e.labels?.length))
      .map((e) => e.outerHTML.slice(0, 80)),
  };
}
