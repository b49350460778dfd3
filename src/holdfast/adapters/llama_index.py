"""A memory, an agent and a chat store for LlamaIndex: the log keeps every message, the model gets fewer.

A call of the model gets the *working set*: the prompt that Holdfast builds within a token budget.

    memory = HoldfastMemory(hf, "trip-7", user_id="ada", budget=8000)
    agent = HoldfastFunctionAgent(llm=llm, tools=tools)
    await agent.run("Where is my order?", memory=memory)

Facts about llama-index-core 0.14.25 that this module relies on:

- A `FunctionAgent` collects the messages of a run in its scratchpad, sends `memory.aget()` and then the scratchpad, and puts the
  scratchpad into the memory when the run ends.
- Between two runs with the same context, the memory is saved as JSON and loaded again.
- Blocks have media in base64, in the field `image`, `audio`, `video` or `data`. Validation of a message reads none of them.
- The result of a call has the call's id in `additional_kwargs["tool_call_id"]`. Calls are blocks, or in
  `additional_kwargs["tool_calls"]`.
- A chat store's `delete_message` takes an id that none of its methods returns; `SQLAlchemyChatStore` takes the number of the row.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from io import IOBase
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from llama_index.core.agent.workflow import AgentContext, AgentOutput, FunctionAgent
from llama_index.core.base.llms.types import (
    ChatMessage,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.bridge.pydantic import Field, PrivateAttr, ValidationError
from llama_index.core.memory import BaseMemory
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus
from llama_index.core.tools import AsyncBaseTool
from llama_index.core.workflow import Context

import holdfast
from holdfast.adapters._shared import find_runner, finish_write, read_entries, to_chat
from holdfast.errors import Conflict, NotFound, StaleSession

__all__ = ["HoldfastChatStore", "HoldfastFunctionAgent", "HoldfastMemory"]

Json = dict[str, Any]
ROLES: Final = {"function": "tool", "chatbot": "assistant", "model": "assistant"}
"""Roles of LlamaIndex that have another name in Chat Completions."""
MEDIA: Final = {"image": "image", "audio": "audio", "video": "video", "document": "data"}
"""For types of blocks with media: the field that has the data in base64."""
ARCHIVED: Final = "llama_index_archived"
"""Key in the session's state: messages with a lower `seq` are archived. Key in a message's metadata: True if it is archived."""
TRIES: Final = 64
"""Maximum number of attempts to change a session while other processes change it."""
PAGE: Final = 1_000
"""Sessions that are read at a time."""
_names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_opened: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""Names of open Holdfasts and portals. LlamaIndex saves a context after each run as JSON, and loads it for the next run."""


