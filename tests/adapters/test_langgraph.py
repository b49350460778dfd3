"""The checkpointer and the store for LangGraph: its conformance suite, graphs, restarts, owners and synchronous code."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="LangGraph is not installed here: make adapters")

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.base import BaseStore, GetOp, PutOp

import holdfast
from holdfast.adapters.langgraph import HoldfastSaver, HoldfastStore
from holdfast.errors import InvalidRequest
from tests.adapters.pages import run_page

MEMORY = "sqlite://:memory:"
CONFIG: Any = {"configurable": {"thread_id": "t"}}


def build_graph(**parts: Any) -> Any:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("reply", lambda state: {"messages": [("ai", f"Reply {len(state['messages'])}.")]})
    builder.add_edge(START, "reply")
    return builder.compile(**parts)


async def ask(graph: Any, text: str, config: Any = CONFIG) -> list[str]:
    state = await graph.ainvoke({"messages": [("user", text)]}, config)
    return [message.content for message in state["messages"]]


def test_the_conformance_suite_passes(record_property: Callable[[str, object], None]) -> None:
    @checkpointer_test(name="HoldfastSaver")
    async def open_saver() -> AsyncIterator[HoldfastSaver]:
        async with holdfast.open(MEMORY) as hf:
            yield HoldfastSaver(hf)

    report = asyncio.run(validate(open_saver))
    results = report.to_dict()
    assert "FULL" in str(results), results
    groups = results["results"].values()
    failed = sum(one["tests_failed"] + one["tests_skipped"] for one in groups)
    passed = sum(one["tests_passed"] for one in groups)
    record_property("figures", f"{passed} of {passed + failed} checks of langgraph-checkpoint-conformance")


async def test_a_thread_goes_on_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    for number in range(3):
        async with holdfast.open(url) as hf:
            texts = await ask(build_graph(checkpointer=HoldfastSaver(hf)), f"Question {number}")
            assert len(texts) == 2 * (number + 1)


async def test_forty_turns_and_time_travel() -> None:
    async with holdfast.open(MEMORY) as hf:
        saver = HoldfastSaver(hf)
        graph = build_graph(checkpointer=saver)
        for number in range(40):
            await ask(graph, f"Question {number}")
        history = [state async for state in graph.aget_state_history(CONFIG)]
        assert len(history) == 120
        earlier = next(state for state in history if len(state.values.get("messages", ())) == 10)
        forked = await ask(graph, "Another question", earlier.config)
        assert len(forked) == 12
        before = [one.config async for one in saver.alist(CONFIG, limit=2, before=earlier.config)]
        assert len(before) == 2
        assert earlier.config not in before


async def test_owners_do_not_share_threads_and_deleting_a_user_deletes_them() -> None:
    async with holdfast.open(MEMORY) as hf:
        for user in ("ada", "bob"):
            assert len(await ask(build_graph(checkpointer=HoldfastSaver(hf, user_id=user)), "Hello")) == 2
        receipt = await hf.delete_user("ada")
        assert receipt is not None
        assert await HoldfastSaver(hf, user_id="ada").aget_tuple(CONFIG) is None
        assert await HoldfastSaver(hf, user_id="bob").aget_tuple(CONFIG) is not None


def test_invoke_works_with_a_portal(tmp_path: Path) -> None:
    with holdfast.Portal(f"sqlite:///{tmp_path}/chat.db") as portal:
        saver = HoldfastSaver(portal)
        graph = build_graph(checkpointer=saver, store=HoldfastStore(portal))
        for number in range(3):
            graph.invoke({"messages": [("user", f"Question {number}")]}, CONFIG)
        assert len(list(saver.list(CONFIG))) == 9
        assert len(asyncio.run(ask(graph, "From another loop"))) == 8
        saver.copy_thread("t", "copy")
        saver.prune(["copy"])
        assert len(list(saver.list({"configurable": {"thread_id": "copy"}}))) == 1
        saver.delete_thread("t")
        assert saver.get_tuple(CONFIG) is None


async def test_synchronous_calls_without_a_portal_say_what_to_do() -> None:
    async with holdfast.open(MEMORY) as hf:
        with pytest.raises(TypeError, match=r"holdfast\.portal"):
            HoldfastSaver(hf).get_tuple(CONFIG)
        with pytest.raises(TypeError, match=r"holdfast\.portal"):
            HoldfastStore(hf).get(("a",), "b")


async def test_items_of_the_store() -> None:
    async with holdfast.open(MEMORY) as hf:
        store = HoldfastStore(hf)
        await store.aput(("users", "ada"), "seat", {"row": 12, "kind": {"window": True}})
        await store.aput(("users", "bob"), "seat", {"row": 3})
        item = await store.aget(("users", "ada"), "seat")
        assert item is not None
        assert (item.value["row"], item.namespace, item.key) == (12, ("users", "ada"), "seat")
        assert item.created_at == item.updated_at
        wanted: list[tuple[Any, int]] = [({"row": 12}, 1), ({"row": {"$gt": 2}}, 2), ({"kind": {"window": True}}, 1)]
        for fields, number in wanted:
            assert len(await store.asearch(("users",), filter=fields)) == number
        assert len(await store.asearch(("users",), limit=1, offset=1)) == 1
        assert await store.asearch(("user",)) == []
        with pytest.raises(ValueError, match="unknown operator"):
            await store.asearch(("users",), filter={"row": {"$like": 1}})
        await store.adelete(("users", "ada"), "seat")
        assert await store.aget(("users", "ada"), "seat") is None


async def test_namespaces_of_the_store() -> None:
    async with holdfast.open(MEMORY) as hf:
        store = HoldfastStore(hf)
        for namespace in (("a", "b", "c"), ("a", "b", "d"), ("x", "b", "c")):
            await store.aput(namespace, "key", {})
        assert await store.alist_namespaces(prefix=("a",)) == [("a", "b", "c"), ("a", "b", "d")]
        assert await store.alist_namespaces(suffix=("*", "c")) == [("a", "b", "c"), ("x", "b", "c")]
        assert await store.alist_namespaces(max_depth=2) == [("a", "b"), ("x", "b")]
        assert await store.alist_namespaces(limit=1, offset=1) == [("a", "b", "d")]


async def test_a_batch_reads_before_it_writes_and_the_last_write_of_a_key_counts() -> None:
    async with holdfast.open(MEMORY) as hf:
        store = HoldfastStore(hf)
        puts = [PutOp(("n",), "k", {"at": number}) for number in range(3)]
        assert await store.abatch([*puts, GetOp(("n",), "k")]) == [None] * 4
        item = await store.aget(("n",), "k")
        assert item is not None
        assert item.value == {"at": 2}


CRASHING = """
import asyncio, sys
import holdfast
from tests.adapters import test_langgraph as tests

