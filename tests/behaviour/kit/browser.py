"""A real browser for tests of the inspector: Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from weakref import WeakKeyDictionary, WeakSet

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import ConsoleMessage, Page, Request, async_playwright

WIDE, NARROW = 1440, 390
"""Widths in pixels at which every page must be legible."""
IMAGES = Path(__file__).parents[3] / "docs" / "images"


def find_chromium() -> str | None:
    """Return the path of the system's Chromium, or None if there is none."""
    named = os.environ.get("HOLDFAST_TEST_CHROMIUM")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


_CHECKED: WeakSet[Page] = WeakSet()
"""Pages in which axe runs. It writes to the console and adds styles that the pages' policy forbids."""
_STYLES: WeakKeyDictionary[Page, list[str]] = WeakKeyDictionary()
"""Styles of texts whose contrast was checked in a window."""
needs_chromium = pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed")


@asynccontextmanager
async def browse(
    url: str,
    *,
    width: int = WIDE,
    height: int = 900,
    dark: bool = False,
    script: bool = True,
    statuses: tuple[int, ...] = (),
) -> AsyncIterator[Page]:
    """Open a browser window in the block. Afterwards, check that no page reported an error or loaded anything from another host.

    Args:
        url: address of the server. Paths in `goto` are relative to it.
        width: width of the window in pixels.
        height: height of the window in pixels.
        dark: True: the user prefers dark colours.
        script: False: scripts are disabled.
        statuses: error statuses that the test expects. The browser reports them as console errors.
    """
    problems: list[str] = []

    def note_console(message: ConsoleMessage) -> None:
        if message.page in _CHECKED:
            return
        expected = any(f"status of {status}" in message.text for status in statuses)
        if message.type in ("error", "warning") and not expected:
            problems.append(f"{message.type}: {message.text}")

    def note_request(request: Request) -> None:
        if not request.url.startswith((f"{url}/", "blob:")):
            problems.append(f"request to another host: {request.url}")

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium())
        context = await browser.new_context(
            base_url=url,
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            java_script_enabled=script,
            reduced_motion="reduce",
        )
        page = await context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", note_console)
        page.on("pageerror", lambda error: problems.append(f"exception: {error}"))
        page.on("request", note_request)
        yield page
        await browser.close()
    assert problems == [], problems


async def check_page(page: Page, *, structure: bool = True) -> None:
    """Check that a page is accessible by axe's rules, and that nothing is wider than the window.

    The contrast of a text depends only on its style, so it is checked once per style for all pages of a window.

    Args:
        page: the page.
        structure: False: check only the contrast, because another window checks the same page by all rules.
    """
    styles = _STYLES.setdefault(page, [])
    styles += (fresh := await page.evaluate(_MARK_STYLES, styles))
    if structure or fresh:
        _CHECKED.add(page)
        await page.evaluate(Axe().axe_script)
        found = await page.evaluate(_RUN_AXE, structure)
        _CHECKED.discard(page)
        assert found == [], found
    overflow = await page.evaluate("document.scrollingElement.scrollWidth - innerWidth")
    assert overflow <= 0, f"the page is {overflow} pixels wider than the window"


_RUN_AXE = """async (structure) => {
  axe.configure({ rules: [{ id: "color-contrast", selector: "[data-fresh]" }] });
  const only = structure ? {} : { runOnly: ["color-contrast"] };
  const { violations } = await axe.run({ resultTypes: ["violations"], preload: false, ...only });
  const serious = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
  return serious.flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html.slice(0, 200)}`));
}"""
_MARK_STYLES = """(known) => {
  const seen = new Set(known), fresh = [];
  for (const one of document.querySelectorAll("body *")) {
    const hasText = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!hasText && !one.matches("input, select, textarea") || !one.checkVisibility()) continue;
    const { color, fontSize, fontWeight } = getComputedStyle(one);
    let key = `${color} ${fontSize} ${fontWeight}`;
    for (let at = one; at; at = at.parentElement) key += ` ${getComputedStyle(at).backgroundColor} ${getComputedStyle(at).opacity}`;
    key = key.replaceAll(" rgba(0, 0, 0, 0) 1", "");
    if (!seen.has(key)) fresh.push(key), seen.add(key), one.dataset.fresh = "";
  }
  return fresh;
}"""
"""Script that marks one text of each style that is not in a list, and returns these styles: colour, font, and what is behind the text."""


async def check_keyboard(page: Page) -> None:
    """Check that the Tab key reaches every control of a page, and that each shows that it has the focus."""
    count = await page.evaluate(_WATCH_FOCUS)
    for _ in range(3 * count + 20):  # a field for a date takes several steps
        await page.keyboard.press("Tab")
        if not await page.evaluate("window.unreached.size"):
            break
    unreached = await page.evaluate("[...window.unreached].map((one) => one.outerHTML.slice(0, 200))")
    assert unreached == [], unreached
    assert (unmarked := await page.evaluate("window.unmarked")) == [], unmarked


_WATCH_FOCUS = """() => {
  const selector = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']";
  const controls = [...document.querySelectorAll(selector)];
  window.unreached = new Set(controls.filter((one) => one.checkVisibility() && !one.disabled && one.tabIndex >= 0));
  window.unmarked = [];
  addEventListener("focusin", ({ target }) => {
    window.unreached.delete(target);
    if (target.matches(selector) && getComputedStyle(target).outlineStyle === "none") window.unmarked.push(target.outerHTML.slice(0, 200));
  });
  window.unreached.delete(document.activeElement);
  return window.unreached.size;
}"""


async def save_screenshot(page: Page, name: str, *, whole: bool = False) -> None:
    """Write a screenshot for the documentation to docs/images, if HOLDFAST_TEST_SCREENSHOTS is set.

    Args:
        page: the page.
        name: name of the file, without its ending.
        whole: True: the whole page; False: the part in the window.
    """
    if os.environ.get("HOLDFAST_TEST_SCREENSHOTS"):
        IMAGES.mkdir(exist_ok=True)
        await page.screenshot(path=IMAGES / f"{name}.png", full_page=whole)
