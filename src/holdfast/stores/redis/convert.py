"""Convert sessions that Holdfast 0.1 wrote (layouts 1 to 4) to layout 5.

Of a session's keys, four change: the hash `s` becomes `session`, the sorted set `l` of live entries becomes the list `log`, and
the hashes `c` and `b` of compactions become `compactions`. All other keys stay the same. The new keys are first written and
compared with the old ones. When all are correct, the store (all keys with one prefix) is marked as converted, and only then are
the old keys deleted. If a conversion is interrupted, it can be run again. Sessions that are already converted are then only
compared.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

from holdfast.domain.messages import Message
from holdfast.domain.session import Claim, Session, StoredCompaction, Tail, Usage
from holdfast.domain.state import TEMP, select_own
from holdfast.errors import StoreUnavailable
from holdfast.stores.logic.network import SessionCache
from holdfast.stores.redis.address import format_legacy_name, parse_address
from holdfast.stores.redis.connection import ErrorReply
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.nodes import Nodes
from holdfast.stores.redis.records import (
    KINDS,
    Record,
    encode_profile,
    pack,
    strip_profile,
    unpack_list,
)

LAYOUT: Final = 5
NEWEST: Final = 6
"""The newest layout. Layout 6 adds keys of records, so data of layout 5 need no conversion."""
DONE: Final = "1"
UNFINISHED: Final = "converting"
OLD: Final = b"old"
"""A field in the hash of layouts. It exists as long as the store still has keys of Holdfast 0.1."""
FENCE: Final = b"converted to layout 5"
"""A string that is stored in place of a sorted set. Holdfast 0.1 checks this set before each write, so writes of a 0.1 server
that still runs fail.
"""
PAGE: Final = 500


class Conversion(msgspec.Struct):
    """Counts of what was converted."""

    sessions: int = 0
    entries: int = 0
    compactions: int = 0
    damaged: int = 0
    """Number of sessions whose record cannot be decoded. They are kept unchanged and are listed as damaged; they can be deleted."""
    kept: int = 0
    """Number of sessions that an earlier run had already converted."""
    removed: int = 0
    """Number of keys of Holdfast 0.1 that were deleted."""


class _OldRecord(msgspec.Struct, array_like=True, gc=False):
    """A session's record as Holdfast 0.1 stored it."""

    agent: str | None
    version: int
    created_at: int
    updated_at: int
    status: str
    ttl: int | None
    counters: list[Any]
    accessed_at: int
    ended_at: int | None = None
    end_reason: str | None = None
    views_from: int = 0
    compactions_from: int = 0
    next_compaction: int = 1
    live: dict[str, tuple[int, int, int, int]] = {}
    next_call: int = 0
    last_turn: int = 0
    calls_mixed: bool = False
    artifacts: bool = False
    identity: str = ""
    claim: tuple[str, int, int] = ("", 0, 0)


_UNCHANGED: Final = (
    *("agent", "version", "created_at", "updated_at", "accessed_at", "status", "ended_at", "end_reason", "ttl"),
    "identity",
)
"""Fields of a session that have the same name in both releases."""
_old_record = msgspec.msgpack.Decoder(_OldRecord).decode
_old_profile = msgspec.msgpack.Decoder(tuple[bytes, bytes, bytes]).decode
_old_texts = msgspec.msgpack.Decoder(tuple[bytes | None, bytes | None, bytes]).decode
_messages = msgspec.json.Decoder(tuple[Message, ...]).decode
_ids = msgspec.json.Decoder(tuple[str, ...]).decode
_COMPACTION: Final = (
    *("status", "view", "laid_at", "first", "last", "kind", "tokens", "source_tokens", "total", "model", "created_at"),
    *("through", "prompt_tokens", "completion_tokens"),
)


