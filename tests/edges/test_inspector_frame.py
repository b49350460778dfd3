"""The frame of the inspector: signing in, forms of other sites, roles, errors, and where pages are served."""

from __future__ import annotations

import asyncio
import re
from importlib.resources import files
from typing import Any, cast
from urllib.parse import urlencode

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.async_api import expect

from holdfast.access import ID_RANDOM, SECRET_RANDOM, create_key
from holdfast.server.access import COOKIE, is_same_origin
from holdfast.server.app import make_app
from holdfast.server.body_limits import parse_form
from holdfast.server.inspector.access import check_path
from holdfast.server.inspector.actions import ACTIONS
from holdfast.server.inspector.frame import HEADERS, load_environment, mark_controls
from holdfast.server.inspector.routes import PAGE_ROUTES
from holdfast.stores.keys import ApiKey, Role
from tests.edges.browser_kit import NARROW, browse, check_page, needs_chromium
from tests.edges.inspector_kit import read, serve_filled
from tests.edges.server import Served, gateway

HTML = {"accept": "text/html"}


async def add_key(served: Served, role: Role = "admin", user_id: str | None = None, seed: int = 1) -> str:
    new = create_key(bytes([seed]) * (ID_RANDOM + SECRET_RANDOM))
    key = ApiKey(id=new.id, hash=new.hash, tenant="default", user_id=user_id, role=role, created_at=0)
    await served.hf.store.add_key(key)
    await served.http.get("/v1/sessions", headers={"x-holdfast-key": new.text})  # the server learns that keys exist
    return new.text


async def sign_in(served: Served, key: str) -> None:
    """Sign in; `served.http` keeps the cookie."""
    response = await served.http.post("/inspect/sign-in", data={"key": key, "next": "/"})
    assert response.status_code == 303, response.text


@needs_chromium
async def test_user_signs_in_with_a_key_and_out_again() -> None:
    async with gateway([]) as (served, _):
        key = await add_key(served)
        async with browse(served.url, statuses=(401,)) as page:
            await page.goto("/inspect/overview?notice=x")
            await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
            await page.get_by_label("API key").fill("hf_wrong")
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_role("alert")).to_contain_text("not valid")
            await check_page(page)
            await page.get_by_label("API key").fill(key)
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
            [cookie] = cast("list[Any]", await page.context.cookies())
            assert cookie["httpOnly"]
            assert cookie["sameSite"] == "Lax"
            assert key not in cookie["value"]
            await page.get_by_role("button", name="Sign out").click()
            await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
            await page.context.add_cookies([cookie])
            await page.goto("/")
            await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


async def test_token_that_the_browser_had_before_signing_in_is_never_used() -> None:
    """Session fixation: an attacker who has planted a token does not know the new one, and a planted sign-in ends."""
    async with gateway([]) as (served, _):
        key = await add_key(served)
        await sign_in(served, key)
        planted = served.http.cookies[COOKIE]
        await sign_in(served, key)
        assert served.http.cookies[COOKIE] != planted
        served.http.cookies.clear()
        answer = await served.http.get("/", headers={**HTML, "cookie": f"{COOKIE}={planted}"})
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/inspect/sign-in")


@pytest.mark.parametrize(
    "others",
    ['a={"b": 1}', "a=b c", 'a="b', "a", "a[b]=c", "expires=1", "", "holdfast_session_=x", f"{COOKIE}=planted"],
)
async def test_cookies_of_other_servers_of_the_host_do_not_end_a_sign_in(others: str) -> None:
    async with gateway([]) as (served, _):
        await sign_in(served, await add_key(served))
        cookie = f"{others}; {COOKIE}={served.http.cookies[COOKIE]}"
        served.http.cookies.clear()
        assert (await served.http.get("/", headers={**HTML, "cookie": cookie})).status_code == 200


