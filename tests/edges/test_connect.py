"""`holdfast.connect`: what the library's own tests do not cover: keys, users, retries, conflicts, foreign answers and large contents."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.errors import (
    HoldfastError,
    ServerError,
    ServerUnavailable,
    SessionNotFound,
    StoreClosed,
    WrongEventLoop,
)
from holdfast.remote.connection import RemoteHoldfast
from tests.clocks import Pauses
from tests.edges.connect_kit import CONFIG, connect_without_pauses, open_remote
from tests.edges.server import Served, gateway, run_server
from tests.web_apps import serve_app

MEMORY = "sqlite://:memory:"
KEY = "hf_0123456789abcdef_0123456789abcdef0123456789abcdef0123456789abcdef0123"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serve(handle: Handler) -> AsyncIterator[str]:
    """Serve an application that answers every request with one function."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with serve_app(app) as url:
        yield url


@asynccontextmanager
async def open_with_proxy(
    answer: Callable[[web.Request, int], web.StreamResponse | None], reaches: Callable[[], bool] = lambda: True
) -> AsyncIterator[RemoteHoldfast]:
    """Connect to a server through a proxy.

    Args:
        answer: returns the proxy's own answer for a request and its number, or None to pass on the server's.
        reaches: returns False if requests with an own answer do not reach the server.
    """
    import aiohttp

    numbers = 0
    async with holdfast.open(MEMORY) as hf, run_server(hf, CONFIG) as (address, _):

        async def pass_on(request: web.Request) -> web.StreamResponse:
            nonlocal numbers
            numbers += 1
            own = None if reaches() else answer(request, numbers)
            if own is not None:
                return own
            async with (
                aiohttp.ClientSession() as client,
                client.request(
                    request.method, address + request.path_qs, data=await request.read(), headers=request.headers
                ) as got,
            ):
                body = await got.read()
            return answer(request, numbers) or web.Response(
                body=body, status=got.status, headers={"content-type": got.headers["content-type"]}
            )

        async with serve(pass_on) as url, connect_without_pauses(url) as connected:
            yield connected


# -- keys and users ----------------------------------------------------------------


@asynccontextmanager
async def open_protected() -> AsyncIterator[Served]:
    async with gateway(lambda _: "ok", "auth: {required: true}") as (served, _):
        yield served


async def test_a_wrong_key_is_refused_without_showing_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_protected() as served, holdfast.connect(served.url, api_key=KEY) as hf:
        with pytest.raises(ServerError) as caught:
            await hf.session("s")
    assert caught.value.status == 401
    assert caught.value.code == "invalid_api_key"
    shown = "".join(traceback.format_exception(caught.value))
    assert KEY not in f"{shown}{hf!r}{caught.value!r}{caplog.text}"


async def test_the_key_is_in_no_error_of_a_lost_connection() -> None:
    async with connect_without_pauses("http://127.0.0.1:1", api_key=KEY, max_retries=1) as hf:
        with pytest.raises(ServerUnavailable, match="cannot be reached") as caught:
            await hf.session("s")
    assert KEY not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None


async def test_without_a_user_another_users_session_is_not_found() -> None:
    """The server would find the only session of that id, whoever owns it."""
    async with open_remote() as hf:
        await (await hf.session("s", user_id="bob")).append("Bob's.")
        with pytest.raises(SessionNotFound):
            await hf.get("s")
        mine = await hf.session("s")
        assert mine.user_id == "default"
        assert await mine.messages() == []


# -- turns of several clients ---------------------------------------------------------


async def test_only_what_is_new_is_read_for_each_prompt_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The view is saved under the turns' key, so that a server without a cache need not read the whole log either."""
    async with gateway(lambda _: "ok") as (served, _), holdfast.connect(served.url) as hf:
        session = await hf.session("s")
        await session.append(
            [{"role": role, "content": "word " * 30} for _ in range(100) for role in ("user", "assistant")]
        )
        async with session.turn("a", strategy="token_window", budget=500) as turn:
            turn.add("b")
        served.hf.engine.warm.forget(session.ref)
        read: list[int] = []
        store = served.hf.engine.store
        window = store.window

        async def watch(*args: Any) -> Any:
            rows = await window(*args)
            read.append(len(rows.entries))
            return rows

        monkeypatch.setattr(store, "window", watch)
        async with session.turn("c", strategy="token_window", budget=500) as turn:
            turn.add("d")
        assert max(read) < 60


