"""`holdfast.connect`: replacing, records, imports, facts, summaries and speech, beyond the library's own tests."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

import holdfast
from holdfast.domain.record import PutRecord, RecordName
from holdfast.domain.session import SessionRef
from holdfast.errors import (
    InvalidRequest,
    NoReply,
    ServerError,
    ServerUnavailable,
    SessionExists,
    SessionNotFound,
    StaleRecord,
    StaleSession,
    UserNotFound,
)
from tests.clocks import Clock
from tests.edges.connect_kit import open_remote
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


# -- replacing ---------------------------------------------------------------------


async def test_a_replacement_is_not_sent_again() -> None:
    """The message has another number afterwards, so a repetition would not find it."""
    async with open_with_proxy(lose("PUT", "/messages/0")) as hf:
        session = await hf.session("s")
        await session.append([HI, HELLO])
        with pytest.raises(ServerUnavailable):
            await session.replace(0, "Hey.")
        assert await read_texts(session) == ["Hey.", "Hello."]


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


async def test_records_expire_and_their_lists_have_pages() -> None:
    clock = Clock()
    async with open_remote(clock=clock) as hf:
        records = hf.records(("a", "b/c~"))
        await records.put("late", 1, ttl="1h")
        await records.put_many({f"k/{at:03d}": at for at in range(90)})
        await records.put_many({f"k/{at:03d}": at for at in range(90, 150)})
        page = await records.list("k/", limit=10, descending=True)
        assert [one.key for one in page.records] == [f"k/{at:03d}" for at in range(149, 139, -1)]
        assert page.has_more
        following = await records.list("k/", limit=10, descending=True, after=page.records[-1].key)
        assert following.records[0].key == "k/139"
        infos = await records.list(values=False, limit=1)
        assert not isinstance(infos.records[0], holdfast.Record)
        assert [one.value async for one in records.iterate("k/")] == [*range(150)]
        late = await records.get("late")
        assert late is not None
        assert late.expires_at == clock.now + 3_600_000
        clock.now += 3_600_000
        assert await records.get("late") is None
        assert await hf.records().namespaces() == (("a", "b/c~"),)
        assert (await records.clear(), await records.drop()) == (150, 1), "the expired one was still stored"


async def test_records_are_searched_by_their_text() -> None:
    """With the values and scores that the library returns, for each kind of owner."""
    async with open_remote() as hf:
        session = await hf.session("s", user_id="ada")
        for records in (hf.records("n"), hf.records("n", user_id="ada"), session.records("n")):
            await records.put("json", {"a": 1}, text="The parcel to Oslo arrived late")
            await records.put("bytes", b"\0\xff", text="A parcel")
            await records.put("plain", "late parcel")
            found = await records.search("late parcels")
            assert [(hit.record.key, getattr(hit.record, "value", None)) for hit in found.hits] == [
                ("json", {"a": 1}),
                ("bytes", b"\0\xff"),
            ]
            first = found.hits[0]
            assert isinstance(first.record, holdfast.Record)
            assert (first.record.text, first.parts, found.mode) == (first.snippet, {"keyword": first.score}, "keyword")
            assert [first.snippet[start:stop] for start, stop in first.highlights] == ["parcel", "late"]
            few = await records.search("parcel", prefix="b", values=False, limit=1)
            assert [type(hit.record).__name__ for hit in few.hits] == ["RecordInfo"]
        with pytest.raises(InvalidRequest, match="q must have"):
            await records.search(" ")
        with pytest.raises(InvalidRequest, match="text"):
            await records.put("k", 1, text="")


async def test_what_records_cannot_do_over_http_is_refused() -> None:
    async with open_remote() as hf:
        records = hf.records("n")
        with pytest.raises(InvalidRequest, match="times"):
            await records.change([PutRecord(name=RecordName(("n",), "k"), value=1, times=(1, 1))])
        with pytest.raises(InvalidRequest, match="JSON"):
            await records.put("k", float("nan"))
        with pytest.raises(InvalidRequest, match="key"):
            await records.get("")
        with pytest.raises(InvalidRequest, match="key must be a string"):
            await records.list(3)  # type: ignore[arg-type]  # a caller's mistake
        assert await records.put_many({}) == 0
        with pytest.raises(SessionNotFound):
            await hf.records("n", session=SessionRef("ada", "gone")).get("k")


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


async def test_an_export_is_imported_for_its_user_or_another_one() -> None:
    async with open_remote() as hf:
        session = await hf.session("s", user_id="ada")
        await session.append([HI, HELLO], state={"seat": "12A"}, records=[session.records("n").make_put("k", 1)])
        export = await hf.export(session.ref)
        assert not (await hf.import_(export)).changed
        copy = (await hf.import_(export, session_id="t", user_id="bob")).session
        assert (copy.ref, copy.state) == (SessionRef("bob", "t"), {"seat": "12A"})
        assert [one.value async for one in hf.handle(copy).records("n").iterate()] == [1]
        new = (await hf.import_({"messages": [HI]})).session
        assert (new.user_id, len(new.id)) == ("default", 32)
        for wrong in ({}, {"messages": 3}, [HI], {"messages": [{"role": "robot", "content": "x"}]}):
            with pytest.raises(InvalidRequest):
                await hf.import_(wrong)  # type: ignore[arg-type]  # a caller's mistake


async def test_the_user_of_the_connection_owns_an_import() -> None:
    async with gateway(lambda _: "ok") as (served, _), holdfast.connect(served.url, user_id="ada") as hf:
        assert (await hf.import_({"messages": [HI]}, session_id="s")).session.user_id == "ada"
        assert (await hf.import_({"messages": [HI], "user_id": "bob"}, session_id="s")).session.user_id == "bob"


# -- facts, summaries, speech --------------------------------------------------------


async def test_errors_without_attributes_keep_their_class() -> None:
    """Such as `NoReply`, whose class has no initializer of its own."""
    async with open_remote() as hf:
        session = await hf.session("s")
        with pytest.raises(NoReply, match="no reply"):
            await session.interrupt(chars=1)