async def test_form_of_an_unknown_caller_is_small_and_large_forms_keep_nobody_waiting() -> None:
    """A percent-encoded form of 8 MiB takes more than a second to decode."""
    async with gateway([]) as (served, _):
        form = {"content-type": "application/x-www-form-urlencoded"}
        for body in (b"key=" + b"%41" * 30_000, b"key=" + b"%41" * 2_000_000):
            answer = await served.http.post("/inspect/sign-in", content=body, headers={**HTML, **form})
            assert answer.status_code == 413
        served.http.headers["x-holdfast-key"] = await add_key(served)
        task = asyncio.create_task(
            served.http.post("/inspect/do", content=b"csrf=" + b"%41" * 2_000_000, headers={**HTML, **form})
        )
        looks = 0  # turns of the event loop
        while not task.done():
            await asyncio.sleep(0.005)
            looks += 1
        assert (await task).status_code == 403
        assert looks > 20


@given(st.lists(st.tuples(st.text("ab&=%+ \n\u00e9\U0001f600", max_size=12), st.text(max_size=12)), max_size=6))
def test_form_is_decoded(fields: list[tuple[str, str]]) -> None:
    expected: dict[str, list[str]] = {}
    for name, value in fields:
        expected.setdefault(name, []).append(value)
    assert parse_form(urlencode(fields).encode()) == expected


@pytest.mark.parametrize("value", ["[" * 100_000, "[" * 5_000 + "]" * 5_000, "9" * 5_000, "NaN", '"\\ud800"'])
async def test_hostile_fields_are_errors_of_the_form(value: str) -> None:
    async with gateway([]) as (served, _):
        page = (await served.http.get("/inspect/playground", headers=HTML)).text
        [csrf] = re.findall(r'name="csrf" value="([^"]*)"', page)
        fields = {"csrf": csrf, "action": "rate_message", "path.session_id": "s", "path.seq": "0", "path.template": "x"}
        forms = {
            "/inspect/do": fields | {"body.importance": value},
            "/inspect/state/save": {"csrf": csrf, "scope": "app", "key": "k", "value": value},
            "/inspect/state/record/save": {
                "csrf": csrf,
                "scope": "app",
                "namespace": "n",
                "key": "k",
                "value": value,
            },
        }
        for path, form in forms.items():
            answer = await served.http.post(path, data=form, headers=HTML)
            assert answer.status_code == 400, path


async def test_cookie_gives_no_access_to_the_rest_api() -> None:
    async with gateway([]) as (served, _):
        await sign_in(served, await add_key(served))
        assert (await served.http.get("/", headers=HTML)).status_code == 200
        assert (await served.http.get("/v1/sessions")).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:1"},
    ],
)
@pytest.mark.parametrize("path", ["/inspect/sign-in", "/inspect/sign-out", "/inspect/do"])
async def test_form_of_another_site_is_refused(headers: dict[str, str], path: str) -> None:
    async with gateway([]) as (served, _):
        key = await add_key(served)
        await sign_in(served, key)
        answer = await served.http.post(path, data={"key": key, "action": "x"}, headers=headers)
        assert answer.status_code == 403
        assert (await served.http.get("/", headers=HTML)).status_code == 200


async def test_form_without_the_text_of_its_page_is_refused() -> None:
    async with gateway([]) as (served, _):
        for csrf in ({}, {"csrf": "0" * 64}):
            answer = await served.http.post("/inspect/do", data={"action": next(iter(ACTIONS), "x"), **csrf})
            assert answer.status_code == 403
            assert "reload the page" in answer.text


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ("/inspect/sessions?q=a", "/inspect/sessions?q=a"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/a\r\nset-cookie: x=y", "/"),
        (None, "/"),
    ],
)
def test_sign_in_leads_only_to_paths_of_this_server(given: str | None, target: str) -> None:
    assert check_path(given) == target