class HoldfastMemory(BaseMemory):
    """The memory of one session: `get` returns the working set, `get_all` returns all messages.

    Messages that are sent in full are exactly the stored ones, with thinking and its signatures.

    Args:
        hf: an open `Holdfast`; or a `holdfast.Portal()`, for methods without `await` and for several event loops.
        session_id: the session, which is created when a message is stored; None: a new session.
        user_id: the owner of the session.
        budget: maximum tokens of the conversation; None: the budget of `hf`, or as many tokens as the model's context window allows.
        strategy: name of the strategy; None: the strategy of `hf`, or `digest`.
        options: other arguments of `SessionHandle.context`, for example `{"model": "gpt-5"}`.
        opened: used by LlamaIndex when it loads a saved context in the same process.
    """

    session_id: str = Field(description="The session.")
    user_id: str = Field(description="The owner of the session.")
    options: Json = Field(default_factory=dict, description="Arguments of `SessionHandle.context`.")
    opened: str = Field(description="Name of the open `Holdfast` in this process.")
    _hf: Any = PrivateAttr(default=None)

    def __init__(
        self,
        hf: holdfast.Holdfast | holdfast.Portal | None = None,
        session_id: str | None = None,
        *,
        user_id: str = "default",
        budget: int | None = None,
        strategy: str | None = None,
        options: Json | None = None,
        opened: str = "",
    ) -> None:
        given = {"budget": budget, "strategy": strategy, **(options or {})}
        super().__init__(
            session_id=session_id or str(uuid.uuid4()),
            user_id=user_id,
            options={name: value for name, value in given.items() if value is not None},
            opened=opened if hf is None else _names.setdefault(hf, uuid.uuid4().hex),
        )
        if hf is not None:
            _opened[self.opened] = hf
        self._hf = _opened.get(self.opened)

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class, for LlamaIndex's serialization."""
        return "HoldfastMemory"

    @classmethod
    def from_defaults(cls, **kwargs: Any) -> HoldfastMemory:
        """Return a memory. The arguments are those of the class."""
        return cls(**kwargs)

    async def aget(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:  # noqa: A002 - the name in the base class
        """Return the working set: the messages that a model should see.

        Args:
            input: not used: the newest message of the user is already stored, or not part of the history.
            kwargs: not used.
        """
        run, session = await self._find()
        if session is None:
            return []
        built = await run(session.context, save=True, **self.options)
        seqs = [seq for source in built.sources if source.kind == "entry" for seq in source.seqs]
        return _restore(built, {entry.seq: entry for entry in await read_entries(run, session, seqs)})

    async def aget_all(self) -> list[ChatMessage]:
        """Return all messages, exactly as they were stored."""
        run, session = await self._find()
        return [] if session is None else [_load(entry) for entry in await run(session.entries) if not entry.is_note]

    async def aput(self, message: ChatMessage) -> None:
        """Append a message."""
        await self.aput_messages([message])

    async def aput_messages(self, messages: list[ChatMessage]) -> None:
        """Append messages: all of them, or none if this fails or is cancelled. A cancelled call ends only after its write."""
        if messages:
            run, hf = find_runner(self._get_hf())
            session = await run(hf.session, self.session_id, user_id=self.user_id)
            await finish_write(run(session.append, [_make_entry(message) for message in messages]))

    async def aset(self, messages: list[ChatMessage]) -> None:
        """Replace all messages. Messages at the beginning that stay the same are not written again."""
        run, hf = find_runner(self._get_hf())
        await _replace_all(run, await run(hf.session, self.session_id, user_id=self.user_id), messages)

    async def areset(self) -> None:
        """Remove all messages. They stay in the session's log, but are no longer part of the conversation."""
        run, session = await self._find()
        if session is not None:
            await finish_write(run(session.clear))

    def get(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:  # noqa: A002 - the name in the base class
        """Return the working set, as `aget` does, in synchronous code."""
        messages: list[ChatMessage] = self._call(self.aget, input)
        return messages

    def get_all(self) -> list[ChatMessage]:
        """Return all messages, in synchronous code."""
        messages: list[ChatMessage] = self._call(self.aget_all)
        return messages

    def put(self, message: ChatMessage) -> None:
        """Append a message, in synchronous code."""
        self._call(self.aput, message)

    def put_messages(self, messages: list[ChatMessage]) -> None:
        """Append messages, in synchronous code."""
        self._call(self.aput_messages, messages)

    def set(self, messages: list[ChatMessage]) -> None:
        """Replace all messages, in synchronous code."""
        self._call(self.aset, messages)

    def reset(self) -> None:
        """Remove all messages, in synchronous code."""
        self._call(self.areset)

    def _get_hf(self) -> Any:
        if self._hf is None:
            raise ValueError(
                "this memory comes from a context that another process saved, and has no Holdfast:"
                ' before the run, call `await ctx.store.set("memory", HoldfastMemory(hf, …))`'
            )
        return self._hf

    async def _find(self) -> tuple[Callable[..., Any], holdfast.SessionHandle | None]:
        run, hf = find_runner(self._get_hf())
        try:
            return run, await run(hf.get, self.session_id, user_id=self.user_id)
        except NotFound:
            return run, None

    def _call(self, method: Callable[..., Any], *args: Any) -> Any:
        portal = self._get_hf()
        if not isinstance(portal, holdfast.Portal):
            raise TypeError("get(), put() and the like need HoldfastMemory(holdfast.Portal(…)); await aget() instead")
        return portal.call(method, *args)


class HoldfastFunctionAgent(FunctionAgent):
    """A `FunctionAgent` that puts each step of a run into its memory before the next call of the model.

    So the memory bounds the prompts of long runs too, and after a crash all steps before the last call are stored. It works with any
    memory of LlamaIndex.
    """

    async def take_step(
        self, ctx: AgentContext, llm_input: list[ChatMessage], tools: Sequence[AsyncBaseTool], memory: BaseMemory
    ) -> AgentOutput:
        """Store the messages of the steps before, and call the model with what the memory returns."""
        scratchpad = await ctx.store.get(self.scratchpad_key, default=[])
        if scratchpad:
            await memory.aput_messages(scratchpad)
            await ctx.store.set(self.scratchpad_key, [])
            await ctx.store.set(self._stored_key, True)
        if await ctx.store.get(self._stored_key, default=False):  # also if this step is repeated
            prompt = llm_input[:1] if self.system_prompt else []
            llm_input = [*prompt, *await memory.aget()]
        return await super().take_step(ctx, llm_input, tools, memory)

    async def finalize(self, ctx: Context, output: AgentOutput, memory: BaseMemory) -> AgentOutput:
        """Store the messages of the last step."""
        output = await super().finalize(ctx, output, memory)
        await ctx.store.set(self._stored_key, False)
        return output

    @property
    def _stored_key(self) -> str:
        return f"{self.scratchpad_key}_stored"


class HoldfastChatStore(AsyncDBChatStore):
    """Stores the messages of each key in a session with this id.

    Archived messages stay in the session. Deleted messages stay in the session's log only. To delete a message in the middle, those after
    it are written again; archiving and deleting everything write no messages.

    Args:
        hf: an open `Holdfast`; or a `holdfast.Portal()`, if the store is used in several event loops, for example by methods of LlamaIndex
            without `await`.
        user_id: the owner of the sessions.
    """

    user_id: str = Field(description="The owner of the sessions.")
    _hf: Any = PrivateAttr(default=None)

    def __init__(self, hf: holdfast.Holdfast | holdfast.Portal, *, user_id: str = "default") -> None:
        super().__init__(user_id=user_id)
        self._hf = hf

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class, for LlamaIndex's serialization."""
        return "HoldfastChatStore"

    async def get_messages(
        self,
        key: str,
        status: MessageStatus | None = MessageStatus.ACTIVE,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[ChatMessage]:
        """Return messages of a key, oldest first. A key that does not exist has none.

        Args:
            key: the key.
            status: only messages with this status; None: all.
            limit: maximum number of messages; None: all.
            offset: number of messages to leave out at the beginning.
        """
        found = await self._read(key)
        entries = [] if found is None else _select(found, status)
        first = offset or 0
        return [_load(entry) for entry in entries[first : None if limit is None else first + limit]]

    async def count_messages(self, key: str, status: MessageStatus | None = MessageStatus.ACTIVE) -> int:
        """Return the number of messages of a key.

        Args:
            key: the key.
            status: only messages with this status; None: all.
        """
        found = await self._read(key)
        return 0 if found is None else len(_select(found, status))

    async def add_message(self, key: str, message: ChatMessage, status: MessageStatus = MessageStatus.ACTIVE) -> None:
        """Append a message. The arguments are those of `add_messages`."""
        await self.add_messages(key, [message], status)

    async def add_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Append messages: all of them, or none if this fails or is cancelled. A cancelled call ends only after its write.

        Args:
            key: the key, which is created if it does not exist.
            messages: the messages.
            status: their status.
        """
        if messages:
            run, hf = find_runner(self._hf)
            session = await run(hf.session, key, user_id=self.user_id)
            await finish_write(run(session.append, [_make_entry(message, status) for message in messages]))

    async def set_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Replace all messages of a key, whatever their status.

        Args:
            key: the key, which is created if it does not exist.
            messages: the new messages.
            status: their status.
        """
        run, hf = find_runner(self._hf)
        await _replace_all(run, await run(hf.session, key, user_id=self.user_id), messages, status)

    async def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete a message and return it; None if there is no such message.

        Args:
            key: the key.
            idx: index of the message in `get_messages(key, status=None)`.
        """
        removed = await self._remove(key, lambda log: _select(log, None)[idx : idx + 1] if idx >= 0 else [])
        return removed[0] if removed else None

    async def delete_messages(self, key: str, status: MessageStatus | None = None) -> None:
        """Delete messages of a key.

        Args:
            key: the key.
            status: only messages with this status; None: all.
        """
        await self._remove(key, lambda log: _select(log, status))

    async def delete_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Delete the oldest active messages of a key and return them. Concurrent calls delete different messages.

        Args:
            key: the key.
            n: maximum number of messages.
        """
        return await self._remove(key, lambda log: _select(log, MessageStatus.ACTIVE)[: max(n, 0)])

    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Archive the oldest active messages of a key and return them. Concurrent calls archive different messages.

        Args:
            key: the key.
            n: maximum number of messages.
        """

        async def archive(log: _Log) -> list[ChatMessage]:
            oldest = _select(log, MessageStatus.ACTIVE)[: max(n, 0)]
            if oldest:
                await log.write(state={ARCHIVED: oldest[-1].seq + 1})
            return [_load(entry) for entry in oldest]

        return await self._change(key, archive)

    async def get_keys(self) -> list[str]:
        """Return the ids of all sessions of the user that have messages, most recently changed first."""
        run, hf = find_runner(self._hf)
        keys: list[str] = []
        page: Any = None
        while page is None or page.has_more:
            after = None if page is None else page.sessions[-1].ref
            page = await run(hf.sessions, user_id=self.user_id, limit=PAGE, after=after)
            keys += [session.id for session in page.sessions if session.messages]
        return keys

    async def _read(self, key: str) -> _Log | None:
        run, hf = find_runner(self._hf)
        try:
            session = await run(hf.get, key, user_id=self.user_id)
        except NotFound:
            return None
        return await _read_log(run, session)

    async def _remove(self, key: str, choose: Callable[[_Log], list[Any]]) -> list[ChatMessage]:
        async def remove(log: _Log) -> list[ChatMessage]:
            removed = choose(log)
            if removed:
                await log.remove(removed)
            return [_load(entry) for entry in removed]

        return await self._change(key, remove)

    async def _change(self, key: str, change: Callable[[_Log], Awaitable[list[ChatMessage]]]) -> list[ChatMessage]:
        """Call `change` with the log, again if another process has changed the session meanwhile, and return its result."""
        for _ in range(TRIES):
            log = await self._read(key)
            if log is None:
                return []
            try:
                return await change(log)
            except StaleSession:
                continue
        raise Conflict(f"session {key!r} is being written to constantly: try again")


# -- the log -------------------------------------------------------------------


@dataclasses.dataclass
class _Log:
    """The entries of a session in force, as they were at one version."""

    run: Callable[..., Awaitable[Any]]
    session: holdfast.SessionHandle
    version: int
    archived: int
    """Messages with a lower `seq` are archived."""
    entries: Sequence[Any]

    def is_archived(self, entry: Any) -> bool:
        """Return True if a message is archived."""
        return entry.seq < self.archived or bool((entry.metadata or {}).get(ARCHIVED))

    async def write(self, messages: Sequence[Json] = (), **changes: Any) -> None:
        """Append to the log, unless it has changed. The arguments are those of `SessionHandle.append`.

        Raises:
            StaleSession: the session has another version now.
        """
        await finish_write(self.run(self.session.append, messages, expect=self.version, **changes))

    async def remove(self, removed: Sequence[Any]) -> None:
        """Take messages off the live path. Those after the first of them are written again, as copies, so that erasing one erases both.

        Raises:
            StaleSession: the session has another version now.
        """
        first, seqs = removed[0].seq, {entry.seq for entry in removed}
        kept = {entry.seq: entry for entry in self.entries if entry.seq > first and entry.seq not in seqs}
        exported = [one for one in await self.run(self.session.export) if one["seq"] in kept] if kept else []
        for one in exported:
            if one["role"] != "note" and self.is_archived(kept[one["seq"]]):
                one["metadata"] = {**(one.get("metadata") or {}), ARCHIVED: True}
        await self.write(exported, retire_from=first, copy_of=[one["seq"] for one in exported])


async def _read_log(run: Callable[..., Awaitable[Any]], session: holdfast.SessionHandle) -> _Log:
    info = await run(session.info)
    return _Log(run, session, info.version, info.state.get(ARCHIVED, 0), await run(session.entries))


def _select(log: _Log, status: MessageStatus | None) -> list[Any]:
    """Return the entries of messages with a status, or of all messages."""
    wanted = None if status is None else status == MessageStatus.ARCHIVED
    return [entry for entry in log.entries if not entry.is_note and wanted in (None, log.is_archived(entry))]


async def _replace_all(
    run: Callable[..., Awaitable[Any]],
    session: holdfast.SessionHandle,
    messages: Sequence[ChatMessage],
    status: MessageStatus = MessageStatus.ACTIVE,
) -> None:
    """Replace all messages of a session, except those at the beginning that stay the same."""
    new = [_make_entry(message, status) for message in messages]
    for _ in range(TRIES):
        log = await _read_log(run, session)
        stored = _select(log, None)
        same = 0
        while same < min(len(new), len(stored)) and _is_same(log, stored[same], new[same], status):
            same += 1
        changes = {"retire_from": stored[same].seq} if same < len(stored) else {}
        try:
            if changes or new[same:]:
                await log.write(new[same:], **changes)
        except StaleSession:
            continue
        return
    raise Conflict(f"session {session.id!r} is being written to constantly: try again")


def _is_same(log: _Log, entry: Any, new: Json, status: MessageStatus) -> bool:
    wanted = status == MessageStatus.ARCHIVED
    return log.is_archived(entry) == bool(wanted) and _dump(_load(entry)) == new["origin"]


# -- messages ------------------------------------------------------------------


def _make_entry(message: ChatMessage, status: MessageStatus = MessageStatus.ACTIVE) -> Json:
    """Return a message for the log."""
    archived = {"metadata": {ARCHIVED: True}} if status == MessageStatus.ARCHIVED else {}
    return {**_to_chat(message), "origin": _dump(message), **archived}


def _dump(message: ChatMessage) -> Json:
    """Return a message as JSON. Media are in fields that Holdfast stores apart, and values that JSON does not have are texts."""
    blocks = [_read_stream(block) for block in message.blocks]
    if any(new is not old for new, old in zip(blocks, message.blocks, strict=True)):
        message = message.model_copy(update={"blocks": blocks})
    dumped: Json = message.model_dump(mode="json", fallback=str)
    dumped["additional_kwargs"].pop("images", None)  # LlamaIndex has made them blocks already
    for block in dumped["blocks"]:
        field = MEDIA.get(block["block_type"], "data")
        if field != "data" and block[field] is not None:
            block["data"] = block.pop(field)
    return dumped


def _read_stream(block: Any) -> Any:
    """Return a block with the content of a stream in base64. Other blocks are returned unchanged."""
    field = MEDIA.get(block.block_type, "")
    stream = getattr(block, field, None)
    if not isinstance(stream, IOBase):
        return block
    stream.seek(0)
    return block.model_copy(update={field: base64.b64encode(stream.read())})


def _load(entry: Any) -> ChatMessage:
    """Return the message of an entry. Messages of other programs, and those with a file that is gone, are converted."""
    origin = entry.message.origin
    if isinstance(origin, dict) and isinstance(origin.get("blocks"), list) and "additional_kwargs" in origin:
        blocks = []
        for block in origin["blocks"]:
            field = MEDIA.get(block["block_type"], "data")
            moved = {field: block["data"]} if "data" in block else {}
            blocks.append({**{name: value for name, value in block.items() if name != "data"}, **moved})
        with suppress(ValidationError):
            return ChatMessage.model_validate({**origin, "blocks": blocks})
    return _convert(to_chat(entry.message))


def _to_chat(message: ChatMessage) -> Json:
    """Convert a message to Chat Completions format."""
    role = ROLES.get(message.role.value, message.role.value)
    kwargs = message.additional_kwargs
    parts = [part for block in message.blocks for part in _to_parts(block)]
    if role != "assistant":
        content = parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts or ""
        made = {"role": role, "content": content}
        return {**made, "tool_call_id": str(kwargs.get("tool_call_id") or "call")} if role == "tool" else made
    calls = [block for block in message.blocks if isinstance(block, ToolCallBlock)] or kwargs.get("tool_calls") or ()
    texts = [part.get("text") or f"[{part['type']}]" for part in parts]
    reply: Json = {"role": role, "content": "\n".join(texts)}
    return {**reply, "tool_calls": [_to_call(call) for call in calls]} if calls else reply


def _to_parts(block: Any) -> list[Json]:
    """Convert a block to parts of a message. Thinking, calls and cache points have none."""
    match block.block_type:
        case "text":
            return [{"type": "text", "text": block.text}]
        case "citable" | "citation":
            content = block.content if block.block_type == "citable" else [block.cited_content]
            return [part for one in content for part in _to_parts(one)]
        case "image" | "audio" | "video" | "document":
            return [_to_media(block)]
    return []


def _to_media(block: Any) -> Json:
    kind = block.block_type
    url = None if block.url is None else str(block.url)
    try:
        url = url if url is not None or kind == "audio" else _read_stream(block).inline_url()
        if kind == "image":
            return {
                "type": "image_url",
                "image_url": {"url": url, **({"detail": block.detail} if block.detail else {})},
            }
        if kind == "video":
            return {"type": "video_url", "video_url": {"url": url}}
        if kind == "document" and url and url.startswith("data:"):
            return {"type": "file", "file": {"filename": block.title, "file_data": url}}
        if kind == "audio" and url is None:
            data = _read_stream(block).resolve_audio(as_base64=True).read().decode()
            return {"type": "input_audio", "input_audio": {"data": data, "format": block.format or "wav"}}
    except (OSError, ValueError):  # no data, or a file that cannot be read
        url = str(block.path)
    return {"type": "text", "text": f"[{kind}: {url}]"}


def _to_call(call: Any) -> Json:
    """Convert a call: a block, or one of the forms that integrations of LlamaIndex have in `additional_kwargs`."""
    function = _get(call, "function") or call
    arguments = next(
        (one for name in ("arguments", "input", "tool_kwargs") if (one := _get(function, name)) is not None), ""
    )
    arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    names = [_get(function, name) for name in ("name", "tool_name")]
    ids = [_get(call, name) for name in ("id", "tool_call_id", "tool_id")]
    found = {"name": next(filter(None, names), "unknown"), "arguments": arguments}
    return {"id": str(next(filter(None, ids), "call")), "type": "function", "function": found}


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _convert(message: Json, own: ChatMessage | None = None) -> ChatMessage:
    """Convert a message that was shortened or generated for a prompt, or that another program wrote.

    Args:
        message: the message.
        own: the message that was shortened. Its thinking stays, because providers demand it before calls.
    """
    content = message.get("content") or ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    blocks: list[Any] = [block for block in own.blocks if isinstance(block, ThinkingBlock)] if own else []
    blocks += [_load_part(part) for part in parts if part.get("text") != ""]
    kwargs: Json = {}
    if message["role"] == "tool":
        kwargs = dict(own.additional_kwargs) if own else {"tool_call_id": message["tool_call_id"]}
    for call in message.get("tool_calls") or ():
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        blocks.append(ToolCallBlock(tool_call_id=call["id"], tool_name=name, tool_kwargs=_parse(arguments)))
    return ChatMessage(role=MessageRole(message["role"]), blocks=blocks, additional_kwargs=kwargs)


def _parse(arguments: str) -> Json | str:
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _load_part(part: Json) -> TextBlock | ImageBlock:
    if part["type"] == "image_url":
        return ImageBlock(url=part["image_url"]["url"], detail=part["image_url"].get("detail"))
    return TextBlock(text=str(part.get("text") or f"[{part['type']}]"))


def _restore(built: holdfast.Context, entries: dict[int, Any]) -> list[ChatMessage]:
    """Convert a working set to messages. Messages that are sent in full are the stored ones."""
    sources = list(zip(built.messages, built.sources, strict=True))
    owned = [(message, source, entries[source.seqs[0]]) for message, source in sources if source.kind == "entry"]
    # Chat Completions need media of results in a message of the user; LlamaIndex has them in the result.
    moved = {entry.seq for message, _, entry in owned if message["role"] == "user" and entry.message.role == "tool"}
    restored: list[ChatMessage] = []
    for message, source in sources:
        entry = entries[source.seqs[0]] if source.kind == "entry" else None
        if entry is None:
            restored.append(_convert(message))
        elif source.verbatim or (entry.seq in moved and message["role"] == "tool"):
            restored.append(_load(entry))
        elif entry.seq not in moved:
            restored.append(_convert(message, _load(entry)))
    return restored