# -- retries ------------------------------------------------------------------------


async def test_writes_whose_answer_is_lost_are_not_done_twice() -> None:
    """The proxy drops every second answer, after the server has handled the request."""

    def drop(_: web.Request, number: int) -> web.Response | None:
        return web.Response(status=502, text="<html>bad gateway</html>") if number % 2 else None

    async with open_with_proxy(drop) as hf:
        session = await hf.session("s", system="Be kind.")
        await session.append("a", state={"seat": "12A"})
        async with session.turn("b") as turn:
            turn.add("c")
            await turn.next()
            turn.add("d")
        assert (await session.pop()).message.text == "d"  # type: ignore[union-attr]  # there is one
        assert [one["content"] for one in await session.messages()] == ["a", "b", "c"]
        assert (await session.send("e"))["choices"]
        assert [one["content"] for one in await session.messages()][:4] == ["a", "b", "c", "e"]
        assert (await session.clear()).messages == 0


@pytest.mark.parametrize("reaches", [True, False])
async def test_a_failed_write_of_a_turn_is_tried_again_with_its_key(reaches: bool) -> None:
    """The server has written it, or not, and no answer came through while the connection retried."""
    is_down = False

    def drop(request: web.Request, _: int) -> web.Response | None:
        lost = is_down and request.method == "POST" and request.path.endswith("/messages")
        return web.Response(status=502) if lost else None

    async with open_with_proxy(drop, reaches=lambda: reaches or not is_down) as hf:
        session = await hf.session("s")
        turn = await session.begin_turn("a")
        turn.add("b", usage={"prompt_tokens": 7, "completion_tokens": 3})
        turn.state.increment("n")
        is_down = True
        with pytest.raises(ServerUnavailable):
            await turn.next()
        is_down = False
        assert turn.state["n"] == 1
        turn.add("c", usage={"prompt_tokens": 70, "completion_tokens": 30})
        turn.add("d", usage={"prompt_tokens": 700, "completion_tokens": 300})
        turn.state.increment("n")
        await turn.end()
        assert [one["content"] for one in await session.messages()] == ["a", "b", "c", "d"]
        usage = (await session.info()).usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (777, 333)
        assert await session.state.get("n") == 2


@given(st.lists(st.sampled_from(["passed", "lost", "late"]), max_size=20))
async def test_whatever_answers_are_lost_each_message_is_written_once(outcomes: list[str]) -> None:
    """At most three failures in a row, fewer than there are retries."""
    outcomes = [one if at % 4 else "passed" for at, one in enumerate(outcomes)]

    def fail(_: web.Request, number: int) -> web.Response | None:
        outcome = outcomes[number - 1] if number <= len(outcomes) else "passed"
        return None if outcome == "passed" else web.Response(status=503 if outcome == "lost" else 504)

    async with open_with_proxy(fail) as hf:
        session = await hf.session("s")
        for text in ("a", "b"):
            async with session.turn(text) as turn:
                turn.add(text.upper())
                await turn.next()
        await session.append("c")
        assert [one["content"] for one in await session.messages()] == ["a", "A", "b", "B", "c"]


