"""Behaviours of LangGraph's checkpointers and stores: the same tests for its own in memory (the oracles) and for ours."""

from __future__ import annotations

import asyncio
import copy
import operator
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, TypedDict

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="LangGraph is not installed here: make adapters")

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import BaseStore, InvalidNamespaceError
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, Send, interrupt

import holdfast
from holdfast.adapters.langgraph import HoldfastSaver, HoldfastStore
from tests.adapters.oracle import expect_difference

# -- checkpoints -----------------------------------------------------------------------------

SAVER_REASONS: Final[dict[str, dict[str, str]]] = {
    "in_memory": {},
    "sqlite": {},
    "holdfast": {
        "test_ids_of_threads_may_be_empty_or_long": "the id is a label of a namespace, which has 1 to 512 bytes in all",
    },
}
"""The known differences of each checkpointer, by the name of the test."""


@pytest.fixture(params=list(SAVER_REASONS))
async def saver(request: pytest.FixtureRequest) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """Each checkpointer in turn. A test that fails for a known reason is expected to fail."""
    expect_difference(request, SAVER_REASONS[request.param])
    if request.param == "in_memory":
        yield InMemorySaver()
    elif request.param == "sqlite":
        async with AsyncSqliteSaver.from_conn_string(":memory:") as opened:
            yield opened
    else:
        async with holdfast.open("sqlite://:memory:") as hf:
            yield HoldfastSaver(hf)


def place(thread: str = "t", namespace: str = "", name: str | None = None) -> Any:
    return {
        "configurable": {"thread_id": thread, "checkpoint_ns": namespace, **({"checkpoint_id": name} if name else {})}
    }


async def put(saver: BaseCheckpointSaver[Any], number: int, config: Any = None, **metadata: Any) -> Any:
    """Put a checkpoint whose id sorts by its number, and return its config."""
    values = metadata.pop("values", {"number": number})
    checkpoint = {**empty_checkpoint(), "id": f"{number:08}", "channel_values": values}
    checkpoint["channel_versions"] = dict.fromkeys(values, number + 1)
    given: Any = {"source": "loop", "step": number, "parents": {}, **metadata}
    return await saver.aput(config or place(), checkpoint, given, checkpoint["channel_versions"])  # type: ignore[arg-type, typeddict-item]


async def get(saver: BaseCheckpointSaver[Any], config: Any = None) -> Any:
    found = await saver.aget_tuple(config or place())
    assert found is not None
    return found


async def list_steps(saver: BaseCheckpointSaver[Any], config: Any = None, **options: Any) -> list[int]:
    return [one.metadata["step"] async for one in saver.alist(config, **options)]


VALUES: Final[dict[str, Any]] = {
    "messages": [
        HumanMessage("Where?", id="1"),
        AIMessage("Wait.", id="2", tool_calls=[{"name": "f", "args": {"n": None}, "id": "c"}]),
    ],
    "plain": {"a": [None, 1.5, True, {"b": []}]},
    "bytes": bytes(range(256)),
    "set": {1, 2},
    "infinite": [float("inf"), -0.0],
    "whole": 2**63,
    "text": "é 👍 \0",
    "large": "x" * 2_000_000,
    "none": None,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=list(VALUES))
async def test_values_of_channels_are_kept(saver: BaseCheckpointSaver[Any], value: Any) -> None:
    config = await put(saver, 1, values={"channel": value})
    await saver.aput_writes(config, [("channel", value)], "task")
    found = await get(saver)
    assert found.checkpoint["channel_values"] == {"channel": value}
    assert found.pending_writes == [("task", "channel", value)]


async def test_checkpoints_are_copies(saver: BaseCheckpointSaver[Any]) -> None:
    values = {"channel": [{"a": 1}]}
    await put(saver, 1, values=values)
    values["channel"].append({"b": 2})
    for _ in range(2):
        found = await get(saver)
        assert found.checkpoint["channel_values"] == {"channel": [{"a": 1}]}
        found.checkpoint["channel_values"]["channel"].clear()


