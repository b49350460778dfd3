"""The frame of the inspector: signing in, forms of other sites, roles, errors, and where pages are served."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from holdfast.access import ID_RANDOM, SECRET_RANDOM, create_key
from holdfast.server.access import is_same_origin
from holdfast.server.app import make_app
from holdfast.server.inspector.frame import HEADERS
from holdfast.server.inspector.routes import PAGE_ROUTES
from holdfast.stores.keys import ApiKey, Role
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


@pytest.mark.parametrize(("client", "status"), [("127.0.0.1", 200), ("10.1.2.3", 403)])
async def test_without_keys_only_browsers_on_this_machine_see_pages(client: str, status: int) -> None:
    async with gateway([]) as (served, _):
        transport = httpx2.ASGITransport(make_app(served.hf, close=False), client=(client, 5))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            answer = await http.get("/", headers=HTML)
        assert answer.status_code == status
        assert ("holdfast keys create" in answer.text) == (status == 403)