async def main():
    async with holdfast.open(sys.argv[1]) as hf:
        asked = {"messages": [("user", "Find all.")]}
        await tests.build_loop(hf, stop=25).ainvoke(asked, tests.LONG, durability=sys.argv[2])

asyncio.run(main())
"""
LONG: Any = {**CONFIG, "recursion_limit": 500}


def build_loop(hf: holdfast.Holdfast, stop: int | None = None) -> Any:
    """Return a graph that calls a tool 40 times and stores each result as an item; tool call `stop` kills the process."""

    def count(state: MessagesState) -> int:
        return sum(message.type == "tool" for message in state["messages"])

    def reply(state: MessagesState) -> Any:
        order = count(state)
        if order == 40:
            return {"messages": [AIMessage("Found all.")]}
        return {"messages": [AIMessage("", tool_calls=[{"name": "find", "args": {}, "id": f"call_{order}"}])]}

    async def find(state: MessagesState, *, store: BaseStore) -> Any:
        order = count(state)
        await store.aput(("orders",), f"{order:02}", {"order": order})
        if order == stop:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"messages": [ToolMessage(f"Order {order}.", tool_call_id=f"call_{order}")]}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("reply", reply)
    builder.add_node("find", find)
    builder.add_edge(START, "reply")
    builder.add_conditional_edges("reply", lambda state: "find" if state["messages"][-1].tool_calls else END)
    builder.add_edge("find", "reply")
    return builder.compile(checkpointer=HoldfastSaver(hf), store=HoldfastStore(hf))


@pytest.mark.parametrize(("durability", "fewest"), [("sync", 25), ("async", 1)])
async def test_a_tool_loop_continues_after_the_process_was_killed(durability: str, fewest: int, tmp_path: Path) -> None:
    """With `async`, LangGraph saves a checkpoint while the next step runs, so some of the newest may be missing."""
    url = f"sqlite:///{tmp_path}/chat.db"
    command = [sys.executable, "-c", CRASHING, url, durability]
    ended = await asyncio.to_thread(subprocess.run, command, check=False, timeout=300)
    assert ended.returncode == -signal.SIGKILL
    async with holdfast.open(url) as hf:
        graph = build_loop(hf)
        before = (await graph.aget_state(CONFIG)).values["messages"]
        assert fewest <= sum(message.type == "tool" for message in before) <= 25
        messages = (await graph.ainvoke(None, LONG))["messages"]
        assert messages[: len(before)] == before
        assert messages[-1].content == "Found all."
        results = [message.tool_call_id for message in messages if message.type == "tool"]
        calls = [call["id"] for message in messages if message.type == "ai" for call in message.tool_calls]
        assert results == calls == [f"call_{number}" for number in range(40)]
        items = await HoldfastStore(hf).asearch(("orders",), limit=100)
        assert [item.value["order"] for item in items] == list(range(40))


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("langgraph")


async def find(store: HoldfastStore, query: str, namespace: tuple[str, ...] = ("notes",), **more: Any) -> list[str]:
    return [item.key for item in await store.asearch(namespace, query=query, **more)]


async def test_a_store_with_fields_is_searched_by_a_query() -> None:
    """Best first, with scores, in a namespace and those below it; other users' items are never found."""
    async with holdfast.open(MEMORY) as hf:
        store = HoldfastStore(hf, user_id="ada", fields=["text", "more[*].text"])
        await store.aput(("notes", "a"), "1", {"text": "The parcel to Oslo arrived late", "n": 1})
        await store.aput(("notes", "b"), "2", {"text": "A window seat", "more": [{"text": "a parcel"}], "n": 2})
        await store.aput(("notes",), "3", {"other": "parcel"})
        await store.aput(("else",), "4", {"text": "late parcel"})
        await HoldfastStore(hf, user_id="bob", fields=["text"]).aput(("notes",), "5", {"text": "late parcel"})
        found = await store.asearch(("notes",), query="late parcels")
        assert [(item.namespace, item.key) for item in found] == [(("notes", "a"), "1"), (("notes", "b"), "2")]
        scores = [item.score for item in found]
        assert None not in scores
        assert scores == sorted(scores, reverse=True)
        assert await find(store, "parcel", ("notes", "b")) == ["2"]
        assert await find(store, "parcel", filter={"n": 1}) == ["1"]
        assert await find(store, "parcel", offset=1, limit=5) == (await find(store, "parcel"))[1:]
        assert len(await find(store, "parcel", limit=1)) == 1
        assert sorted(await find(store, "parcel", ())) == ["1", "2", "4"]
        await store.aput(("notes", "a"), "1", {"text": "changed"})
        await store.adelete(("notes", "b"), "2")
        assert (await find(store, "parcel"), await find(store, "changed")) == ([], ["1"])