def test_origin_is_compared_with_the_host_of_the_request() -> None:
    assert is_same_origin({"host": "a.example", "origin": "https://a.example"}, ())
    assert is_same_origin({"host": "inner", "origin": "https://a.example"}, {"https://a.example"})
    assert is_same_origin({"host": "inner", "x-forwarded-host": "a.example", "origin": "https://a.example"}, ())
    for origin in ("https://a.example.evil", "https://x@a.example", "null", "", "http://[::1", "a.example"):
        assert not is_same_origin({"host": "a.example", "origin": origin}, ()), origin
    assert not is_same_origin({"host": "", "origin": "null"}, ())


async def test_every_page_needs_its_role_and_has_the_security_headers() -> None:
    async with gateway([]) as (served, _):
        await sign_in(served, await add_key(served, "read"))
        for route in PAGE_ROUTES:
            if route.need in ("public", "read") or route.method != "GET":
                continue
            answer = await served.http.get(route.path, headers=HTML)
            assert answer.status_code == 403, route.path
            assert answer.headers["content-security-policy"] == HEADERS["content-security-policy"]
        served.http.cookies.clear()
        for route in PAGE_ROUTES:
            if route.need != "public":
                answer = await served.http.request(route.method, route.path, headers=HTML)
                assert answer.status_code == (303 if route.method == "GET" else 401), route.path


def test_page_policy_allows_neither_inline_code_nor_other_hosts() -> None:
    policy = HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert "http" not in policy


async def test_unknown_file_of_the_pages_is_not_found() -> None:
    async with gateway([]) as (served, _):
        answer = await served.http.get("/inspect/assets/unknown.js", headers=HTML)
        assert answer.status_code == 404


@pytest.mark.parametrize("path", ["/inspect/overview", "/inspect/sign-in", "/inspect/assets/inspector.js"])
async def test_pages_can_be_switched_off(path: str) -> None:
    async with gateway([], "inspector: {enabled: false}") as (served, _):
        answer = await served.http.get(path, headers=HTML)
        assert answer.status_code == 404
        assert (await served.http.get("/", headers=HTML)).json()["api"] == "GET /openapi.json"


@needs_chromium
@pytest.mark.parametrize("script", [True, False])
async def test_errors_keep_the_navigation_and_its_last_link_can_be_pressed(script: bool) -> None:
    async with gateway([]) as (served, _):
        key = await add_key(served)
        async with browse(served.url, height=420, script=script, statuses=(404,)) as page:
            await page.goto("/inspect/sessions/unknown")
            await page.get_by_label("API key").fill(key)
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_role("heading", name="Not found")).to_be_visible()
            await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
            if script:
                await check_page(page)
            await page.get_by_role("link", name="Keys", exact=True).click()
            await page.get_by_text("New key").click()
            await page.mouse.wheel(0, 2_000)
            link, version = page.get_by_role("link", name="Retention", exact=True), page.locator(".version")
            boxes = [await one.bounding_box() for one in (link, version)]
            assert boxes[0]
            assert boxes[1]
            assert boxes[1]["y"] >= boxes[0]["y"] + boxes[0]["height"]
            await link.click()
            await page.get_by_role("link", name="Overview").click()
            await expect(page.get_by_role("heading", name="Overview")).to_be_visible()


async def test_error_of_a_caller_without_a_key_has_no_frame() -> None:
    async with gateway([]) as (served, _):
        await add_key(served)
        answer = await served.http.post("/inspect/do", data={"action": "x"}, headers=HTML)
        assert answer.status_code == 401
        assert "Please sign in" in answer.text
        assert 'class="side"' not in answer.text


@pytest.mark.parametrize(("client", "status"), [("127.0.0.1", 200), ("10.1.2.3", 403)])
async def test_without_keys_only_browsers_on_this_machine_see_pages(client: str, status: int) -> None:
    async with gateway([]) as (served, _):
        transport = httpx2.ASGITransport(make_app(served.hf, close=False), client=(client, 5))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            answer = await http.get("/", headers=HTML)
        assert answer.status_code == status
        assert ("holdfast keys create" in answer.text) == (status == 403)


