"""`holdfast.connect`: replacing, records, imports, facts, summaries and speech, beyond the library's own tests."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

import holdfast
from holdfast.domain.session import SessionRef
from holdfast.errors import (
    InvalidRequest,
    ServerError,
    ServerUnavailable,
    SessionExists,
    StaleRecord,
    StaleSession,
    UserNotFound,
)
from tests.edges.keys import create_stored_key
from tests.edges.server import gateway
from tests.edges.test_connect import open_protected, open_with_proxy

HI = {"role": "user", "content": "hi"}
HELLO = {"role": "assistant", "content": "Hello."}


def lose(method: str, suffix: str, times: int = 1) -> Any:
    """Return a function for `open_with_proxy` that loses the first answers to matching requests."""
    left = times

    def answer(request: web.Request, _: int) -> web.Response | None:
        nonlocal left
        if left and request.method == method and request.path.endswith(suffix):
            left -= 1
            return web.Response(status=502)
        return None

    return answer


async def read_texts(session: Any) -> list[str]:
    return [one["content"] for one in await session.messages()]


# -- records -----------------------------------------------------------------------


async def test_messages_and_records_are_written_once_when_the_answer_is_lost() -> None:
    async with open_with_proxy(lose("POST", "/messages")) as hf:
        session = await hf.session("s")
        steps = session.records("steps")
        await session.append(HI, records=[steps.make_put("1", b"\0\xff", expect=0), steps.make_delete("0")])
        record = await steps.get("1")
        assert record is not None
        assert record.value == b"\0\xff"
        assert await read_texts(session) == ["hi"]
        with pytest.raises(StaleRecord):
            await session.append(HELLO, records=[steps.make_put("1", 2, expect=0)])
        await session.append(records=[steps.make_put("2", {"a": 1})])
        assert (await read_texts(session), [one.key async for one in steps.iterate()]) == (["hi"], ["1", "2"])


async def test_messages_that_are_repeated_are_linked_once_when_the_answer_is_lost() -> None:
    async with open_with_proxy(lose("POST", "/messages", 2)) as hf:
        first = (await hf.import_({"messages": [HI, HELLO]}, session_id="s")).session
        session = hf.handle(first)
        again = await session.append(
            [HELLO], retire_from=0, expect=first.version, copy_of=[1], note={"why": "the first one was removed"}
        )
        assert (await read_texts(session), again.replayed) == (["Hello."], True)
        await hf.erase(session.ref, again.start)
        assert [one.erased for one in await session.entries(retired=True)] == [False, True, True, False]
        with pytest.raises(StaleSession):
            await session.append([HELLO], expect=first.version, copy_of=[1])
        with pytest.raises(InvalidRequest, match="copy_of"):
            await session.append([HELLO], expect=(await session.info()).version, copy_of=[1, 2])
        with pytest.raises(InvalidRequest, match="needs expect"):
            await session.append([HELLO], copy_of=[1])


async def test_a_lost_answer_of_a_record_is_reported() -> None:
    async with open_with_proxy(lose("POST", "/records")) as hf:
        records = hf.records("n", user_id="ada")
        with pytest.raises(ServerUnavailable):
            await records.put("k", 1, expect=0)
        found = await records.get("k")
        assert found is not None
        assert await records.put("k", 2, expect=found.version) > found.version


async def test_a_key_of_a_user_reaches_only_the_records_of_this_user() -> None:
    async with open_protected() as served:
        everyone, of_ada = await create_stored_key(served.hf), await create_stored_key(served.hf, user_id="ada")
        async with holdfast.connect(served.url, api_key=everyone) as hf:
            await hf.records("n", user_id="bob").put("k", "secret")
            await (await hf.session("s", user_id="bob")).records("n").put("k", "secret")
            await hf.records("n").put("k", "shared")
        async with holdfast.connect(served.url, api_key=of_ada) as hf:
            await hf.records("n", user_id="ada").put("k", "mine")
            for owned in (hf.records("n", user_id="bob"), hf.records("n", session=SessionRef("bob", "s"))):
                for reaching in (owned.get("k"), owned.put("k", 1), owned.list(), owned.drop(), owned.namespaces()):
                    with pytest.raises(UserNotFound):
                        await reaching
            with pytest.raises(ServerError) as refused:
                await hf.records("n").put("k", 1)
            assert refused.value.status == 403


# -- imports -----------------------------------------------------------------------


async def test_an_import_is_sent_again_unless_it_may_replace() -> None:
    data = {"messages": [HI, HELLO]}
    async with open_with_proxy(lose("PUT", "/s", 2)) as hf:
        done = await hf.import_(data, session_id="s")
        assert (done.session.id, done.changed, done.replaced) == ("s", False, False), "the first attempt wrote it"
        with pytest.raises(SessionExists):
            await hf.import_({"messages": [HI]}, session_id="s")
        assert (await hf.import_({"messages": [HI]}, session_id="s", replace=True)).replaced
    async with open_with_proxy(lose("PUT", "/s")) as hf:
        with pytest.raises(ServerUnavailable):
            await hf.import_(data, session_id="s", replace=True)
        assert await read_texts(await hf.get("s")) == ["hi", "Hello."]


async def test_the_user_of_the_connection_owns_an_import() -> None:
    async with gateway(lambda _: "ok") as (served, _), holdfast.connect(served.url, user_id="ada") as hf:
        assert (await hf.import_({"messages": [HI]}, session_id="s")).session.user_id == "ada"
        assert (await hf.import_({"messages": [HI], "user_id": "bob"}, session_id="s")).session.user_id == "bob"
