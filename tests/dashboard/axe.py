"""Accessibility by axe-core, which the package axe-playwright-python carries: every rule of WCAG A and AA and of good
practice, also those that axe leaves off unless asked."""

from __future__ import annotations

from collections.abc import Sequence

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

WIDTHS = (1280, 768, 390)
"""Of windows, in CSS pixels: a desk, a tablet, a phone."""
SCHEMES = ("light", "dark")
EVERY_LOOK = tuple((width, scheme) for width in WIDTHS for scheme in SCHEMES)
FEW_LOOKS = ((WIDTHS[0], "light"), (WIDTHS[-1], "dark"))
"""The widest and the narrowest, and each scheme."""
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


def violations_by_look(page: Page, looks: Sequence[tuple[int, str]] = EVERY_LOOK) -> dict[str, list[str]]:
    """Of the open page in each width and scheme, `390 dark` -> lines; it is loaded once and then only made to look
    otherwise. All rows of long tables count in the widest window if it is given every look."""
    found: dict[str, list[str]] = {}
    seen: set[int] = set()
    for width, scheme in looks:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        all_rows = width == WIDTHS[0] and looks == EVERY_LOOK
        found[f"{width} {scheme}"] = violations(page, of_shape=width not in seen, of_all_rows=all_rows)
        seen.add(width)
    return found
