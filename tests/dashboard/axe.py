"""Accessibility by axe-core, which the package axe-playwright-python carries: every rule of WCAG A and AA and of good
practice, also those that axe leaves off unless asked."""

from __future__ import annotations

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

WIDTHS = (1280, 768, 390)
"""Of windows, in CSS pixels: a desk, a tablet, a phone."""
SCHEMES = ("light", "dark")
SHOWN_PLACES = 3
RUN = """async () => {
  const isColour = (rule) => rule.tags.includes("cat.color");
  const isWanted = (rule) => !rule.tags.includes("deprecated") && !rule.tags.includes("wcag2aaa");
  const rules = axe.getRules().filter(isWanted);
  const run = async (context, ids) => {
    const ruleIds = ids.map((rule) => rule.ruleId);
    const options = { runOnly: { type: "rule", values: ruleIds }, resultTypes: ["violations"] };
    const { violations } = await axe.run(context, options);
    return violations.map((one) => [one.id, one.help, one.nodes.map((node) => node.target.join(" "))]);
  };
  // The hundredth row of a table has the colours and widths of the first ones; looking at all takes five times as long.
  const few = { exclude: ["tr:nth-child(n + 20)"] };
  const shapes = SHAPES ? await run(ROWS ? document : few, rules.filter((rule) => !isColour(rule))) : [];
  return [...shapes, ...(await run(few, rules.filter(isColour)))];
}"""


def violations(page: Page, *, of_shape: bool = True, of_all_rows: bool = True) -> list[str]:
    """One line for each rule that the open page breaks: the rule, what it demands, how often, and where first.

    With `of_shape` unset, only rules of colours: no other depends on the colour scheme. With `of_all_rows` unset, long
    tables count by their first rows.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    asked = RUN.replace("SHAPES", str(of_shape).lower()).replace("ROWS", str(of_all_rows).lower())
    found = page.evaluate(asked)
    return [f"{rule}: {demand} ({len(places)}: {', '.join(places[:SHOWN_PLACES])})" for rule, demand, places in found]


def violations_by_look(page: Page) -> dict[str, list[str]]:
    """Of the open page in every width and scheme, `390 dark` -> lines; it is loaded once and then only made to look
    otherwise."""
    found: dict[str, list[str]] = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            found[f"{width} {scheme}"] = violations(page, of_shape=scheme == SCHEMES[0], of_all_rows=width == WIDTHS[0])
    return found
