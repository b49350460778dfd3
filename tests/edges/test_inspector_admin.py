"""The inspector's pages about agents, keys and deletions: what they show and hide, and keys whose text is shown once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from holdfast.access import ID_RANDOM, SECRET_RANDOM, create_key
from tests.clocks import Clock
from tests.edges.browser_kit import NARROW, browse, check_page, needs_chromium
from tests.edges.inspector_kit import read, serve_filled, submit
from tests.edges.server import UPSTREAM_KEY, Served, gateway
from tests.edges.test_inspector_frame import HTML, add_key, sign_in
from tests.service.workspace_kit import NEEDS_GIT

AGENTS = """agents:
  concierge:
    instruction: Be a kind concierge.
    description: Books trips
    context: {strategy: digest, budget: 8000}
    memory: {enabled: true}
    sub_agents: [planner]
  planner: {instruction: Plan., tools: []}"""


async def list_keys(served: Served, key: str) -> list[Any]:
    answer = await served.http.get("/v1/keys", headers={"x-holdfast-key": key})
    found: list[Any] = answer.json()["data"]
    return found


def write_file(folder: Path, text: str) -> None:
    """Write a file into the only workspace below a folder."""
    workspace = next(folder.rglob(".git")).parent
    (workspace / "plan.md").write_text(text)


# -- keys --------------------------------------------------------------------------


@needs_chromium
@pytest.mark.parametrize("width", [1440, NARROW])
async def test_first_key_is_shown_once_and_signs_in(width: int) -> None:
    async with gateway([]) as (served, _), browse(served.url, width=width, dark=width == NARROW) as page:
        await page.goto("/inspect/keys")
        await expect(page.get_by_text("There is no key yet")).to_be_visible()
        await page.get_by_label("Name").fill("<b>laptop</b>")
        await page.get_by_label("Lifetime").fill("90d")
        await page.get_by_role("button", name="Create key").click()
        await expect(page.get_by_text("Copy the key now.")).to_be_visible()
        await check_page(page)
        key = await page.locator("#new-key").inner_text()
        assert key.startswith("hf_")
        await page.get_by_role("link", name="Sign in").click()
        await page.get_by_label("API key").fill(key)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_text("yours")).to_be_visible()
        assert key not in await page.content()
        [stored] = await list_keys(served, key)
        assert (stored["name"], stored["role"], stored["rate"]) == ("<b>laptop</b>", "admin", None)
        await page.get_by_role("link", name="laptop").click()
        await page.get_by_text("Revoke this key…").click()
        await expect(page.get_by_text("You are signed in with this key.")).to_be_visible()
        await check_page(page)


async def test_last_admin_key_warns_and_revoking_the_own_key_leads_to_the_sign_in() -> None:
    async with gateway([]) as (served, _):
        admin = await add_key(served)
        other = create_key(bytes([2]) * (ID_RANDOM + SECRET_RANDOM))
        await add_key(served, seed=2)
        await add_key(served, "write", seed=3)
        await add_key(served, user_id="ada", seed=4)
        await sign_in(served, admin)
        mine = f"/inspect/keys/{create_key(bytes([1]) * (ID_RANDOM + SECRET_RANDOM)).id}"
        assert "last admin key" not in await read(served, mine)
        await submit(served, f"/inspect/keys/{other.id}", "Revoke the key")
        page = await read(served, mine)
        assert "This is the last admin key of the tenant default." in page
        assert "<code>holdfast keys create --role admin</code>" in page
        answer = await submit(served, mine, "Revoke the key")
        assert answer.url.path == "/inspect/sign-in"
        assert "was revoked. Sign in with another one." in answer.text


@pytest.mark.parametrize("field", ["tenant", "user_id"])
@pytest.mark.parametrize("value", ["a\0b", "..", "a\nb", ""])
async def test_key_for_an_invalid_name_is_refused(field: str, value: str) -> None:
    async with gateway([]) as (served, _):
        answer = await served.http.post("/v1/keys", json={field: value})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == field


async def test_key_is_created_with_its_limits_and_revoked() -> None:
    async with gateway([]) as (served, _):
        admin = await add_key(served)
        await sign_in(served, admin)
        fields = {"name": "ci", "role": "read", "user_id": "ada", "expires": "12h", "rate": "5", "max_body": "1000"}
        given = {f"body.{name}": value for name, value in fields.items()}
        answer = await submit(served, "/inspect/keys", "Create key", **given)
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "no-store"
        [made] = [one for one in await list_keys(served, admin) if one["name"] == "ci"]
        assert (made["role"], made["user_id"], made["rate"], made["max_body"]) == ("read", "ada", 5, 1000)
        assert made["expires_at"] - made["created_at"] == 43_200_000
        answer = await submit(served, f"/inspect/keys/{made['id']}", "Revoke the key")
        assert "The key was revoked" in answer.text
        assert ">revoked</span>" in answer.text
        assert "Revoke this key…" not in answer.text


@pytest.mark.parametrize(("field", "value"), [("expires", "soon"), ("rate", "many"), ("budget", "0")])
async def test_mistake_in_the_form_creates_no_key(field: str, value: str) -> None:
    async with gateway([]) as (served, _):
        admin = await add_key(served)
        await sign_in(served, admin)
        answer = await submit(served, "/inspect/keys", "Create key", **{f"body.{field}": value})
        assert answer.status_code == 400
        assert field in answer.text
        assert len(await list_keys(served, admin)) == 1


@pytest.mark.parametrize(("role", "user_id"), [("read", None), ("write", None), ("admin", "ada")])
async def test_keys_and_deletions_need_an_admin_key_without_a_user(role: Any, user_id: str | None) -> None:
    async with gateway([]) as (served, _):
        await sign_in(served, await add_key(served, role, user_id=user_id))
        for path in ("/inspect/keys", "/inspect/keys/x", "/inspect/deletions", "/inspect/retention"):
            await read(served, path, 403)
        page = await read(served, "/")
        assert 'href="/inspect/keys"' not in page


# -- agents ------------------------------------------------------------------------


@needs_chromium
async def test_agents_show_settings_team_and_health_but_no_secrets() -> None:
    async with serve_filled(AGENTS) as served, browse(served.url) as page:
        await page.goto("/inspect/agents")
        row = page.get_by_role("row", name="concierge")
        await expect(row).to_contain_text("digest")
        await expect(row).to_contain_text("8,000")
        await expect(page.get_by_role("row", name="gpt-4o")).to_contain_text("available")
        await check_page(page)
        assert UPSTREAM_KEY not in await page.content()
        await page.get_by_role("link", name="concierge").click()
        await expect(page.get_by_text("Be a kind concierge.")).to_be_visible()
        await expect(page.get_by_text("workspaces are disabled")).to_be_visible()
        await check_page(page)
        assert UPSTREAM_KEY not in await page.content()
        await page.get_by_role("link", name="planner").click()
        await expect(page.get_by_role("heading", name="planner")).to_be_visible()
        await expect(page.get_by_text("No tools run in the server.")).to_be_visible()


async def test_key_of_one_user_sees_neither_instructions_nor_health() -> None:
    async with serve_filled(AGENTS) as served:
        await sign_in(served, await add_key(served, "admin", user_id="ada"))
        page = await read(served, "/inspect/agents/concierge")
        assert "kind concierge" not in page
        assert "Workspace" not in page
        assert "available" not in await read(served, "/inspect/agents")
        await read(served, "/inspect/agents/unknown", 404)


@NEEDS_GIT
async def test_workspace_is_committed_from_the_page(tmp_path: Path) -> None:
    hooks = f"hooks: {{workspace_git: {{enabled: true, path: {tmp_path}}}}}"
    async with serve_filled(AGENTS, hooks) as served:
        workspaces = served.hf.workspaces
        assert workspaces is not None
        await workspaces.workspace("default", "concierge").checkpoint("first")
        write_file(tmp_path, "Go to <b>Oslo</b>\n")
        answer = await submit(served, "/inspect/agents/concierge", "Commit now")
        assert "The files of the workspace were committed." in answer.text
        page = await read(served, "/inspect/agents/concierge?diff=true")
        assert "+Go to &lt;b&gt;Oslo&lt;/b&gt;" in page


# -- deletions ---------------------------------------------------------------------


@needs_chromium
async def test_receipts_are_listed_and_found_by_an_id_that_one_knows() -> None:
    async with serve_filled() as served, browse(served.url) as page:
        await served.http.delete("/v1/sessions/s")
        await served.http.delete("/v1/users/ada")
        await page.goto("/inspect/deletions")
        await expect(page.locator("details.card")).to_have_count(2)
        await expect(page.get_by_text("all data of a user")).to_be_visible()
        await expect(page.get_by_text("1 memory")).to_be_visible()
        await check_page(page)
        await page.get_by_label("User", exact=True).fill("ada")
        await page.get_by_role("button", name="Find").click()
        await expect(page.locator("details.card")).to_have_count(1)
        await page.get_by_label("User", exact=True).fill("nobody")
        await page.get_by_role("button", name="Find").click()
        await expect(page.get_by_text("No deletion of this id")).to_be_visible()
        answer = await served.http.get("/inspect/deletions?session_id=s", headers=HTML)
        assert answer.text.count("data-item") == 1
        assert "ada" not in await read(served, "/inspect/deletions")


@needs_chromium
async def test_retention_shows_each_rule_and_what_it_would_do_now() -> None:
    config = ("sessions: {ttl: 1h, max_sessions: 50}", "storage: {sessions: {retention: 30d}}")
    clock = Clock()
    async with serve_filled(*config, clock=clock, store="sqlite://:memory:") as served, browse(served.url) as page:
        clock.now += 2 * 3_600_000
        await page.goto("/inspect/retention")
        await expect(page.get_by_role("row", name="sessions.ttl")).to_contain_text("1h")
        await expect(page.get_by_role("row", name="sessions.ttl")).to_contain_text("2 sessions would be")
        await expect(page.get_by_role("row", name="sessions.max_sessions")).to_contain_text("nothing to do")
        await expect(page.get_by_role("row", name="storage.sessions.retention")).to_contain_text("30d")
        await page.reload()  # it was a preview: the sessions are still there
        await expect(page.get_by_role("row", name="sessions.ttl")).to_contain_text("2 sessions would be")
        await check_page(page)
