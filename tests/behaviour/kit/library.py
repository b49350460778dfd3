"""The library, and `holdfast.connect`, which has the same interface."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from holdfast import Owner, SessionRef
from holdfast.errors import SessionNotFound
from tests.behaviour.kit.drivers import Row, Session
from tests.behaviour.kit.refusals import library_errors


def to_row(value: Any) -> Row:
    """Return the public fields of a struct, as JSON values."""
    row: Row = msgspec.json.decode(msgspec.json.encode(value))
    return row


def to_session_row(info: Any) -> Row:
    row = to_row(info)
    for name in ("tail", "identity", "claim", "withdrawn", "state_turns", "damaged", "reshaped", "tenant"):
        row.pop(name, None)
    shown = [{k: v for k, v in one.items() if k in {"role", "content"}} for one in row["system_messages"]]
    row |= {"system_messages": shown, "message_count": row.pop("messages"), "tokens": info.tail.total}
    return row | {"turns": info.turns, "log_marker": info.log_marker}


def to_memory_row(memory: Any, **more: Any) -> Row:
    owner = memory.owner
    whole = {name: getattr(memory, name) for name in memory.__struct_fields__ if name != "owner"}
    row: Row = msgspec.json.decode(msgspec.json.encode(whole))
    names = {
        "user_id": owner.id if owner.kind == "user" else None,
        "agent": owner.id if owner.kind == "agent" else None,
    }
    return {**row, "scope": owner.kind, **names, **more}


def to_owner(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that name the owner of memories, taken out of `options`."""
    user, agent, app = options.pop("user", None), options.pop("agent", None), options.pop("app", False)
    if agent is None and not app:
        return {"user_id": user or "default"}
    return {key: value for key, value in {"user_id": user, "agent": agent, "app": app}.items() if value}


class LibrarySession:
    """A session of the library or of `holdfast.connect`."""

    def __init__(self, hf: Any, id: str, user: str) -> None:  # noqa: A002
        self.hf, self.id, self.user = hf, id, user
        self.ref = SessionRef(user, id)

    async def native(self) -> Any:
        """Return the handle, without creating a session."""
        with library_errors():
            return await self.hf.get(self.ref)

    async def info(self) -> Row:
        return to_session_row(await self._call("info"))

    async def messages(self, *, retired: bool = False) -> list[Row]:
        found: list[Row] = (await self.export(retired=retired, records=False))["messages"]
        return found

    async def export(self, **options: Any) -> Row:
        with library_errors():
            found: Row = await self.hf.export(self.ref, **options)
        return found

    async def history(self, view: str = "voice") -> list[Row]:
        found: list[Row] = await self._call("history", view=view)
        return found

    async def append(self, *messages: Any, **options: Any) -> list[Row]:
        written = await self._call("append", [*messages], **options)
        return await self._rows(one.seq for one in written.entries)

    async def replace(self, seq: int, message: Any, **options: Any) -> Row:
        return await self._row((await self._call("replace", seq, message, **options)).seq)

    async def erase(self, seq: int) -> Row:
        with library_errors():
            erased = await self.hf.erase(self.ref, seq)
        return await self._row(erased.seq)

    async def annotate(self, seq: int, **fields: Any) -> Row:
        return await self._row((await self._call("annotate", seq, **fields)).seq)

    async def update(self, **fields: Any) -> Row:
        return to_session_row(await self._call("update", **fields))

    async def fork(self, at_turn: int | None = None, id: str | None = None) -> Session:  # noqa: A002
        made = await self._call("fork", at_turn, id)
        return LibrarySession(self.hf, made.id, made.user_id)

    async def rewind(self, at_turn: int) -> Row:
        return to_session_row(await self._call("rewind", at_turn))

    async def move(self, **to: Any) -> Session:
        with library_errors():
            made = await self.hf.move(self.ref, **to)
        return LibrarySession(self.hf, made.id, made.user_id)

    async def close(self) -> Row:
        return to_session_row(await self._call("close"))

    async def delete(self) -> Row:
        with library_errors():
            receipt = await self.hf.remove(self.ref)
            if receipt is None:
                raise SessionNotFound(self.id)
        return to_row(receipt)

    async def context(self, **options: Any) -> Row:
        return to_row(await self._call("context", **options))

    async def explain(self, **options: Any) -> Row:
        return to_row(await self._call("explain", **options))

    async def prompt(self, call_id: str = "next", **options: Any) -> Row:
        return to_row(await self._call("prompt", call_id, **options))

    async def calls(self, **options: Any) -> list[Row]:
        page = await self._call("calls", descending=options.pop("order", "asc") == "desc", **options)
        return [to_row(one) for one in page.calls]

    async def facts(self, **options: Any) -> list[Row]:
        handle = await self.native()
        with library_errors():
            return [{**to_row(one), "in_prompt": one.in_prompt} for one in await handle.facts(**options)]

    async def change_fact(self, fact_id: str, how: str) -> None:
        handle = await self.native()
        with library_errors():
            await getattr(handle.facts, how)(fact_id)

    async def compact(self, **options: Any) -> Row | None:
        made = await self._call("compact", **options)
        return None if made is None else to_row(made)

    async def compactions(self) -> list[Row]:
        return [to_row(one) for one in await self._call("compactions")]

    async def drop_compaction(self, compaction_id: int) -> Row:
        return to_row(await self._call("drop_compaction", compaction_id))

    async def state(self) -> Row:
        handle = await self.native()
        with library_errors():
            found: Row = await handle.state.all()
        return found

    async def change_state(self, **values: Any) -> Row:
        handle = await self.native()
        with library_errors():
            gone = [key for key, value in values.items() if value is None]
            await handle.state.update({key: value for key, value in values.items() if value is not None})
            for key in gone:
                await handle.state.delete(key)
        return await self.state()

    async def turn(self, *messages: Any, reply: str | None = None, **options: Any) -> Row:
        handle = await self._ensure()
        with library_errors():
            async with handle.turn([*messages], **options) as turn:
                prompt = turn.messages
                if reply is not None:
                    turn.add(reply)
        return {"messages": prompt}

    async def send(self, *messages: Any, **options: Any) -> Row:
        handle = await self._ensure()
        with library_errors():
            found: Row = await handle.send([*messages], **options)
        return found

    async def speak(self, text: str | None = None, **options: Any) -> Row:
        done = await self._call("speak", text, **options)
        return {"spoken": done.entry is not None, **await self._outcome(done)}

    async def interrupt(self, **heard: Any) -> Row:
        done = await self._call("interrupt", **heard)
        return {"interrupted": done.interrupted, **await self._outcome(done)}

    async def _outcome(self, done: Any) -> Row:
        entry = None if done.entry is None else await self._row(done.entry.seq)
        return {"entry": entry, "stopped": done.stopped, "version": done.session.version}

    async def _row(self, seq: int) -> Row:
        return (await self._rows([seq]))[0]

    async def _rows(self, seqs: Iterable[int]) -> list[Row]:
        """Return entries by their position, as exports show them."""
        found = {one["seq"]: one for one in await self.messages(retired=True)}
        return [found[seq] for seq in seqs]

    async def _ensure(self) -> Any:
        with library_errors():
            return await self.hf.session(self.id, user_id=self.user)

    async def _call(self, method: str, *args: Any, **options: Any) -> Any:
        handle = await self.native()
        with library_errors():
            return await getattr(handle, method)(*args, **options)


