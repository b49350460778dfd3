"""Behaviours of a chat store, checked for LlamaIndex's own in-memory store and for Holdfast's, and what only Holdfast's has.

Where the two differ, the test says both results; docs/llama-index.md explains why.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_index", reason="LlamaIndex is not installed here: make adapters")

from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.base.llms.types import ChatMessage, ImageBlock
from llama_index.core.memory import Memory
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from sqlalchemy.ext.asyncio import create_async_engine

import holdfast
from holdfast.adapters.llama_index import HoldfastChatStore, HoldfastMemory
from holdfast.errors import WrongEventLoop
from tests.adapters.test_llama_index import EVERYTHING, count_bytes, make_turn

pytestmark = pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecationWarning")

SQL, HOLDFAST = "SQLAlchemyChatStore", "HoldfastChatStore"
ACTIVE, ARCHIVED = MessageStatus.ACTIVE, MessageStatus.ARCHIVED


def make(*texts: str) -> list[ChatMessage]:
    return [ChatMessage(role="user" if at % 2 == 0 else "assistant", content=text) for at, text in enumerate(texts)]


class Kit:
    """A chat store, and short forms of its methods that return texts."""

    def __init__(self, store: AsyncDBChatStore) -> None:
        self.store = store
        self.name = store.class_name()

    async def add(self, *texts: str, key: str = "k", status: MessageStatus = ACTIVE) -> None:
        await self.store.add_messages(key, make(*texts), status)

    async def get(self, status: MessageStatus | None = ACTIVE, key: str = "k", **options: Any) -> str:
        return list_texts(await self.store.get_messages(key, status, **options))


def list_texts(messages: list[ChatMessage]) -> str:
    return " ".join(str(message.content) for message in messages)


def read_files(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.glob("chat.db*"))


@pytest.fixture(params=[SQL, HOLDFAST])
async def kit(request: pytest.FixtureRequest) -> AsyncIterator[Kit]:
    engine = create_async_engine("sqlite+aiosqlite:///:memory:")
    async with holdfast.open("sqlite://:memory:") as hf:
        own = SQLAlchemyChatStore("messages", async_engine=engine)
        yield Kit(own if request.param == SQL else HoldfastChatStore(hf))
    await engine.dispose()


async def test_messages_of_all_kinds_come_back_as_they_were(kit: Kit) -> None:
    await kit.store.add_messages("k", EVERYTHING)
    assert await kit.store.get_messages("k") == EVERYTHING


async def test_an_unknown_key_is_empty(kit: Kit) -> None:
    assert await kit.store.get_messages("k") == []
    assert await kit.store.count_messages("k") == 0
    assert await kit.store.delete_message("k", 0) is None
    assert await kit.store.delete_oldest_messages("k", 1) == []
    assert await kit.store.archive_oldest_messages("k", 1) == []
    await kit.store.delete_messages("k")
    assert await kit.store.get_keys() == []


async def test_limit_and_offset_select_a_page(kit: Kit) -> None:
    await kit.add("a", "b", "c", "d", "e")
    assert await kit.get(limit=2) == "a b"
    assert await kit.get(offset=3) == "d e"
    assert await kit.get(limit=2, offset=1) == "b c"
    assert await kit.get(limit=0) == ""
    assert await kit.get(limit=9, offset=9) == ""


async def test_keys_are_separate(kit: Kit) -> None:
    await kit.add("a", key="one")
    await kit.add("b", key="two")
    await kit.store.delete_messages("one")
    assert await kit.get(key="two") == "b"


async def test_keys_with_messages_are_listed(kit: Kit) -> None:
    for key in ("one", "two", "three"):
        await kit.add("a", key=key)
    await kit.store.archive_oldest_messages("two", 1)
    await kit.store.delete_messages("three")
    assert sorted(await kit.store.get_keys()) == ["one", "two"]


async def test_a_message_that_does_not_exist_is_not_deleted(kit: Kit) -> None:
    await kit.add("a", "b")
    assert await kit.store.delete_message("k", 17) is None
    assert await kit.store.delete_message("k", -1) is None
    assert await kit.get() == "a b"


@pytest.mark.differs
async def test_numbers_below_one(kit: Kit) -> None:
    await kit.add("a", "b")
    assert await kit.store.archive_oldest_messages("k", 0) == []
    deleted = list_texts(await kit.store.delete_oldest_messages("k", -1))
    assert deleted == {SQL: "a b", HOLDFAST: ""}[kit.name]  # in SQLite, a negative limit is no limit


@pytest.mark.differs
async def test_adding_nothing(kit: Kit) -> None:
    if kit.name == SQL:
        with pytest.raises(Exception, match="NOT NULL"):
            await kit.store.add_messages("k", [])
    else:
        await kit.store.add_messages("k", [])
    assert await kit.store.get_keys() == []


@pytest.mark.differs
async def test_images_as_streams(kit: Kit) -> None:
    png = b"\x89PNG\r\n\x1a\n" + b"x" * 100
    message = ChatMessage(role="user", blocks=[ImageBlock(image=BytesIO(png))])
    if kit.name == SQL:
        with pytest.raises(Exception, match="utf-8"):
            await kit.store.add_message("k", message)
    else:
        await kit.store.add_message("k", message)
        assert (await kit.store.get_messages("k"))[0].blocks[0].resolve_image().read() == png  # type: ignore[union-attr]


async def test_the_memory_of_llama_index_archives_old_messages(kit: Kit) -> None:
    memory = Memory.from_defaults(session_id="k", token_limit=400, token_flush_size=100, chat_store=kit.store)
    for number in range(20):
        await memory.aput_messages(make_turn(number, 2, 10))
    active = await memory.aget()
    assert active[0].role == "user"
    assert len(active) < 40
    assert len(await memory.aget_all()) == 100
    assert await kit.store.count_messages("k", ARCHIVED) == 100 - len(active)


STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 3), st.sampled_from([ACTIVE, ARCHIVED])),
    st.tuples(st.just("archive"), st.integers(1, 4), st.none()),
    st.tuples(st.just("delete oldest"), st.integers(1, 3), st.none()),
    st.tuples(st.just("delete"), st.integers(0, 8), st.none()),
    st.tuples(st.just("delete all"), st.just(0), st.sampled_from([ACTIVE, ARCHIVED, None])),
    st.tuples(st.just("set"), st.integers(0, 3), st.sampled_from([ACTIVE, ARCHIVED])),
)


@given(st.lists(STEPS, max_size=12))
def test_any_sequence_of_changes_has_the_same_result_as_a_list(steps: list[Any]) -> None:
    """The model is a list of pairs of text and status."""

    async def compare() -> None:
        async with holdfast.open("sqlite://:memory:") as hf:
            kit, model = Kit(HoldfastChatStore(hf)), list[tuple[str, MessageStatus]]()
            for number, (kind, count, status) in enumerate(steps):
                texts = [f"{number}.{at}" for at in range(count)]
                oldest = [at for at, (_, one) in enumerate(model) if one == ACTIVE][:count]
                if kind == "add":
                    await kit.add(*texts, status=status)
                    model += [(text, status) for text in texts]
                elif kind == "archive":
                    await kit.store.archive_oldest_messages("k", count)
                    model = [(text, ARCHIVED if at in oldest else one) for at, (text, one) in enumerate(model)]
                elif kind == "delete oldest":
                    await kit.store.delete_oldest_messages("k", count)
                    model = [pair for at, pair in enumerate(model) if at not in oldest]
                elif kind == "delete":
                    await kit.store.delete_message("k", count)
                    model = [pair for at, pair in enumerate(model) if at != count]
                elif kind == "delete all":
                    await kit.store.delete_messages("k", status)
                    model = [(text, one) for text, one in model if status not in (None, one)]
                else:
                    await kit.store.set_messages("k", make(*texts), status)
                    model = [(text, status) for text in texts]
                for wanted in (ACTIVE, ARCHIVED, None):
                    assert await kit.get(wanted) == " ".join(text for text, one in model if wanted in (None, one))

    asyncio.run(compare())


async def test_concurrent_adds_keep_all_messages() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        kit = Kit(HoldfastChatStore(hf))
        await asyncio.gather(*(kit.add(f"m{at}") for at in range(10)))
        assert sorted((await kit.get()).split()) == sorted(f"m{at}" for at in range(10))


async def test_ten_concurrent_deletes_of_the_oldest_return_different_messages() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        store = HoldfastChatStore(hf)
        await store.add_messages("k", make(*(f"m{at}" for at in range(12))))
        deleted = await asyncio.gather(*(HoldfastChatStore(hf).delete_oldest_messages("k", 1) for _ in range(10)))
        assert sorted(list_texts(one) for one in deleted) == sorted(f"m{at}" for at in range(10))
        assert list_texts(await store.get_messages("k", None)) == "m10 m11"


async def test_ten_concurrent_archivings_return_different_messages() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        store = HoldfastChatStore(hf)
        await store.add_messages("k", make(*(f"m{at}" for at in range(12))))
        archived = await asyncio.gather(*(store.archive_oldest_messages("k", 1) for _ in range(10)))
        assert sorted(list_texts(one) for one in archived) == sorted(f"m{at}" for at in range(10))
        assert list_texts(await store.get_messages("k")) == "m10 m11"


async def test_a_cancelled_add_writes_all_messages_or_none() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        store = HoldfastChatStore(hf)
        for waits in range(40):
            before = await store.count_messages("k")
            adding = asyncio.create_task(store.add_messages("k", EVERYTHING[4:7]))
            for _ in range(waits):
                await asyncio.sleep(0)
            adding.cancel()
            await asyncio.gather(adding, return_exceptions=True)
            assert await store.count_messages("k") - before in (0, 3)


async def test_a_cancelled_deletion_deletes_all_messages_or_none() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        store = HoldfastChatStore(hf)
        for waits in range(40):
            await store.set_messages("k", make("a", "b", "c", "d"))
            deleting = asyncio.create_task(store.delete_oldest_messages("k", 2))
            for _ in range(waits):
                await asyncio.sleep(0)
            deleting.cancel()
            await asyncio.gather(deleting, return_exceptions=True)
            assert list_texts(await store.get_messages("k")) in ("a b c d", "c d")


async def test_archiving_and_deleting_everything_write_no_messages() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        store = HoldfastChatStore(hf)
        await store.add_messages("k", make("a", "b", "c", "d"))
        await store.archive_oldest_messages("k", 2)
        await store.delete_messages("k", ACTIVE)
        await store.delete_messages("k")
        session = await hf.get("k")
        assert len(await session.entries(retired=True)) == 4


async def test_deleting_keeps_what_other_programs_wrote_with_the_messages() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        store = HoldfastChatStore(hf)
        await store.add_messages("k", make("a", "b"))
        session = await hf.get("k")
        fields = {"pinned": True, "importance": 0.5, "timestamp": 17, "metadata": {"tag": 1}, "name": "ada"}
        await session.append([{"role": "user", "content": "c", **fields}], note={"event": "handoff"})
        await store.archive_oldest_messages("k", 1)
        await store.delete_oldest_messages("k", 1)
        first, entry, note = await session.entries()
        assert first.message.text == "a"
        assert (entry.pinned, entry.importance, entry.timestamp, entry.metadata) == (True, 0.5, 17, {"tag": 1})
        assert entry.message.name == "ada"
        assert note.message.origin == {"event": "handoff"}


async def test_erasing_a_message_after_a_deleted_one_leaves_no_trace(tmp_path: Path) -> None:
    """Deleting wrote the message again. Erasing it reaches what it was written from, and nothing else."""
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db") as hf:
        store = HoldfastChatStore(hf)
        await store.add_messages("k", make("a", "b", "canary-4711", "d"))
        await store.archive_oldest_messages("k", 1)
        await store.delete_message("k", 1)
        await store.delete_oldest_messages("k", 0)
        await store.delete_message("k", 0)
        assert list_texts(await store.get_messages("k", None)) == "canary-4711 d"
        session = await hf.get("k")
        await hf.erase(session.ref, (await session.entries())[0].seq)
        assert [entry.message.text for entry in await session.entries(retired=True)].count("d") == 3
        assert "canary-4711" not in str(await hf.export(session.ref, retired=True))
    assert b"canary-4711" not in read_files(tmp_path)


async def test_a_memory_and_a_store_can_share_a_session() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        store, memory = HoldfastChatStore(hf, user_id="ada"), HoldfastMemory(hf, "k", user_id="ada", budget=500)
        await store.add_messages("k", make("a", "b", "c"))
        await store.archive_oldest_messages("k", 2)
        assert list_texts(await memory.aget()) == "a b c"  # the working set decides what is sent
        await store.delete_messages("k")
        assert await memory.aget() == []
        assert await HoldfastChatStore(hf).get_keys() == []


async def test_large_images_are_stored_once(tmp_path: Path) -> None:
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db") as hf:
        store = HoldfastChatStore(hf)
        await store.add_messages("k", EVERYTHING)
        await store.delete_oldest_messages("k", 1)
        assert await store.get_messages("k") == EVERYTHING[1:]
    assert count_bytes(tmp_path) < 3_500_000


async def test_another_event_loop_is_refused() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        store = HoldfastChatStore(hf)
        with pytest.raises(WrongEventLoop):
            await asyncio.to_thread(lambda: asyncio.run(store.add_messages("k", make("a"))))


def test_methods_without_await_use_a_portal(tmp_path: Path) -> None:
    with holdfast.Portal(f"sqlite:///{tmp_path}/chat.db") as portal:
        memory = Memory.from_defaults(session_id="k", token_limit=1_000, chat_store=HoldfastChatStore(portal))
        memory.put(ChatMessage(role="user", content="a"))
        memory.put_messages(make("b", "c"))
        assert list_texts(memory.get_all()) == "a b c"