@pytest.mark.parametrize("name", ["a/b", "é 👍", "..", "a#b", " a ", "x" * 200, "a|b:c", "'; --", "a%b_c"])
async def test_ids_of_threads_may_have_any_characters(saver: BaseCheckpointSaver[Any], name: str) -> None:
    await put(saver, 1, place(name))
    assert (await get(saver, place(name))).metadata["step"] == 1
    assert await list_steps(saver, place(name)) == [1]
    assert await saver.aget_tuple(place(f"{name}2")) is None


@pytest.mark.parametrize("name", ["", "x" * 600], ids=["empty", "long"])
async def test_ids_of_threads_may_be_empty_or_long(saver: BaseCheckpointSaver[Any], name: str) -> None:
    await put(saver, 1, place(name))
    assert (await get(saver, place(name))).metadata["step"] == 1


async def test_concurrent_writes_are_all_kept(saver: BaseCheckpointSaver[Any]) -> None:
    config = await put(saver, 1)
    await asyncio.gather(*(saver.aput_writes(config, [("a", number)], f"task{number}") for number in range(12)))
    assert sorted(write[2] for write in (await get(saver)).pending_writes) == list(range(12))


async def test_versions_of_a_channel_grow(saver: BaseCheckpointSaver[Any]) -> None:
    version, versions = None, []
    for _ in range(12):
        version = saver.get_next_version(version, None)
        versions.append(version)
    assert versions == sorted(versions)
    assert len(set(versions)) == 12


# -- graphs ------------------------------------------------------------------------------------


class State(TypedDict, total=False):
    """The state of the graphs below."""

    texts: Annotated[list[str], operator.add]
    approved: bool


def build(saver: Any, store: Any = None) -> Any:
    """Build a graph that asks a person, works in parallel, and may fail."""
    builder: Any = StateGraph(State)
    builder.add_node("begin", lambda state: {"texts": [f"begun {len(state['texts'])}"]})
    builder.add_node("approve", lambda _: {"approved": interrupt("Approve?")})
    builder.add_node("work", lambda state: {"texts": [f"worked on {state}"]})
    builder.add_edge(START, "begin")
    builder.add_edge("begin", "approve")
    builder.add_conditional_edges("approve", lambda _: [Send("work", n) for n in range(3)], ["work"])
    builder.add_edge("work", END)
    return builder.compile(checkpointer=saver, store=store)


async def run_twice(graph: Any, config: Any) -> None:
    for text in ("first", "second"):
        await graph.ainvoke({"texts": [text]}, config)
        await graph.ainvoke(Command(resume=True), config)


