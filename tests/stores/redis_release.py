"""Data of Holdfast 0.1 in Redis: what was written, and the keys as that release wrote them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Final

from holdfast.domain.artifact import NewArtifact, UserRef
from holdfast.domain.memory import DiaryEntry, Memory, MemoryDelta, Owner, Signal
from holdfast.domain.messages import Message
from holdfast.domain.origins import Origin
from holdfast.domain.session import Claim, Ending, ModelCall, NewCompaction, NewEntry, SessionRef
from holdfast.domain.state import Increment
from holdfast.stores.keys import ApiKey

FILE: Final = Path(__file__).parent / "redis_0_1.json"
"""Keys that commit 965b7d4 (layout 4) wrote when it ran `fill`, without their prefix. Made by `dump`."""
REFS: Final = [SessionRef("ann", "s1"), SessionRef("ann", "s2"), SessionRef("bob", "s1"), SessionRef("cy\0", "é{}")]
WITHDRAWN: Final = SessionRef("ann", "s3", "e-withdrawn")
ANN: Final = Owner("user", "ann")


def _entry(role: str, text: str, **fields: Any) -> NewEntry:
    return NewEntry(message=Message(role=role, content=text), tokens=len(text), timestamp=5, **fields)


def _compaction(first: int, last: int, **fields: Any) -> NewCompaction:
    said: dict[str, Any] = {
        "kind": "summary",
        "text": f"{first} to {last}",
        "tokens": 3,
        "source_tokens": 9,
        "total": 9,
    }
    return NewCompaction(view="v", first=first, last=last, created_at=6, through=last, **{**said, **fields})


async def fill(store: Any, structs: Any) -> None:
    """Write one of everything; `structs` has `Append`, `NewSession` and `SavedView`."""
    media = {bytes([7]) * 32: b"picture"}
    append, new_session = structs.Append, structs.NewSession
    for at, ref in enumerate((*REFS, SessionRef("ann", "s3"))):
        state: dict[str, Any] = {"k": at, "nested": {"a": [1, None, 2.5]}} if at else {}
        fields: dict[str, Any] = {"metadata": {"m": at}, "ttl": [None, 0, 5000, 7000, None][at], "state": state}
        messages = (Message(role="system", content="Be brief."),) if at % 2 else ()
        await store.create(
            new_session(
                id=ref.id, user_id=ref.user_id, timestamp=1 + at, identity=f"i{at}", system_messages=messages, **fields
            )
        )
        entries = [_entry("user", "hi", metadata={"x": 1}), _entry("assistant", "hello", media=tuple(media))]
        calls = [ModelCall(model="m", timestamp=3, prompt_tokens=5, turn_id=turn, view="v") for turn in (0, 2, 1)]
        write: dict[str, Any] = {"idempotency_key": "k", "fingerprint": b"f", "calls": calls, "media": media}
        await store.append(ref, append(entries=entries * 3, timestamp=10 + at, **write))
    ann = REFS[0]
    await store.append(ann, append(entries=[_entry("user", "again")], retire_from=4, timestamp=20))
    await store.append(ann, append(timestamp=21, compactions=[_compaction(0, 1), _compaction(0, 2)]))
    await store.append(ann, append(timestamp=21, compactions=[_compaction(0, 3, error="no", report={"r": 1})]))
    await store.erase(ann, 1, tokens=1)
    await store.annotate(ann, 0, pinned=True, importance=0.5)
    view = structs.SavedView(2, b"saved", (0,))
    await store.append(ann, append(timestamp=22, views={"v": view}, compactions=[_compaction(2, 3)]))
    await store.append(ann, append(timestamp=23, claim=Claim("h", 99), state_delta={"k": 3, "user:u": [1], "app:a": 1}))
    await store.change_state(None, {"a": Increment()}, timestamp=24)
    ended: dict[str, Any] = {"reason": "close", "ended_at": 30, "due_at": 31, "hooks": ("one",)}
    await store.end(Ending(id="e-closed", user_id="ann", session_id="s2", withdrawn=False, **ended))
    await store.end(Ending(id="e-withdrawn", user_id="ann", session_id="s3", withdrawn=True, **ended))
    await store.share(REFS[2], "i2")
    for at, scope in enumerate((ann, UserRef("bob"))):
        name = "user:plan" if at else "plan"
        await store.add_artifact(
            scope, NewArtifact(name=name, blob=f"b{at}", mime_type="a/b", size=4, sha256=bytes(32), created_at=1)
        )
    await store.put_blob("b0", 0, b"data", timestamp=3)
    memory = Memory(id=f"mem_{'0' * 31}1", owner=ANN, content="likes tea", created_at=1, updated_at=1)
    signal = Signal(memory_id=memory.id, at=4, query=b"q", score=0.5, session="s1")
    diary = (DiaryEntry(id="d", at=5, report={"r": 1}),)
    await store.change_memories(ANN, MemoryDelta(put=(memory,), signals=(signal,), diary=diary), timestamp=5)
    await store.lease("sweep", "h", now=1, until=50)
    await store.learn("m", b"learned", timestamp=2, expect=None)
    await store.add_key(ApiKey(id="key1", hash=bytes(32), tenant="acme", created_at=1, budget=5))


async def read_all(store: Any) -> list[object]:
    """Return all that is read of it, whatever the layout."""
    found: list[object] = [await store.list(limit=100), await store.active(), await store.endings(due=99)]
    for ref in (*REFS, WITHDRAWN):
        log = await store.entries(ref, retired=True)
        live = await store.entries(ref, start=1, limit=3, descending=True)
        found += [await store.get(ref), log, live, await store.compactions(ref), await store.calls(ref)]
        found += [await store.window(ref, "v"), await store.media(ref, [bytes([7]) * 32])]
        marks = [entry.digest for entry in log]
        found += [await store.sightings(ref.user_id, marks), await store.sightings(ref.user_id, marks, ends=True)]
    origins: list[Origin] = await store.origins("bob", ["s1"])
    found += [origins, await store.artifacts(REFS[0]), await store.artifacts(UserRef("bob")), await store.blob("b0", 0)]
    found += [await store.state("ann"), await store.state(None), await store.memories(ANN), await store.signals(ANN)]
    found += [await store.diary(ANN), await store.memory_owners(), await store.learned("m"), await store.keys()]
    return [*found, await store.leased_by("sweep", now=2), await store.idle(now=9000, ttl=5), await store.find("s2")]


# -- keys ------------------------------------------------------------------------


def dump(client: Any, prefix: str) -> None:
    """Write the keys of a place to `FILE`."""
    found: dict[str, Any] = {}
    for key in client.scan_iter(match=f"{prefix}:*", count=1000):
        kind = client.type(key).decode()
        value = client.hgetall(key) if kind == "hash" else dict(client.zrange(key, 0, -1, withscores=True))
        pairs = [[_text(name), score if kind == "zset" else _text(score)] for name, score in value.items()]
        found[key.decode().removeprefix(f"{prefix}:")] = [kind, pairs]
    FILE.write_text(json.dumps(found, sort_keys=True, separators=(",", ":"), indent=None) + "\n")


def restore(client: Any, prefix: str) -> None:
    """Put the keys of `FILE` up under a prefix."""
    for name, (kind, pairs) in json.loads(FILE.read_text()).items():
        key = f"{prefix}:{name}"
        if kind == "hash":
            client.hset(key, mapping={_bytes(field): _bytes(value) for field, value in pairs})
        else:
            client.zadd(key, {_bytes(member): score for member, score in pairs})


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