async def convert(
    url: str,
    *,
    dry_run: bool = False,
    keep_old: bool = False,
    progress: Callable[[Conversion], None] = lambda _: None,
) -> Conversion:
    """Convert the store at `url` if it has data of Holdfast 0.1; return counts of what was converted.

    Args:
        url: URL of a Redis store.
        dry_run: if True, only count the data to convert.
        keep_old: if True, keep the keys of 0.1. The next run without this option deletes them.
        progress: called with the counts every `PAGE` sessions, and at the end.

    Raises:
        StoreUnavailable: a server of 0.1 is connected, or the converted data differ from the original.
    """
    address = parse_address(url)
    nodes, keys = Nodes(address, SessionCache()), Keys(address.prefix)
    try:
        return await _Converter(nodes, keys, address.prefix, progress).run(dry_run=dry_run, keep_old=keep_old)
    finally:
        await nodes.close()


async def read_layouts(nodes: Nodes, keys: Keys) -> dict[int, str]:
    """Return the checksums of a store's layouts, by number."""
    return {
        int(name): value.decode() for name, value in (await _read_fields(nodes, keys.layout)).items() if name.isdigit()
    }


async def check_converted(nodes: Nodes, keys: Keys, layouts: dict[int, str]) -> None:
    """Raise `StoreUnavailable` if the store has data of 0.1 that are not converted, or if a server of 0.1 uses the store."""
    if layouts and layouts.get(LAYOUT) != DONE and max(layouts) <= NEWEST:
        state = "the conversion of its data of Holdfast 0.1 is not finished"
        if LAYOUT not in layouts:
            state = f"it has data of Holdfast 0.1 (layout {max(layouts)})"
        raise StoreUnavailable(f"{nodes.name}: {state}. Stop all servers of 0.1, then run: holdfast migrate")
    await check_alone(nodes, keys.prefix)


async def check_alone(nodes: Nodes, prefix: str) -> None:
    """Raise `StoreUnavailable` if a server of 0.1 is connected. The check is skipped if the Redis user may not list the clients."""
    name = f" name={format_legacy_name(prefix)} ".encode()
    for endpoint, answer in (await nodes.call_all("CLIENT", "LIST")).items():
        if not isinstance(answer, ErrorReply) and name in answer:
            raise StoreUnavailable(
                f"{nodes.name}: a server of Holdfast 0.1 is connected ({endpoint}). It would not see the data that this release"
                " writes. Stop it first"
            )


async def _read_fields(nodes: Nodes, key: bytes) -> dict[bytes, bytes]:
    flat = await nodes.call(key, (b"HGETALL", key))
    return dict(zip(flat[::2], flat[1::2], strict=True))