async def test_errors_are_pages_for_browsers() -> None:
    async with gateway([]) as (served, _):
        answer = await served.http.get("/inspect/<script>alert(1)</script>", headers=HTML)
        assert answer.status_code == 404
        assert answer.headers["content-type"].startswith("text/html")
        assert "<script>alert" not in answer.text
        assert "Not found" in answer.text
        answer = await served.http.get("/inspect/overview?unknown=1", headers=HTML)
        assert answer.status_code == 400
        assert "unknown parameter" in answer.text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb", 'a<span class="control">U+202E</span>b'),
        ("\x1b[31m", '<span class="control">U+001B</span>[31m'),
        ("<b>\n\t&", "&lt;b&gt;\n\t&amp;"),
        ("مرحبا", "مرحبا"),
    ],
)
def test_invisible_characters_are_shown(text: str, shown: str) -> None:
    assert str(mark_controls(text)) == shown


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1440, False), (NARROW, True)])
async def test_frame_is_accessible_and_used_by_keyboard(width: int, dark: bool) -> None:
    async with gateway([]) as (served, _), browse(served.url, width=width, dark=dark) as page:
        await page.goto("/")
        await check_page(page)
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator("#main")).to_be_focused()
        await page.keyboard.press("/")
        await expect(page.get_by_role("searchbox")).to_be_focused()
        await page.keyboard.press("Escape")
        await page.locator("#main").focus()
        await page.keyboard.press("Control+k")
        await page.keyboard.type("overv")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        await page.locator("#main").focus()
        await page.keyboard.press("?")
        await expect(page.get_by_role("heading", name="Keys")).to_be_visible()
        await check_page(page)


def test_templates_write_counts_with_the_filter_for_plurals() -> None:
    """`{{ x | number }} sessions` would write `1 sessions`."""
    templates = files("holdfast.server.inspector").joinpath("templates")
    wrong = [
        (template.name, found)
        for template in templates.iterdir()
        for found in re.findall(
            r"\| (?:number|length) \}\} (?:sessions|messages|memories|turns|tokens|runs|calls|keys)\b",
            template.read_text(),
        )
    ]
    assert wrong == []
    assert render_counts() == "0 sessions, 1 session, 2,000 memories, \N{EN DASH} tokens"


def render_counts() -> str:
    template = '{{ 0 | plural("session") }}, {{ 1 | plural("session") }}, {{ 2000 | plural("memory", "memories") }}, {{ none | plural("token") }}'
    return load_environment().from_string(template).render()


async def test_deeply_nested_json_is_shown() -> None:
    """Of a depth that can be decoded, but not encoded below the functions that draw a page; and deeper."""
    async with serve_filled() as served:
        for depth in (100, 500, 900, 940, 960, 980, 990, 10_000):
            call = {
                "id": f"d{depth}",
                "type": "function",
                "function": {"name": "f", "arguments": "[" * depth + "]" * depth},
            }
            messages = [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"d{depth}", "content": '{"a":' * depth + "1" + "}" * depth},
            ]
            response = await served.http.post("/v1/sessions/second/messages?user_id=ada", json={"messages": messages})
            assert response.status_code == 200
        assert "nested too deeply" in await read(served, "/inspect/sessions/second?user_id=ada")


async def test_page_with_very_many_control_characters_is_small() -> None:
    async with serve_filled() as served:
        texts = [{"role": "user", "content": "\u2067" * 50_000}, {"role": "user", "content": "\u2067a" * 20}]
        await served.http.post("/v1/sessions/second/messages?user_id=ada", json={"messages": texts})
        page = await read(served, "/inspect/sessions/second?user_id=ada")
        assert "\u2067" not in page
        assert page.count("U+2067") == 100 + 20


async def test_commands_show_the_address_of_a_proxy_with_https() -> None:
    async with gateway([]) as (served, _):
        page = (await served.http.get("/", headers={**HTML, "x-forwarded-proto": "https"})).text
        assert f"https://127.0.0.1:{served.port}/v1/chat/completions" in page
        assert f"http://127.0.0.1:{served.port}" not in page
