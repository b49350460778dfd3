"""A checkpointer and a store for LangGraph, on Holdfast's records.

    graph = builder.compile(checkpointer=HoldfastSaver(hf), store=HoldfastStore(hf))

With an open `Holdfast`, graphs run with `ainvoke` and `astream`. For `invoke`, `stream` and several event loops, pass a
`holdfast.Portal()`.

Facts about langgraph-checkpoint 4.3 that this module relies on:

- Ids of checkpoints sort by time.
- Pending writes are returned in the order of `writes_sort_key`.
- A write with a special index (`WRITES_IDX_MAP`) replaces an earlier one. Other writes do not.
- A delta channel is rebuilt from the writes of a checkpoint's ancestors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    SerializerProtocol,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    get_text_at_path,
)

import holdfast

__all__ = ["HoldfastSaver", "HoldfastStore"]

T = TypeVar("T")
CHECKPOINTS: Final = ("langgraph", "checkpoints")
STORE: Final = ("langgraph", "store")
AT_ONCE: Final = 100
"""Maximum number of records that are written in one transaction, or read in one page."""
_TEXT_BYTES: Final = 64 * 1024
"""Longest searchable text of a record."""
_NEEDS_PORTAL: Final = "synchronous calls need holdfast.Portal(…) in place of an open Holdfast"
_FIRST_INDEX: Final = min(WRITES_IDX_MAP.values())


class _Bridge:
    """Calls functions with a `Holdfast` from its own event loop, from another event loop, or from synchronous code.

    Args:
        hf: an open `Holdfast`, or a portal.
        user_id: owner of the records; None: all users of the tenant share them.
    """

    def __init__(self, hf: holdfast.Holdfast | holdfast.Portal, user_id: str | None) -> None:
        self._hf = hf
        self.user_id = user_id

    async def run(self, function: Callable[[holdfast.Holdfast], Awaitable[T]]) -> T:
        """Call `function` with the `Holdfast` in the event loop of the `Holdfast`, and return the result."""
        if isinstance(self._hf, holdfast.Portal):
            return await self._hf.run(function, self._hf.hf)
        return await function(self._hf)

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Await `function`, which uses `run`, in the portal's loop, and return its result. For synchronous code."""
        if not isinstance(self._hf, holdfast.Portal):
            raise TypeError(_NEEDS_PORTAL)
        return self._hf.call(function)

    def open(self, hf: holdfast.Holdfast, *labels: str) -> holdfast.Records:
        """Return the owner's records in a namespace."""
        return hf.records(labels, user_id=self.user_id)


class _StoredCheckpoint(msgspec.Struct, array_like=True):
    """The stored form of a checkpoint: the checkpoint and its metadata as the serializer encoded them."""

    kind: str
    data: bytes
    metadata_kind: str
    metadata: bytes
    parent: str | None = None


class _StoredWrite(msgspec.Struct, array_like=True):
    """The stored form of a pending write."""

    task_path: str
    task_id: str
    index: int
    channel: str
    kind: str
    data: bytes


class _Place(NamedTuple):
    """The identity of a checkpoint: its thread, the namespace of its graph, and its id."""

    thread: str
    graph: str
    id: str | None

    @classmethod
    def from_config(cls, config: RunnableConfig) -> _Place:
        configurable = config["configurable"]
        return cls(str(configurable["thread_id"]), configurable.get("checkpoint_ns", ""), get_checkpoint_id(config))

    @property
    def labels(self) -> tuple[str, ...]:
        """Namespace of the records. A graph may have an empty namespace, but a label may not be empty."""
        return (*CHECKPOINTS, self.thread, f"ns:{self.graph}")

    def to_config(self) -> RunnableConfig:
        return {"configurable": {"thread_id": self.thread, "checkpoint_ns": self.graph, "checkpoint_id": self.id}}