class _Converter:
    def __init__(self, nodes: Nodes, keys: Keys, prefix: str, progress: Callable[[Conversion], None]) -> None:
        self._nodes = nodes
        self._keys = keys
        self._prefix = prefix
        self._progress = progress
        self._done = Conversion()

    async def run(self, *, dry_run: bool, keep_old: bool) -> Conversion:
        """Run the steps of the conversion that are left."""
        layouts = await read_layouts(self._nodes, self._keys)
        has_old = (await self._call(self._keys.layout, b"HEXISTS", OLD)) == 1
        if not layouts or max(layouts) > NEWEST or (layouts.get(LAYOUT) == DONE and not has_old):
            return self._done
        if dry_run:
            async for head in self._list_heads():
                self._done.sessions += 1
                self._done.entries += await self._call(_make_old_key(head, b"l"), b"ZCARD")
                self._done.compactions += await self._call(_make_old_key(head, b"c"), b"HLEN")
                self._report()
            return self._done
        await check_alone(self._nodes, self._prefix)
        if layouts.get(LAYOUT) != DONE:
            await self._call(self._keys.layout, b"HSET", str(LAYOUT), UNFINISHED, OLD, b"1")
            async for head in self._list_heads():
                await self._convert_session(head)
            await self._fence_old_servers()
            await self._call(
                self._keys.layout, b"HSET", *(part for at in range(1, LAYOUT + 1) for part in (str(at), DONE))
            )
        if not keep_old:
            await self._remove_old_keys()
            await self._call(self._keys.layout, b"HDEL", OLD)
        self._progress(self._done)
        return self._done

    async def _call(self, key: bytes, name: bytes, *arguments: Any) -> Any:
        return await self._nodes.call(key, (name, key, *arguments))

    async def _list_heads(self) -> AsyncIterator[bytes]:
        """Yield the key of each session's hash `s`, each once."""
        seen: set[bytes] = set()
        async for key in self._nodes.scan(f"{self._prefix}:{{*}}:s:*"):
            if key not in seen:
                seen.add(key)
                yield key

    def _report(self) -> None:
        if self._done.sessions % PAGE == 0:
            self._progress(self._done)

    async def _convert_session(self, head: bytes) -> None:
        """Convert a session, and compare the result with the original."""
        old = await _read_fields(self._nodes, head)
        new_head = _make_old_key(head, b"session")
        converted = await _read_fields(self._nodes, new_head)
        compactions = await self._convert_compactions(head)
        fields, damaged = _convert_head(old, compactions)
        if converted == fields and await self._is_converted(head, compactions):
            self._done.kept += 1
        else:
            await self._write(head, fields, compactions)
            if await _read_fields(self._nodes, new_head) != fields or not await self._is_converted(head, compactions):
                raise StoreUnavailable(
                    f"{self._nodes.name}: the session under {head.decode()} differs after its conversion; none of its keys"
                    " was deleted. If a server of 0.1 is writing to it, stop the server and run the conversion again"
                )
        self._done.sessions += 1
        self._done.damaged += damaged
        self._done.compactions += len(compactions)
        self._report()

    async def _convert_compactions(self, head: bytes) -> dict[bytes, bytes]:
        bodies = await _read_fields(self._nodes, _make_old_key(head, b"b"))
        found = await _read_fields(self._nodes, _make_old_key(head, b"c"))
        return {id_: _convert_compaction(int(id_), data, bodies[id_]) for id_, data in found.items()}

    async def _write(self, head: bytes, fields: dict[bytes, bytes], compactions: dict[bytes, bytes]) -> None:
        new_head, log, other = (_make_old_key(head, name) for name in (b"session", b"log", b"compactions"))
        for key in (new_head, log, other):
            await self._call(key, b"UNLINK")
        async for page in self._read_live_entries(head):
            await self._call(log, b"RPUSH", *page)
        for id_, data in compactions.items():
            await self._call(other, b"HSET", id_, data)
        await self._call(new_head, b"HSET", *(part for field in fields.items() for part in field))

    async def _read_live_entries(self, head: bytes) -> AsyncIterator[list[bytes]]:
        at, key = 0, _make_old_key(head, b"l")
        while page := await self._call(key, b"ZRANGE", at, at + PAGE - 1):
            yield page
            at += PAGE

    async def _is_converted(self, head: bytes, compactions: dict[bytes, bytes]) -> bool:
        """Return True if the new log and compactions are equal to the old ones."""
        at, log = 0, _make_old_key(head, b"log")
        async for page in self._read_live_entries(head):
            if await self._call(log, b"LRANGE", at, at + PAGE - 1) != page:
                return False
            at += len(page)
        self._done.entries += at
        return (
            await self._call(log, b"LLEN") == at
            and await _read_fields(self._nodes, _make_old_key(head, b"compactions")) == compactions
        )

    async def _fence_old_servers(self) -> None:
        """Make writes of 0.1 servers fail.

        The conversion is refused while a 0.1 server is connected. But a disconnected one may reconnect later, without opening the store
        again.
        """
        for name in await self._call(self._keys.tenants, b"ZRANGE", 0, -1):
            tenant = self._keys.tenant(name.decode())
            fenced = f"{tenant.base}:gone".encode()
            if await self._call(fenced, b"TYPE") == b"zset":
                await self._nodes.call(fenced, (b"RENAME", fenced, tenant.departed))
            await self._call(fenced, b"SET", FENCE)

    async def _remove_old_keys(self) -> None:
        """Delete the keys of 0.1 that were converted."""
        async for key in self._nodes.scan(f"{self._prefix}:{{*}}:[slcb]:*"):
            self._done.removed += await self._call(key, b"UNLINK")


