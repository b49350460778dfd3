"""The pages of the demonstration, as the documentation shows them: legible, and saved as images on request."""

from __future__ import annotations

from typing import Final

from playwright.async_api import expect

from tests.behaviour.kit.browser import browse, check_page, needs_chromium, save_screenshot
from tests.edges.inspector_demo import serve_demo

NORWAY: Final = "/inspect/sessions/norway"
SHOTS: Final = {
    "prompt": (f"{NORWAY}/prompt?user_id=ada", "exactly as it was sent"),
    "forgotten": (f"{NORWAY}/forgotten?user_id=ada&q=parking+code", "The prompt has a part of this message."),
    "session": (f"{NORWAY}?user_id=ada", "Strandgata"),
    "state": (f"{NORWAY}/state?user_id=ada", "itinerary.md"),
    "artifacts": (f"{NORWAY}/artifacts/itinerary.md?user_id=ada", "itinerary.md"),
    "memory": ("/inspect/memories?scope=user&owner=ada&q=is+Ada+allergic", "shellfish"),
    "agents": ("/inspect/agents", "concierge"),
    "keys": ("/inspect/keys", "There is no key yet"),
    "retention": ("/inspect/retention", "sessions.max_sessions"),
    "deletions": ("/inspect/deletions", "all data of a user"),
    "playground-chat": ("/inspect/playground?session_id=norway&user_id=ada", "Strandgata"),
}
"""Names of images, their pages, and a text on each."""
AGENTS: Final = "agents: {concierge: {instruction: Plan trips., context: {strategy: digest, budget: 8000}}}"


@needs_chromium
async def test_pages_of_the_demonstration_are_legible() -> None:
    async with serve_demo(AGENTS) as served, browse(served.url, height=1400) as page:
        for name, (path, text) in SHOTS.items():
            await page.goto(path)
            await page.evaluate("document.querySelectorAll('details.toolcall').forEach((one) => (one.open = true))")
            await expect(page.get_by_text(text).first).to_be_visible()
            await check_page(page)
            await save_screenshot(page, f"inspector-{name}")