async def travel(graph: Any, config: Any) -> None:
    await run_twice(graph, config)
    history = [one async for one in graph.aget_state_history(config)]
    await graph.ainvoke(None, history[len(history) // 2].config)


async def update(graph: Any, config: Any) -> None:
    await graph.ainvoke({"texts": ["first"]}, config)
    await graph.aupdate_state(config, {"texts": ["corrected"]}, as_node="begin")
    await graph.ainvoke(Command(resume=False), config)


@pytest.mark.parametrize("run", [run_twice, travel, update], ids=lambda run: run.__name__)
async def test_a_graph_leaves_the_same_history_as_with_langgraphs_saver_in_memory(run: Any) -> None:
    async def describe(saver: Any) -> list[Any]:
        graph, config = build(saver), {"configurable": {"thread_id": "t"}}
        await run(graph, config)
        return [
            (copy.deepcopy(one.values), one.next, one.metadata["source"], one.metadata["step"], len(one.tasks))
            async for one in graph.aget_state_history(config)
        ]

    async with holdfast.open("sqlite://:memory:") as hf:
        expected = await describe(InMemorySaver())
        assert len(expected) >= 4
        assert await describe(HoldfastSaver(hf)) == expected


# -- items of a store ----------------------------------------------------------------------------

EMPTY: Final = "a namespace stays when its items are deleted, or were only looked for"
JSON: Final = "values are stored as JSON"
STORE_REASONS: Final[dict[str, dict[str, str]]] = {
    "in_memory": {
        "test_a_missing_item_is_none": EMPTY,
        "test_a_namespace_without_items_is_not_listed": EMPTY,
        "test_returned_items_are_copies": "the stored objects are returned",
        "test_the_time_of_creation_stays": "an item that is put again is a new one",
    },
    "holdfast": {
        "test_values_of_items_are_kept[half_pair]": "databases refuse half a surrogate pair",
        "test_values_of_items_are_kept[infinite]": JSON,
        "test_values_of_items_are_kept[set]": JSON,
        "test_searches_return_items_in_the_order_of_their_creation": "items are in the order of namespaces and keys",
        "test_a_filter_of_lists_compares_objects_partly": "lists are compared as a whole",
        "test_comparing_a_missing_field_is_an_error": "a missing field does not fit",
        "test_keys_may_be_empty_or_long": "a key has 1 to 512 bytes",
        "test_a_namespace_may_have_many_labels": "a namespace has at most 14 labels",
    },
}
"""The known differences of each store, by the name of the test."""


@pytest.fixture(params=list(STORE_REASONS))
async def store(request: pytest.FixtureRequest) -> AsyncIterator[BaseStore]:
    """Each store in turn. A test that fails for a known reason is expected to fail."""
    expect_difference(request, STORE_REASONS[request.param])
    if request.param == "in_memory":
        yield InMemoryStore()
    else:
        async with holdfast.open("sqlite://:memory:") as hf:
            yield HoldfastStore(hf)


async def find(store: BaseStore, *namespace: str, **options: Any) -> list[str]:
    """Return the sorted keys of the items that a search finds."""
    return sorted(item.key for item in await store.asearch(namespace, **options))


async def test_a_missing_item_is_none(store: BaseStore) -> None:
    assert await store.aget(("a",), "k") is None
    assert await store.asearch(("a",)) == []
    assert await store.alist_namespaces() == []
    await store.adelete(("a",), "k")


ITEM_VALUES: Final[dict[str, Any]] = {
    "plain": {"a": [None, 1.5, True, {"b": []}], "c": "é 👍"},
    "numbers": {"n": [2**53 + 1, -0.0, 1e300]},
    "whole": {"n": 2**70},
    "nul": {"t": "a\0b"},
    "half_pair": {"t": "a\ud83d"},
    "infinite": {"n": float("inf")},
    "large": {"t": "x" * 2_000_000},
    "empty": {},
    "none": {"n": None},
    "set": {"s": {1}},
}


@pytest.mark.parametrize("value", ITEM_VALUES.values(), ids=list(ITEM_VALUES))
async def test_values_of_items_are_kept(store: BaseStore, value: Any) -> None:
    await store.aput(("a",), "k", value)
    item = await store.aget(("a",), "k")
    assert item is not None
    assert repr(item.value) == repr(value)


async def test_a_value_that_is_changed_afterwards_stays_stored(store: BaseStore) -> None:
    value = {"a": 1}
    await store.aput(("a",), "k", value)
    value["a"] = 2
    item = await store.aget(("a",), "k")
    assert item is not None
    assert item.value == {"a": 1}


async def test_returned_items_are_copies(store: BaseStore) -> None:
    await store.aput(("a",), "k", {"a": [1]})
    for _ in range(2):
        item = await store.aget(("a",), "k")
        assert item is not None
        assert item.value == {"a": [1]}
        item.value["a"].append(2)


async def test_the_time_of_creation_stays(store: BaseStore) -> None:
    times = []
    for number in range(2):
        await store.aput(("a",), "k", {"n": number})
        item = await store.aget(("a",), "k")
        assert item is not None
        times.append(item.created_at)
        await asyncio.sleep(0.005)
    assert times[0] == times[1]


async def test_searches_return_items_in_the_order_of_their_creation(store: BaseStore) -> None:
    for key in ("b", "a", "c"):
        await store.aput(("a",), key, {})
    assert [item.key for item in await store.asearch(("a",))] == ["b", "a", "c"]


FILTERS: Final[dict[str, tuple[Any, list[str]]]] = {
    "equal": ({"n": 2}, ["k2"]),
    "two_fields": ({"n": 2, "kind": {"x": 1}}, []),
    "nested": ({"kind": {"x": 1}}, ["k1", "k3"]),
    "partly_nested": ({"kind": {}}, ["k0", "k1", "k2", "k3"]),
    "none": ({"none": None}, ["k0", "k1", "k2", "k3"]),
    "missing": ({"unknown": 1}, []),
    "list": ({"tags": ["a", "b"]}, ["k0", "k1", "k2", "k3"]),
    "part_of_a_list": ({"tags": ["a"]}, []),
    "greater": ({"n": {"$gt": 1}}, ["k2", "k3"]),
    "between": ({"n": {"$gte": 1, "$lt": 3}}, ["k1", "k2"]),
    "not_equal": ({"n": {"$ne": 2}}, ["k0", "k1", "k3"]),
    "equal_operator": ({"n": {"$eq": 0}}, ["k0"]),
    "not_equal_missing": ({"unknown": {"$ne": 2}}, ["k0", "k1", "k2", "k3"]),
    "nested_operator": ({"kind": {"x": {"$lte": 0}}}, ["k0", "k2"]),
    "text_as_number": ({"text": {"$gt": 1}}, ["k2", "k3"]),
    "true_is_one": ({"n": True}, ["k1"]),
}


@pytest.mark.parametrize(("wanted", "keys"), FILTERS.values(), ids=list(FILTERS))
async def test_searches_filter_by_fields(store: BaseStore, wanted: Any, keys: list[str]) -> None:
    for number in range(4):
        value = {"n": number, "kind": {"x": number % 2, "y": 1}, "none": None, "tags": ["a", "b"], "text": str(number)}
        await store.aput(("a",), f"k{number}", value)
    assert await find(store, "a", filter=wanted) == keys


async def test_a_filter_of_lists_compares_objects_partly(store: BaseStore) -> None:
    await store.aput(("a",), "k", {"parts": [{"x": 1, "y": 2}]})
    assert await find(store, "a", filter={"parts": [{"x": 1}]}) == ["k"]


async def test_an_unknown_operator_is_refused(store: BaseStore) -> None:
    await store.aput(("a",), "k", {"n": 1})
    with pytest.raises(ValueError, match="operator"):
        await store.asearch(("a",), filter={"n": {"$like": 1}})


async def test_comparing_a_missing_field_is_an_error(store: BaseStore) -> None:
    await store.aput(("a",), "k", {"n": 1})
    with pytest.raises(TypeError):
        await store.asearch(("a",), filter={"unknown": {"$gt": 1}})


async def test_a_namespace_without_items_is_not_listed(store: BaseStore) -> None:
    await store.aput(("a",), "k", {})
    await store.adelete(("a",), "k")
    assert await store.alist_namespaces() == []


@pytest.mark.parametrize(
    "namespace", [(), ("",), ("a.b",), ("langgraph", "a")], ids=["none", "empty", "dot", "reserved"]
)
async def test_invalid_namespaces_are_refused(store: BaseStore, namespace: tuple[str, ...]) -> None:
    with pytest.raises(InvalidNamespaceError):
        await store.aput(namespace, "k", {})


@pytest.mark.parametrize("name", ["a/b", "é 👍", "..", "a#b", " a ", "x" * 200, "a%b_c", "'; --", "*"])
async def test_keys_and_labels_may_have_any_characters(store: BaseStore, name: str) -> None:
    label = name.replace(".", "") or "x"
    await store.aput(("a", label), name, {"n": 1})
    assert await find(store, "a", label) == [name]
    assert await store.aget(("a", label), f"{name}2") is None


@pytest.mark.parametrize("name", ["", "x" * 600], ids=["empty", "long"])
async def test_keys_may_be_empty_or_long(store: BaseStore, name: str) -> None:
    await store.aput(("a",), name, {"n": 1})
    assert await store.aget(("a",), name) is not None


async def test_a_namespace_may_have_many_labels(store: BaseStore) -> None:
    namespace = tuple(f"label{number}" for number in range(30))
    await store.aput(namespace, "k", {"n": 1})
    assert await store.aget(namespace, "k") is not None


async def test_concurrent_puts_are_all_done(store: BaseStore) -> None:
    await asyncio.gather(*(store.aput(("a",), f"k{number}", {"n": number}) for number in range(20)))
    assert len(await store.asearch(("a",), limit=50)) == 20