async def test_an_item_can_name_its_own_searchable_paths() -> None:
    """Or none; whole items are searched by `$`, and a long text by its beginning."""
    async with holdfast.open(MEMORY) as hf:
        store = HoldfastStore(hf, fields=["$"])
        await store.aput(("notes",), "whole", {"a": {"b": "parcel"}})
        await store.aput(("notes",), "path", {"a": "parcel", "b": "window"}, index=["b"])
        await store.aput(("notes",), "none", {"a": "parcel window"}, index=False)
        await store.aput(("notes",), "empty", {"a": "parcel"}, index=["missing"])
        await store.aput(("notes",), "long", {"a": "giraffe " + "ü" * 200_000}, index=["a"])
        assert await find(store, "parcel") == ["whole"]
        assert await find(store, "window") == ["path"]
        assert await find(store, "giraffe") == ["long"]
        plain = HoldfastStore(hf)
        await plain.aput(("notes",), "plain", {"a": "parcel"}, index=["a"])
        assert await find(store, "parcel") == ["whole"]
        assert "plain" in await find(plain, "parcel")
        with pytest.raises(TypeError, match="list of paths"):
            HoldfastStore(hf, fields="text")


async def test_a_query_needs_an_index() -> None:
    async with holdfast.open(MEMORY, index=None) as hf:
        store = HoldfastStore(hf, fields=["text"])
        await store.aput(("notes",), "1", {"text": "parcel"})
        with pytest.raises(InvalidRequest, match="no index"):
            await store.asearch(("notes",), query="parcel")