def _make_old_key(head: bytes, name: bytes) -> bytes:
    """Return the key in which `name` replaces the `s` of `head`.

    Args:
        head: the key of a session's hash `s`.
        name: the part of the new key.
    """
    base, _, place = head.rpartition(b":s:")
    return base + b":" + name + b":" + place


def _convert_head(old: dict[bytes, bytes], compactions: dict[bytes, bytes]) -> tuple[dict[bytes, bytes], bool]:
    """Return the fields of a session's new head (its main hash), and True if the session's old record is damaged, False otherwise.

    A damaged record is kept unchanged.
    """
    fields = {name: value for name, value in old.items() if name in (b"g", b"i", b"r")}
    identity = old[b"i"][6:] if old[b"i"][:1] == b"\0" else old[b"i"]
    tenant, user_id, id_, withdrawn = unpack_list(identity)
    profile, large = old.get(b"p"), {}
    try:
        large = {} if profile is None else _convert_profile(profile)
    except msgspec.MsgspecError:
        fields[b"p"] = profile or b""  # a damaged profile stays damaged
    try:
        session, record = _convert_record(old[b"r"], (tenant, user_id, id_, withdrawn), large)
    except (msgspec.MsgspecError, ValueError, LookupError, TypeError):
        return {**fields, **({b"p": profile} if profile is not None else {})}, True
    encoded = encode_profile(session)
    if encoded is not None and b"p" not in fields:
        fields[b"p"] = encoded
    fields[b"r"] = pack(record)
    return fields, False


def _convert_profile(profile: bytes) -> dict[str, Any]:
    system_messages, state, metadata = _old_profile(profile)
    stored = msgspec.json.decode(state)
    own, turns = select_own(stored), stored.get(f"{TEMP}turns") or {}
    return {
        "system_messages": _messages(system_messages),
        "state": own,
        "state_turns": {key: turn for key, turn in turns.items() if key in own},
        "metadata": msgspec.json.decode(metadata),
    }


def _convert_record(data: bytes, names: tuple[str, str, str, str], large: dict[str, Any]) -> tuple[Session, Record]:
    old = _old_record(data)
    holder, until, wanted = old.claim
    *_, next_seq, turn_id, total, digest, last_seq, kind, unit, open_calls, anchor = old.counters
    tail = Tail(
        next_seq=next_seq,
        turn_id=turn_id,
        total=total,
        digest=digest,
        last_seq=last_seq,
        last_kind=None if kind is None else KINDS[kind],
        unit=unit,
        open_calls=() if open_calls is None else _ids(open_calls),
        anchor=anchor,
    )
    same: dict[str, Any] = {name: getattr(old, name) for name in _UNCHANGED}
    named: dict[str, Any] = dict(zip(("tenant", "user_id", "id", "withdrawn"), names, strict=True))
    session = Session(
        reshaped=old.views_from,
        claim=Claim(holder, until, wanted == 1) if holder else None,
        messages=old.counters[0],
        bytes=old.counters[1],
        usage=Usage(*old.counters[2:6]),
        tail=tail,
        **named,
        **same,
        **large,
    )
    live = {view: (id_, laid_at) for view, (id_, laid_at, *_) in old.live.items()}
    calls = (old.next_call, old.last_turn, old.calls_mixed)
    return session, Record(
        strip_profile(session), old.compactions_from, old.next_compaction, live, *calls, old.artifacts
    )


def _convert_compaction(id_: int, data: bytes, texts: bytes) -> bytes:
    fields = dict(zip(_COMPACTION, unpack_list(data), strict=True))
    laid_at = fields.pop("laid_at")
    error, report, text = _old_texts(texts)
    texts_by_name: dict[str, Any] = {"error": None if error is None else error.decode(), "text": text.decode()}
    texts_by_name["report"] = None if report is None else msgspec.json.decode(report)
    return pack((laid_at, StoredCompaction(id=id_, **texts_by_name, **fields)))