async def test_a_write_without_a_key_is_not_repeated() -> None:
    """The server has incremented the number, and the client cannot know it."""

    def drop(request: web.Request, _: int) -> web.Response | None:
        return web.Response(status=502) if request.method == "POST" and request.path == "/v1/state" else None

    async with open_with_proxy(drop) as hf:
        session = await hf.session("s")
        with pytest.raises(ServerUnavailable, match="502"):
            await session.state.increment("n")
        assert await session.state.get("n") == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_is_overloaded_is_asked_again_later(status: int) -> None:
    seen = 0

    async def handle(_: web.Request) -> web.Response:
        nonlocal seen
        seen += 1
        if seen < 3:
            return web.json_response(
                {"error": {"message": "later", "code": "busy"}}, status=status, headers={"retry-after": "2"}
            )
        return web.json_response({"seat": "12A", "values": {}})

    pauses = Pauses()
    async with serve(handle) as url, connect_without_pauses(url, pauses) as hf:
        assert await hf.app_state().get("app:seat") is None
        assert pauses == [2, 2]
        if status == 429:  # the server has not begun to handle it, so a write is repeated too
            seen = 0
            await hf.app_state().set("app:seat", "12B")
            assert pauses == [2] * 4
        seen = 0
        async with connect_without_pauses(url, max_retries=1) as other:
            with pytest.raises(HoldfastError, match="later"):
                await other.app_state().get("app:seat")


async def test_a_server_that_restarts_is_reached_again() -> None:
    down, up = asyncio.Event(), asyncio.Event()

    async def sleep(_: float) -> None:
        down.set()
        await up.wait()

    async with holdfast.open(MEMORY) as hf:
        async with run_server(hf, CONFIG) as (url, _):
            connected = await connect_without_pauses(url, sleep).__aenter__()
            session = await connected.session("s")
            turn = await session.begin_turn("a")
        turn.add("b")
        ending = asyncio.create_task(turn.end())
        await down.wait()
        async with run_server(hf, CONFIG, port=int(url.rpartition(":")[2])):
            up.set()
            await ending
            assert [one["content"] for one in await session.messages()] == ["a", "b"]
            await connected.close()


async def test_a_slow_server_ends_the_call_in_time() -> None:
    async def handle(_: web.Request) -> web.Response:
        await asyncio.sleep(30)
        raise AssertionError

    async with serve(handle) as url, holdfast.connect(url, timeout=0.05) as hf:
        with pytest.raises(ServerUnavailable, match=r"did not answer within 0\.05 s"):
            await hf.session("s")


async def test_a_cancelled_call_leaves_the_connection_usable() -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def handle(request: web.Request) -> web.Response:
        if not asked.is_set():
            asked.set()
            await go_on.wait()
        return web.json_response({"app:a": 1})

    async with serve(handle) as url, holdfast.connect(url) as hf:
        reading = asyncio.create_task(hf.app_state().all())
        await asked.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        go_on.set()
        assert await hf.app_state().all() == {"app:a": 1}


# -- answers of others ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (200, "<html>log in</html>", ServerError),
        (200, "[]", ServerError),
        (200, "{}", ServerError),
        (302, "", ServerError),
        (404, "<html>no such page</html>", ServerError),
        (500, '{"detail": "no"}', ServerError),
        (502, "<html>bad gateway</html>", ServerUnavailable),
    ],
)
async def test_answers_that_are_not_holdfasts_are_explained(status: int, text: str, kind: type[ServerError]) -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text, content_type="text/html", headers={"location": "/login"})

    async with serve(handle) as url, connect_without_pauses(url) as hf:
        with pytest.raises(kind, match=f"answered {status} with") as caught:
            await hf.get("s", user_id="ada")
    assert type(caught.value) is kind
    assert caught.value.status == status


async def test_an_unknown_code_keeps_its_name_and_message() -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "the moon is full", "code": "full_moon"}}, status=418)

    async with serve(handle) as url, connect_without_pauses(url) as hf:
        with pytest.raises(ServerError, match="the moon is full") as caught:
            await hf.get("s", user_id="ada")
    assert (caught.value.code, caught.value.status) == ("full_moon", 418)
    assert ServerError.code == "server_error"


async def test_it_is_used_while_open_and_in_its_own_loop() -> None:
    hf = holdfast.connect("http://127.0.0.1:1")
    with pytest.raises(StoreClosed, match="async with"):
        await hf.session("s")
    async with hf:

        async def misuse() -> None:
            with pytest.raises(WrongEventLoop):
                await hf.session("s")

        await asyncio.to_thread(asyncio.run, misuse())
    await hf.close()
    with pytest.raises(StoreClosed):
        await hf.session("s")