class HoldfastSaver(BaseCheckpointSaver[int]):
    """Stores the checkpoints of LangGraph's threads.

    Args:
        hf: an open `Holdfast`, or a portal.
        user_id: owner of all threads. Deleting the user deletes the checkpoints. None: all users of the tenant share the threads.
        serde: converts values to bytes; None: LangGraph's own.
    """

    def __init__(
        self,
        hf: holdfast.Holdfast | holdfast.Portal,
        *,
        user_id: str | None = None,
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        self._bridge = _Bridge(hf, user_id)

    # -- reading -------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint with its pending writes, or None if it does not exist.

        If `config` contains no checkpoint id, return the thread's newest checkpoint.
        """
        return await self._bridge.run(lambda hf: self._get_tuple(hf, _Place.from_config(config)))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Do the same as `aget_tuple` in synchronous code."""
        return self._bridge.call(lambda: self.aget_tuple(config))

    async def _get_tuple(self, hf: holdfast.Holdfast, place: _Place) -> CheckpointTuple | None:
        records = self._bridge.open(hf, *place.labels)
        if place.id is not None:
            record: Any = await records.get(f"c/{place.id}")
        else:
            record = next(iter((await records.list("c/", limit=1, descending=True)).records), None)
        return None if record is None else await self._load(records, place, record)

    async def _load(self, records: holdfast.Records, place: _Place, record: Any) -> CheckpointTuple:
        """Return a stored checkpoint with its pending writes."""
        place = place._replace(id=record.name.key.removeprefix("c/"))
        stored = _decode(record.value, _StoredCheckpoint)
        writes = [_decode(one.value, _StoredWrite) async for one in records.iterate(f"w/{place.id}/")]
        writes.sort(key=lambda one: writes_sort_key(one.task_path, one.task_id, one.index))
        return CheckpointTuple(
            place.to_config(),
            self.serde.loads_typed((stored.kind, stored.data)),
            self.serde.loads_typed((stored.metadata_kind, stored.metadata)),
            None if stored.parent is None else place._replace(id=stored.parent).to_config(),
            [(one.task_id, one.channel, self.serde.loads_typed((one.kind, one.data))) for one in writes],
        )

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first; see `BaseCheckpointSaver.alist`."""
        places = await self._bridge.run(lambda hf: self._list_places(hf, config, before))
        found = 0
        for place in places:
            if limit is not None and found >= limit:
                return
            one = await self.aget_tuple(place.to_config())
            if one is not None and _matches(one.metadata, filter):
                found += 1
                yield one

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Do the same as `alist` in synchronous code."""
        found = 0
        places = self._bridge.call(lambda: self._bridge.run(lambda hf: self._list_places(hf, config, before)))
        for place in places:
            if limit is not None and found >= limit:
                return
            one = self.get_tuple(place.to_config())
            if one is not None and _matches(one.metadata, filter):
                found += 1
                yield one

    async def _list_places(
        self, hf: holdfast.Holdfast, config: RunnableConfig | None, before: RunnableConfig | None
    ) -> Sequence[_Place]:
        """Return the identities of the checkpoints that `alist` yields before it filters them, newest first."""
        wanted = _Place.from_config(config) if config else None
        end = get_checkpoint_id(before) if before else None
        if wanted is not None and wanted.id is not None and "checkpoint_ns" in config["configurable"]:  # type: ignore[index]
            return [wanted] if end is None or wanted.id < end else []
        labels = () if wanted is None else (wanted.thread,)
        namespaces = await _list_namespaces(self._bridge.open(hf, *CHECKPOINTS, *labels))
        if wanted is not None and config is not None and "checkpoint_ns" in config["configurable"]:
            namespaces = [one for one in namespaces if one == wanted.labels]
        places = []
        for namespace in namespaces:
            records = self._bridge.open(hf, *namespace)
            thread, graph = namespace[-2], namespace[-1].removeprefix("ns:")
            async for key in _iter_keys(records, "c/"):
                place = _Place(thread, graph, key.removeprefix("c/"))
                if (end is None or str(place.id) < end) and (wanted is None or wanted.id in (None, place.id)):
                    places.append(place)
        return sorted(places, key=lambda place: str(place.id), reverse=True)

    # -- writing -------------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, and return its config."""
        return await self._bridge.run(lambda hf: self._put(hf, config, checkpoint, metadata))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Do the same as `aput` in synchronous code."""
        return self._bridge.call(lambda: self.aput(config, checkpoint, metadata, new_versions))

    async def _put(
        self, hf: holdfast.Holdfast, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
    ) -> RunnableConfig:
        place = _Place.from_config(config)
        kind, data = self.serde.dumps_typed(checkpoint)
        metadata_kind, packed = self.serde.dumps_typed(get_checkpoint_metadata(config, metadata))
        stored = _StoredCheckpoint(kind, data, metadata_kind, packed, place.id)
        await self._bridge.open(hf, *place.labels).put(f"c/{checkpoint['id']}", msgspec.msgpack.encode(stored))
        return place._replace(id=checkpoint["id"]).to_config()

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store writes of a task, which belong to a checkpoint."""
        await self._bridge.run(lambda hf: self._put_writes(hf, config, writes, task_id, task_path))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Do the same as `aput_writes` in synchronous code."""
        self._bridge.call(lambda: self.aput_writes(config, writes, task_id, task_path))

    async def _put_writes(
        self,
        hf: holdfast.Holdfast,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> None:
        place = _Place.from_config(config)
        records = self._bridge.open(hf, *place.labels)
        values: dict[str, bytes] = {}
        for at, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, at)
            kind, data = self.serde.dumps_typed(value)
            stored = _StoredWrite(task_path, task_id, index, channel, kind, data)
            values[f"w/{place.id}/{task_id}/{index - _FIRST_INDEX:06d}"] = msgspec.msgpack.encode(stored)
        if not all(channel in WRITES_IDX_MAP for channel, _ in writes):
            for keys in _split(list(values)):
                for known in await records.get_many(keys):
                    del values[known]
        for keys in _split(list(values)):
            await records.put_many({key: values[key] for key in keys})

    # -- threads -------------------------------------------------------------

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints and writes of a thread."""
        await self._bridge.run(lambda hf: self._bridge.open(hf, *CHECKPOINTS, str(thread_id)).clear(nested=True))

    def delete_thread(self, thread_id: str) -> None:
        """Do the same as `adelete_thread` in synchronous code."""
        self._bridge.call(lambda: self.adelete_thread(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints and writes of runs. This method reads all checkpoints of the owner."""
        async for one in self.alist(None):
            if one.metadata.get("run_id") in run_ids:
                place = _Place.from_config(one.config)
                await self._bridge.run(partial(self._delete, place=place))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Do the same as `adelete_for_runs` in synchronous code."""
        self._bridge.call(lambda: self.adelete_for_runs(run_ids))

    async def _delete(self, hf: holdfast.Holdfast, place: _Place) -> None:
        records = self._bridge.open(hf, *place.labels)
        keys = [f"c/{place.id}", *[key async for key in _iter_keys(records, f"w/{place.id}/")]]
        for some in _split(keys):
            await records.change([records.make_delete(key) for key in some])

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another thread."""
        await self._bridge.run(lambda hf: self._copy(hf, str(source_thread_id), str(target_thread_id)))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Do the same as `acopy_thread` in synchronous code."""
        self._bridge.call(lambda: self.acopy_thread(source_thread_id, target_thread_id))

    async def _copy(self, hf: holdfast.Holdfast, source: str, target: str) -> None:
        async for record in self._bridge.open(hf, *CHECKPOINTS, source).iterate(nested=True):
            copied = self._bridge.open(hf, *CHECKPOINTS, target, record.name.namespace[-1])
            await copied.put(record.name.key, record.value)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints of threads (`delete`), or all except those that are still needed (`keep_latest`).

        With `keep_latest`, the newest checkpoint of each graph is kept. If this checkpoint has channels whose values are rebuilt from
        earlier writes, its ancestors are kept too.
        """
        for thread_id in thread_ids:
            if strategy == "delete":
                await self.adelete_thread(thread_id)
                continue
            config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
            newest: dict[str, CheckpointTuple] = {}
            async for one in self.alist(config):
                graph = _Place.from_config(one.config).graph
                if newest.setdefault(graph, one) is not one and not _needs_ancestors(newest[graph]):
                    place = _Place.from_config(one.config)
                    await self._bridge.run(partial(self._delete, place=place))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Do the same as `aprune` in synchronous code."""
        self._bridge.call(lambda: self.aprune(thread_ids, strategy=strategy))


def _needs_ancestors(newest: CheckpointTuple) -> bool:
    """Return True if a checkpoint has channels without values, which are then rebuilt from writes of its ancestors.

    LangGraph's own channels, for the start of a run and for branches, have no value between steps and are not rebuilt.
    """
    empty = newest.checkpoint["channel_versions"].keys() - newest.checkpoint["channel_values"].keys()
    return any(not name.startswith(("__", "branch:")) for name in empty)


def _matches(metadata: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    return all(name in metadata and metadata[name] == value for name, value in (wanted or {}).items())


def _decode(data: Any, kind: type[T]) -> T:
    return msgspec.msgpack.decode(data, type=kind)


def _split(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), AT_ONCE):
        yield items[start : start + AT_ONCE]


async def _iter_keys(records: holdfast.Records, prefix: str) -> AsyncIterator[str]:
    """Yield all keys with a prefix, without reading the values."""
    after = None
    while True:
        page = await records.list(prefix, after=after, limit=1_000, values=False)
        for one in page.records:
            yield one.name.key
        if not page.has_more:
            return
        after = page.records[-1].name


async def _list_namespaces(records: holdfast.Records) -> list[tuple[str, ...]]:
    """Return all namespaces of an owner below a namespace."""
    found: list[tuple[str, ...]] = []
    while page := await records.namespaces(after=found[-1] if found else None, limit=1_000):
        found += page
    return found


# -- the store -----------------------------------------------------------------


class HoldfastStore(BaseStore):
    """Stores LangGraph's items. Searches filter by fields, and with `fields` also find items by a `query`.

    Args:
        hf: an open `Holdfast`, or a portal.
        user_id: owner of all items; None: all users of the tenant share them.
        fields: paths of the values whose texts a `query` searches, such as `["text", "notes[*].content"]`; `["$"]`: whole items.
            `put(…, index=…)` replaces them for one item. None: no item is searched, and a `query` does not change the result.
    """

    supports_ttl = True

    def __init__(
        self,
        hf: holdfast.Holdfast | holdfast.Portal,
        *,
        user_id: str | None = None,
        fields: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self._bridge = _Bridge(hf, user_id)
        if isinstance(fields, str):
            raise TypeError(f"fields must be a list of paths, such as [{fields!r}], not a string")
        self._fields = None if fields is None else tuple(fields)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Perform operations, and return their results in order."""
        return await self._bridge.run(lambda hf: self._batch(hf, list(ops)))

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Do the same as `abatch` in synchronous code."""
        return self._bridge.call(lambda: self.abatch(ops))

    async def _batch(self, hf: holdfast.Holdfast, ops: Sequence[Op]) -> list[Result]:
        """Do all reads first, then all writes, as LangGraph's own stores do. Of several writes to a key, only the last is done."""
        results: list[Result] = []
        puts: dict[tuple[tuple[str, ...], str], PutOp] = {}
        for op in ops:
            match op:
                case GetOp():
                    record = await self._bridge.open(hf, *STORE, *op.namespace).get(op.key)
                    results.append(None if record is None else _to_item(record))
                case SearchOp():
                    results.append(await self._search(hf, op))
                case ListNamespacesOp():
                    results.append(await self._list_namespaces(hf, op))
                case PutOp():
                    puts[(op.namespace, op.key)] = op
                    results.append(None)
                case _:
                    raise ValueError(f"unknown operation {type(op).__name__}")
        changes = []
        for (namespace, key), op in puts.items():
            records = self._bridge.open(hf, *STORE, *namespace)
            ttl = None if op.ttl is None else op.ttl * 60
            changes.append(
                records.make_delete(key)
                if op.value is None
                else records.make_put(key, op.value, text=self._extract_text(op), ttl=ttl)
            )
        for some in _split(changes):
            await self._bridge.open(hf, *STORE).change(some)
        return results

    def _extract_text(self, op: PutOp) -> str | None:
        """Return the text by which a `query` finds an item; None if the item is not searched. The end of a long text is left out."""
        if self._fields is None or op.index is False:
            return None
        paths = self._fields if op.index is None else op.index
        texts = [text for path in paths for text in get_text_at_path(op.value, path)]
        return "\n".join(texts).encode(errors="replace")[:_TEXT_BYTES].decode(errors="ignore").strip() or None

    async def _find(self, hf: holdfast.Holdfast, op: SearchOp, query: str) -> list[SearchItem]:
        """Return the items that a query finds, best first. A filter applies to the best `AT_ONCE` of them."""
        records = self._bridge.open(hf, *STORE, *op.namespace_prefix)
        limit = AT_ONCE if op.filter else min(op.offset + op.limit, AT_ONCE)
        results = await records.search(query, nested=True, limit=limit)
        found = [_to_item(hit.record, SearchItem, score=hit.score) for hit in results.hits]
        return [item for item in found if _fits_filter(item.value, op)][op.offset : op.offset + op.limit]

    async def _search(self, hf: holdfast.Holdfast, op: SearchOp) -> list[SearchItem]:
        if op.query and op.query.strip() and self._fields is not None:
            return await self._find(hf, op, op.query)
        found: list[SearchItem] = []
        async for record in self._bridge.open(hf, *STORE, *op.namespace_prefix).iterate(nested=True):
            if len(found) >= op.offset + op.limit:
                break
            if _fits_filter(record.value, op):
                found.append(_to_item(record, SearchItem))
        return found[op.offset :]

    async def _list_namespaces(self, hf: holdfast.Holdfast, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        conditions = op.match_conditions or ()
        found: dict[tuple[str, ...], None] = {}
        for labels in await _list_namespaces(self._bridge.open(hf, *STORE)):
            namespace = labels[len(STORE) :]
            if all(_fits(condition, namespace) for condition in conditions):
                found[namespace[: op.max_depth]] = None
        return sorted(found)[op.offset : op.offset + op.limit]


def _fits_filter(value: Mapping[str, Any], op: SearchOp) -> bool:
    return all(_compare(value.get(name), wanted) for name, wanted in (op.filter or {}).items())


def _to_item(record: Any, kind: type[Any] = Item, **more: Any) -> Any:
    created, updated = (datetime.fromtimestamp(one / 1000, UTC) for one in (record.created_at, record.updated_at))
    return kind(
        namespace=record.name.namespace[len(STORE) :],
        key=record.name.key,
        value=record.value,
        created_at=created,
        updated_at=updated,
        **more,
    )


def _fits(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    """Return True if a namespace begins or ends with a path, in which `*` is any label."""
    path = condition.path
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return len(namespace) >= len(path) and all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))


_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$eq": lambda value, wanted: bool(value == wanted),
    "$ne": lambda value, wanted: bool(value != wanted),
    "$gt": lambda value, wanted: float(value) > float(wanted),
    "$gte": lambda value, wanted: float(value) >= float(wanted),
    "$lt": lambda value, wanted: float(value) < float(wanted),
    "$lte": lambda value, wanted: float(value) <= float(wanted),
}


def _compare(value: Any, wanted: Any) -> bool:
    """Return True if a field has the value `wanted`, or satisfies all operators in `wanted`."""
    if not isinstance(wanted, dict):
        return bool(value == wanted)
    if not any(name.startswith("$") for name in wanted):
        return isinstance(value, dict) and all(_compare(value.get(name), one) for name, one in wanted.items())
    unknown = wanted.keys() - _OPERATORS.keys()
    if unknown:
        raise ValueError(f"unknown operator {min(unknown)!r}; known: {', '.join(_OPERATORS)}")
    if value is None and wanted.keys() - {"$eq", "$ne"}:
        return False
    return all(_OPERATORS[name](value, one) for name, one in wanted.items())