class LibraryDriver:
    """A `Holdfast`, or the object that `holdfast.connect` returns."""

    def __init__(self, native: Any, name: Literal["library", "connect"]) -> None:
        self.native, self.name = native, name

    def session(self, id: str = "s", user: str = "default") -> LibrarySession:  # noqa: A002
        return LibrarySession(self.native, id, user)

    async def create(self, id: str | None = "s", *, user: str = "default", **fields: Any) -> LibrarySession:  # noqa: A002
        with library_errors():
            made = await self.native.create(id, user_id=user, **fields)
        return self.session(made.id, made.user_id)

    async def given(self, id: str, *messages: Any, user: str = "default", **fields: Any) -> LibrarySession:  # noqa: A002
        session = await self.create(id, user=user, **fields)
        if messages:
            await session.append(*messages)
        return session

    async def sessions(self, **options: Any) -> list[Row]:
        user = options.pop("user", None)
        with library_errors():
            page = await self.native.sessions(**({} if user is None else {"user_id": user}), **options)
        return [to_session_row(one) for one in page.sessions]

    async def import_session(self, exported: Mapping[str, Any], **options: Any) -> Row:
        with library_errors():
            return to_row(await self.native.import_(exported, **options))

    async def search(self, query: str, **options: Any) -> list[Row]:
        user = options.pop("user", "default")
        with library_errors():
            found = await self.native.search(query, user, **options)
        return [to_row(hit) for hit in found.hits]

    async def remember(self, content: str, **options: Any) -> Row:
        owner = to_owner(options)
        with library_errors():
            made = await self.native.memories.remember(content, **owner, **options)
        return to_memory_row(made.memory, outcome=made.outcome)

    async def memories(self, query: str | None = None, **options: Any) -> list[Row]:
        owner = to_owner(options)
        memories = self.native.memories
        with library_errors():
            if query is not None:
                if self.name == "library":
                    options |= {f"{name}s": [options.pop(name)] for name in ("type", "tag") if name in options}
                found = await memories.recall(query, **owner, **options)
                return [to_memory_row(one.memory, score=one.score) for one in found.found]
            if self.name == "connect":
                owner = {"scope": "app"} if owner.pop("app", False) else owner
                return [to_memory_row(one) for one in (await memories.list(**owner, **options)).memories]
            kind: Any
            kind, at = next(iter(owner.items()))
            found = await memories.page(Owner(kind.removesuffix("_id"), "" if kind == "app" else at), **options)
            return [to_memory_row(one) for one in found.memories]

    async def review(self, memory_id: str, decision: str, **owner: Any) -> Row:
        with library_errors():
            return to_memory_row(await self.native.memories.review(memory_id, decision))

    async def forget(self, memory_id: str) -> None:
        with library_errors():
            await self.native.memories.forget(memory_id)

    async def shared_state(self, user: str | None = None) -> Row:
        state = self.native.app_state() if user is None else self.native.user_state(user)
        with library_errors():
            found: Row = await state.all()
        return found

    async def change_shared_state(self, values: Mapping[str, Any], user: str | None = None) -> Row:
        state = self.native.app_state() if user is None else self.native.user_state(user)
        with library_errors():
            await state.update(values)
        return await self.shared_state(user)

    async def delete_user(self, user: str) -> Row:
        with library_errors():
            return to_row(await self.native.delete_user(user))
