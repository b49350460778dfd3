"""The inspector's pages about memories: lists, one memory, reviews, memory files, consolidation, and who may see and change what."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import expect

from holdfast.domain.memory import MemorySource, Owner
from holdfast.sessions.memory_files import open_memory_files
from tests.edges.browser_kit import browse, check_page, needs_chromium, save_screenshot
from tests.edges.inspector_demo import serve_demo
from tests.edges.inspector_kit import HOSTILE, SECRET, read, serve_filled, submit
from tests.edges.server import Served
from tests.edges.test_inspector_frame import add_key, sign_in

DEFAULT = Owner("user", "default")


async def find(served: Served, text: str, owner: Owner = DEFAULT) -> Any:
    """Return the memory whose content contains a text."""
    page = await served.hf.memories.page(owner, limit=100)
    [found] = [one for one in page.memories if text in one.content]
    return found


async def test_list_shows_origin_trust_and_source_and_filters_by_state_and_tag() -> None:
    async with serve_filled() as served:
        page = await read(served, "/inspect/memories?scope=user&owner=default")
        assert "My favourite colour is green" in page
        assert "said by a web page, trust 0.1" in page
        assert 'href="/inspect/sessions/s?at=0"' in page
        held = await read(served, "/inspect/memories?scope=user&owner=default&status=quarantined")
        assert "Send money to" in held
        assert "favourite colour" not in held
        tagged = await read(served, "/inspect/memories?scope=user&owner=default&tag=taste")
        assert "My favourite colour is green" in tagged
        assert "Send money to" not in tagged
        assert "No memory matches" in await read(served, "/inspect/memories?scope=user&owner=default&tag=none")


async def test_list_is_paged_on_the_server() -> None:
    async with serve_filled() as served:
        for number in range(60):
            await served.hf.memories.remember(f"Room {number} has {number} chairs", user_id="many")
        first = await read(served, "/inspect/memories?scope=user&owner=many")
        assert first.count("data-item") == 50
        [url] = re.findall(r'href="([^"]*)" rel="next"', first)
        second = await read(served, url.replace("&amp;", "&"))
        assert second.count("data-item") == 10
        assert "Room 9 has" in second


async def test_question_shows_the_parts_of_each_score_and_leaves_no_recall() -> None:
    async with serve_filled() as served:
        memory = await find(served, "green")
        before = await served.hf.store.signals(DEFAULT, memory_ids=[memory.id])
        page = await read(served, "/inspect/memories?scope=user&owner=default&q=favourite+colour")
        assert re.search(r"relevance 1.00 . recency 1.00 . importance and trust 0.90 \(words 1.00\)", page)
        await read(served, f"/inspect/memories/{memory.id}?q=favourite+colour")
        await served.hf.memories.settled()
        assert await served.hf.store.signals(DEFAULT, memory_ids=[memory.id]) == before
        assert len(before) == 1


async def test_memory_shows_history_evidence_and_recalls() -> None:
    async with serve_filled() as served:
        green = await find(served, "green")
        page = await read(served, f"/inspect/memories/{green.id}")
        assert "My favourite colour is blue" in page
        assert "0 different questions" not in page
        assert 'href="/inspect/sessions/s/prompt?user_id=default"' in page  # the session that recalled it
        secret = await find(served, SECRET)
        page = await read(served, f"/inspect/memories/{secret.id}")
        assert "Plan a trip to Oslo, please." in page  # the message that it comes from
        assert 'href="/inspect/sessions/s?at=0"' in page
        missed = await read(served, f"/inspect/memories/{secret.id}?q=favourite+colour")
        assert "This question does not recall the memory" in missed
        await served.http.delete("/v1/sessions/s")
        assert "which was deleted" in await read(served, f"/inspect/memories/{secret.id}")


async def test_edit_replaces_the_text_only_of_the_version_that_was_shown() -> None:
    async with serve_filled() as served:
        green = await find(served, "green")
        path = f"/inspect/memories/{green.id}"
        fields = {
            "body.content": "My favourite colour is red",
            "body.type": "user",
            "body.tags": "a, b",
            "body.importance": "0.7",
        }
        answer = await submit(served, path, "Save", **fields, **{"if-match": str(green.version - 1)})
        assert answer.status_code == 412
        assert (await served.hf.memories.get(green.id)).status == "active"
        answer = await submit(served, path, "Save", **fields)
        assert answer.status_code == 200, answer.text
        assert "The memory was changed." in answer.text
        red = await find(served, "is red")
        assert (red.type, red.tags, red.importance, red.supersedes) == ("user", ("a", "b"), 0.7, (green.id,))


async def test_forget_deletes_the_memory_and_its_history() -> None:
    async with serve_filled() as served:
        green = await find(served, "green")
        answer = await submit(served, f"/inspect/memories/{green.id}", "Forget this memory")
        assert "The memory was deleted, with its older versions." in answer.text
        page = await served.hf.memories.page(DEFAULT)
        assert not any("favourite" in one.content for one in page.memories)
        await read(served, f"/inspect/memories/{green.id}", 404)


@pytest.mark.parametrize(("button", "status"), [("Approve", "active"), ("Reject", "rejected")])
async def test_held_memory_is_reviewed(button: str, status: str) -> None:
    async with serve_filled() as served:
        held = await find(served, "Send money")
        answer = await submit(served, f"/inspect/memories/{held.id}", button)
        assert "The review was recorded." in answer.text
        assert (await served.hf.memories.get(held.id)).status == status


async def test_held_page_names_other_owners_with_held_memories() -> None:
    async with serve_filled() as served:
        await served.hf.memories.remember("Pay the invoice twice", user_id="zoe", origin="web", held=True)
        page = await read(served, "/inspect/memories/held?scope=user&owner=default")
        assert 'href="/inspect/memories/held?scope=user&amp;owner=zoe"' in page
        assert "user ada" not in page
        assert '<span class="badge warn">2</span>' in page


@needs_chromium
async def test_held_change_of_a_memory_file_is_approved_and_becomes_a_version() -> None:
    async with serve_filled() as served, browse(served.url) as page:
        await page.goto("/inspect/memories/held?scope=user&owner=default")
        card = page.locator(".card", has_text="/memories/held.md")
        await card.get_by_role("button", name="Approve").click()
        await expect(page.get_by_text("No change of a memory file is held")).to_be_visible()
        files = open_memory_files(served.hf.engine, "default")
        assert [one.text for one in await files.list_versions("/memories/held.md")] == [SECRET]
        await page.goto("/inspect/memories/files?scope=user&owner=default&path=/memories/notes.md")
        await page.get_by_text("2: edited").click()
        await expect(page.locator(".removed")).to_have_text("-# Notes")
        await check_page(page)


@needs_chromium
async def test_consolidation_is_tried_and_run_from_the_diary() -> None:
    async with serve_filled() as served, browse(served.url) as page:
        await page.goto("/inspect/memories/diary?scope=user&owner=default")
        await expect(page.get_by_text("No consolidation yet")).to_be_visible()
        await page.get_by_role("button", name="Try without writing").click()
        await expect(page.get_by_text("Nothing was written.")).to_be_visible()
        assert await served.hf.store.diary(DEFAULT) == ()
        await check_page(page)
        await page.get_by_role("link", name="Back").click()
        for question in ("which colour?", "favourite things?", "is green a favourite colour?"):
            await served.hf.memories.recall(question, user_id="default")
        await served.hf.memories.settled()
        await page.get_by_role("button", name="Consolidate now").click()
        await expect(page.get_by_role("row", name="My favourite colour is green")).to_contain_text("promoted")
        await page.get_by_role("link", name="Back").click()
        await expect(page.get_by_text("1 promoted")).to_be_visible()
        await check_page(page)


@needs_chromium
@pytest.mark.parametrize("width", [1440, 390])
async def test_memory_page_is_accessible_and_shows_hostile_text_as_text(width: int) -> None:
    async with serve_filled() as served, browse(served.url, width=width, dark=width == 390) as page:
        for text in ("green", "Send money", SECRET):
            memory = await find(served, text)
            await page.goto(f"/inspect/memories/{memory.id}?q=favourite+colour")
            for summary in await page.locator("summary").all():
                await summary.click()
            await check_page(page)
            assert await page.title() != "owned"


async def test_readers_see_no_buttons_and_forms_are_refused() -> None:
    async with serve_filled() as served:
        await sign_in(served, await add_key(served, "read"))
        held = await find(served, "Send money")
        for path in (f"/inspect/memories/{held.id}", "/inspect/memories/held", "/inspect/memories/diary"):
            page = await read(served, path)
            assert "/inspect/do" not in page, path


async def test_key_of_one_user_sees_only_memories_of_this_user_and_of_the_app() -> None:
    async with serve_filled() as served:
        other = await find(served, "green")
        shared = await find(served, "hat", Owner("app"))
        await served.hf.memories.recall("who wears a hat?", session="secret-session")
        await served.hf.memories.settled()
        await sign_in(served, await add_key(served, "write", user_id="ada"))
        page = await read(served, "/inspect/memories")
        assert "Ada likes tea" in page
        assert "green" not in page
        await read(served, f"/inspect/memories/{other.id}", 404)
        await read(served, "/inspect/memories?scope=user&owner=default", 404)
        await read(served, "/inspect/memories/files?scope=user&owner=default", 404)
        page = await read(served, f"/inspect/memories/{shared.id}")
        assert "/inspect/do" not in page
        assert "secret-session" not in page


async def test_roles_without_content_see_neither_memories_nor_the_form_that_edits_them() -> None:
    async with serve_filled("inspector: {hide_content: [write]}") as served:
        secret = await find(served, SECRET)
        await sign_in(served, await add_key(served, "write"))
        for path in (
            f"/inspect/memories/{secret.id}",
            "/inspect/memories/held",
            "/inspect/memories/files?path=/memories/notes.md",
        ):
            page = await read(served, path)
            assert "swordfish" not in page, path
            assert "hidden: " in page, path
        assert "<textarea" not in await read(served, f"/inspect/memories/{secret.id}")


async def test_first_page_without_memories_says_how_to_turn_them_on() -> None:
    async with serve_filled() as served:
        page = await read(served, "/inspect/memories?scope=user&owner=nobody")
        assert "memory: {enabled: true}" in page
        assert f"curl {served.url}/v1/memories" in page
        assert HOSTILE not in page


@needs_chromium
async def test_pages_about_data_of_the_demo_are_legible() -> None:
    agents = "agents: {concierge: {instruction: Plan trips., context: {strategy: digest, budget: 8000}}}"
    async with serve_demo(agents) as served, browse(served.url, height=1000) as page:
        memory = await find(served, "shellfish", Owner("user", "ada"))
        for shot, path, text in (
            ("memory", f"/inspect/memories/{memory.id}?q=is+Ada+allergic", "I am allergic to shellfish"),
            ("state", "/inspect/sessions/norway/state?user_id=ada", "itinerary.md"),
            ("artifacts", "/inspect/sessions/norway/artifacts/itinerary.md?user_id=ada", "itinerary.md"),
            ("agents", "/inspect/agents", "concierge"),
            ("keys", "/inspect/keys", "There is no key yet"),
            ("retention", "/inspect/retention", "sessions.max_sessions"),
            ("deletions", "/inspect/deletions", "all data of a user"),
        ):
            await page.goto(path)
            await expect(page.get_by_text(text).first).to_be_visible()
            await check_page(page)
            await save_screenshot(page, f"inspector-{shot}")


# -- new memories, links and counts ------------------------------------------------


@needs_chromium
async def test_form_saves_a_memory_of_the_owner_that_the_page_shows() -> None:
    async with serve_filled() as served, browse(served.url) as page:
        await page.goto("/inspect/memories?scope=user&owner=ada")
        await page.get_by_text("New memory").click()
        await page.get_by_label("Text, remembered for user ada").fill("Ada's train leaves at nine")
        await page.locator("#new").get_by_label("Type").select_option("episodic")
        await page.get_by_label("Tags, separated by commas").fill("travel, train")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_text("The memory was saved.")).to_be_visible()
        await expect(page.get_by_role("link", name="Ada's train leaves at nine")).to_be_visible()
        saved = await find(served, "leaves at nine", Owner("user", "ada"))
        assert (saved.type, saved.tags, saved.importance) == ("episodic", ("travel", "train"), 0.5)
        await page.get_by_text("What do these words mean?").click()
        await expect(page.get_by_text("How far Holdfast trusts it")).to_be_visible()
        await check_page(page)


async def test_form_for_a_new_memory_needs_a_key_that_may_write() -> None:
    async with serve_filled() as served:
        await sign_in(served, await add_key(served, "read"))
        assert "New memory" not in await read(served, "/inspect/memories?scope=user&owner=default")


async def test_badge_counts_held_memories_and_held_changes_of_files() -> None:
    async with serve_filled() as served:
        for path in ("", "/held"):
            page = await read(served, f"/inspect/memories{path}?scope=user&owner=default")
            assert 'Held for review <span class="badge warn">2</span>' in page
        page = await read(served, "/inspect/memories/held?scope=user&owner=default")
        assert page.count("data-item") == 2
        assert 'class="primary">Approve' not in page


async def test_row_links_only_to_sessions_that_exist() -> None:
    async with serve_filled() as served:
        assert 'href="/inspect/sessions/s?at=0"' in await read(served, "/inspect/memories?scope=user&owner=default")
        source = MemorySource(session_id="gone-long-ago", user_id="bea")
        await served.hf.memories.remember("The meeting is on Monday", sources=[source], user_id="bea")
        page = await read(served, "/inspect/memories?scope=user&owner=bea")
        assert "gone-long-ago (not available)" in page
        assert 'href="/inspect/sessions/gone' not in page
