"""A session and an input filter for the OpenAI Agents SDK: the session keeps every item, the model gets fewer.

A call of the model gets the *working set*: the prompt that Holdfast builds within a token budget.

    session = HoldfastSession(hf, "trip-7", user_id="ada")
    config = RunConfig(call_model_input_filter=working_set_filter(session, budget=8000))
    await Runner.run(agent, "Where is my order?", session=session, run_config=config)

Facts about openai-agents 0.24 that this module relies on:

- The runner saves a reply together with the outputs of its calls, before the next call of the model.
- The runner passes the filter a copy of all items.
- To repeat a failed call, the runner compares the newest items of `get_items(limit=…)` and `pop_item`, so these methods return exactly the
  stored items.
- The runner passes `wrapper` only to sessions whose four methods all accept it.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from agents.memory import SessionSettings
from agents.run_config import CallModelData, ModelInputData

import holdfast
from holdfast.errors import Conflict, StaleSession, StoreError

__all__ = ["HoldfastSession", "working_set_filter"]

Json = dict[str, Any]
CALL_IDS: Final = ("call_id", "approval_request_id", "id")
"""Fields in which an output contains the id of its call, in the order in which they are tried."""
TRIES: Final = 64
"""Maximum number of attempts to remove the newest item while other processes change the session."""
SEARCHED: Final = 64
"""Maximum number of a call's newest items that may not be stored in the session yet."""


class HoldfastSession:
    """A session of the Agents SDK, stored in a session of Holdfast. Implements the protocol `agents.memory.Session`.

    Items are returned unchanged. Consecutive items of one reply, such as reasoning, text and parallel calls, are one message.

    Args:
        hf: an open `Holdfast`; or a `holdfast.portal()`, if the runner is used without `await` or from several event loops.
        session_id: the id of the session, which is created when it is used first.
        user_id: the owner of the session.
        session_settings: `limit` is the number of newest items that the runner reads. With a filter, 100 are enough.
    """

    def __init__(
        self,
        hf: holdfast.Holdfast | holdfast.Portal,
        session_id: str,
        *,
        user_id: str = "default",
        session_settings: SessionSettings | Json | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings = SessionSettings().resolve(session_settings)
        self._hf, self._user_id = hf, user_id
        self._handle: holdfast.SessionHandle | None = None

    async def get_items(self, limit: int | None = None, wrapper: Any = None) -> list[Any]:
        """Return all items, or the newest ones, oldest first.

        Args:
            limit: maximum number of items; None: the limit in `session_settings`, or all items.
            wrapper: not used. The runner passes it only if all four methods accept it, so that subclasses can use it.
        """
        limit = self.session_settings.limit if limit is None else limit
        if limit is None:
            return [item for entry in await self.run("entries") for item in _to_items(entry)]
        items: list[Json] = []
        stop: int | None = None
        while len(items) < limit and stop != 0:
            read = await self.run("entries", limit=limit - len(items), stop=stop, descending=True)
            items = [item for entry in reversed(read) for item in _to_items(entry)] + items
            stop = read[-1].seq if read else 0
        return items[-limit:] if limit > 0 else []

    async def add_items(self, items: Sequence[Any], wrapper: Any = None) -> None:
        """Append items to the session: all of them, or none if this fails or is cancelled."""
        if items:
            await self.run("append", [message for message, _ in _to_messages(items)])

    async def pop_item(self, wrapper: Any = None) -> Any:
        """Remove and return the newest item, or return None if there are no items. Concurrent calls return different items."""
        for _ in range(TRIES):
            marker = (await self.run("info")).log_marker
            read = await self.run("entries", limit=1, descending=True)
            while read and read[0].is_note:
                read = await self.run("entries", limit=1, stop=read[0].seq, descending=True)
            if not read:
                return None
            *kept, newest = _to_items(read[0])
            messages = [message for message, _ in _to_messages(kept)]
            # The key shows whether an attempt has popped the item although the store's answer was lost.
            write = {"retire_from": read[0].seq, "expect_log": marker, "idempotency_key": uuid.uuid4().hex}
            try:
                try:
                    await self.run("append", messages, **write)
                except StoreError:
                    await self.run("append", messages, **write)
            except StaleSession:
                continue
            return newest
        raise Conflict(f"session {self.session_id!r} is being written to constantly: try again")

    async def clear_session(self, wrapper: Any = None) -> None:
        """Remove all items. They stay in the session's log, but are no longer part of the conversation."""
        await self.run("clear")

    async def run(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the session's `SessionHandle`, in the event loop of the `Holdfast`.

        Args:
            method: its name, for example `context`.
            args: its positional arguments.
            kwargs: its keyword arguments.
        """
        portal = self._hf if isinstance(self._hf, holdfast.Portal) else None
        run: Callable[..., Awaitable[Any]] = portal.run if portal else _run_here
        owner = portal.hf if portal else self._hf
        assert isinstance(owner, holdfast.Holdfast), "a portal has one"
        if self._handle is None:
            self._handle = await run(owner.session, self.session_id, user_id=self._user_id)
        return await run(getattr(self._handle, method), *args, **kwargs)


def working_set_filter(
    session: HoldfastSession, *, strategy: str | None = None, budget: int | None = None, **options: Any
) -> Callable[[CallModelData[Any]], Awaitable[ModelInputData]]:
    """Return a filter for `RunConfig.call_model_input_filter` that replaces the items of a call by the working set.

    Messages that are sent in full are the call's own items. If a handoff or a `session_input_callback` has changed the newest items, the
    filter uses only the call's items, and fits them into the budget.

    Args:
        session: the session of the run.
        strategy: name of the strategy; None: the strategy of the `Holdfast`.
        budget: maximum tokens of the conversation; None: the budget of the `Holdfast`, or as many tokens as the model's context window
            allows.
        options: other arguments of `SessionHandle.context`, for example `model` or `tools`.
    """
    given = {"strategy": strategy, "budget": budget, **options}
    options = {name: value for name, value in given.items() if value is not None}

    async def filter_input(data: CallModelData[Any]) -> ModelInputData:
        items: list[Any] = data.model_data.input
        context = await session.run("context", save=True, **options)
        stored = await _read_sources(session, context.sources)
        tail = [item for seq in _find_tail(context.sources) for item in stored[seq]]
        end = _align(tail, items)
        if end is None:
            fitting = {**options, "budget": context.budget}
            pairs = _to_messages(items)
            context = await asyncio.to_thread(holdfast.fit, [message for message, _ in pairs], **fitting)
            system = next((at for at, (one, _) in enumerate(pairs) if one["role"] not in ("system", "developer")), 0)
            stored, end = {at: own for at, (_, own) in enumerate(pairs[system:])}, len(items)
        else:
            _use_own(stored, _find_tail(context.sources), items[:end])
        made = _assemble(context, stored)
        return ModelInputData(input=_drop_dangling([*made, *items[end:]]), instructions=data.model_data.instructions)

    return filter_input


async def _run_here(function: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
    return await function(*args, **kwargs)


# -- items -> messages -----------------------------------------------------------


def _to_messages(items: Iterable[Any]) -> list[tuple[Json, list[Any]]]:
    """Convert items to messages, each with its items. Consecutive items of the model are one message."""
    pairs: list[tuple[Json, list[Any]]] = []
    reply: list[Any] = []
    for item in items:
        role = _find_role(item)
        if role == "assistant":
            reply.append(item)
            continue
        pairs += [(_make_reply(reply), reply)] if reply else []
        reply = []
        pairs.append((_make_message(role, item), [item]))
    return [*pairs, (_make_reply(reply), reply)] if reply else pairs


def _find_role(item: Json) -> str:
    if "role" in item:
        role = item["role"]
        return role if role in ("user", "system", "developer") else "assistant"
    kind = str(item.get("type"))
    return "tool" if kind.endswith("output") or kind == "mcp_approval_response" else "assistant"


def _make_message(role: str, item: Json) -> Json:
    """Convert an item that is not part of a reply to a message. Fields that a message cannot have are stored in `origin`."""
    field = "output" if role == "tool" else "content"
    content = item.get(field)
    rest: Any = {name: value for name, value in item.items() if name not in ("role", field)}
    if not _is_content(content):
        content, rest = json.dumps(rest if content is None else content, ensure_ascii=False), [item]
    message = {"role": role, "content": content}
    if role == "tool":
        message["tool_call_id"] = next((str(item[name]) for name in CALL_IDS if item.get(name)), "unknown")
    return {**message, "origin": rest} if rest else message


def _is_content(content: Any) -> bool:
    """Return True if a message can have this content unchanged."""
    if not isinstance(content, list):
        return isinstance(content, str)
    return all(
        isinstance(part, dict)
        and isinstance(part.get("type"), str)
        and ("text" not in part or isinstance(part["text"], str))
        for part in content
    )


def _make_reply(items: list[Any]) -> Json:
    """Convert the items of a reply to one message. The items are also stored in the message's `origin`."""
    texts, calls = [], []
    for item in items:
        kind, call_id = (
            item.get("type"),
            item.get("call_id") or (item.get("type", "").endswith("request") and item["id"]),
        )
        if "role" in item:
            texts.append(_read_text(item.get("content")))
        elif call_id:
            arguments = item.get("arguments", item.get("input"))
            if not isinstance(arguments, str):
                arguments = json.dumps(item.get("action", arguments), ensure_ascii=False)
            function = {"name": item.get("name") or kind, "arguments": arguments}
            calls.append({"id": str(call_id), "type": "function", "function": function})
        elif kind != "reasoning":  # tools of the provider: their results are part of the prompt
            texts.append(
                json.dumps({name: value for name, value in item.items() if name != "result"}, ensure_ascii=False)
            )
    message: Json = {"role": "assistant", "content": "\n".join(filter(None, texts)), "origin": items}
    return {**message, "tool_calls": calls} if calls else message


def _read_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(
        str(part.get("text") or part.get("refusal") or "") for part in content or () if isinstance(part, dict)
    )


# -- messages -> items -----------------------------------------------------------


def _to_items(entry: Any) -> list[Json]:
    """Return the items of a log entry. A note has no items. Entries that another program wrote are converted."""
    message, stored = entry.message, entry.message.origin
    if entry.is_note:
        return []
    if isinstance(stored, list):
        return stored
    content: Any = message.content
    if isinstance(content, tuple):
        content = [
            {"type": part.type, **({} if part.text is None else {"text": part.text}), **part.extra} for part in content
        ]
    if message.role == "tool":
        made = stored or {"type": "function_call_output", "call_id": message.tool_call_id}
        return [{"output": content, **made}]
    if message.role != "assistant":
        return [{"role": message.role, "content": content, **(stored or {})}]
    calls = [
        {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}} for call in message.tool_calls
    ]
    return _convert({"role": "assistant", "content": message.text, "tool_calls": calls}, [])


def _convert(message: Json, own: Sequence[Json]) -> list[Json]:
    """Convert a message that was shortened or generated for the prompt to items.

    Args:
        message: the message.
        own: the items of the log entry. Their calls keep their types but lose their ids, because an id is only valid with its reasoning.
    """
    content = message.get("content") or ""
    if message["role"] == "tool":
        base = own[0] if own else {"type": "function_call_output", "call_id": message["tool_call_id"]}
        is_text = base["type"] in ("function_call_output", "custom_tool_call_output")
        return [{**base, "output": _convert_content(content)} if is_text else base]
    if message["role"] != "assistant":
        return [{"role": message["role"], "content": _convert_content(content)}]
    text, items = _read_text(content), []
    known = {item.get("call_id"): item for item in own}
    for call in message.get("tool_calls") or ():
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        base = known.get(call["id"]) or {"type": "function_call", "call_id": call["id"], "name": name}
        changed = {"arguments": arguments} if base["type"] == "function_call" else {}
        items.append({**{key: value for key, value in base.items() if key != "id"}, **changed})
    return [{"role": "assistant", "content": text}, *items] if text or not items else items


def _convert_content(content: Any) -> Any:
    return content if isinstance(content, str) else [_convert_part(part) for part in content]


def _convert_part(part: Json) -> Json:
    match part["type"]:
        case "text":
            return {"type": "input_text", "text": part["text"]}
        case "image_url":
            image = part["image_url"]
            return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail", "auto")}
        case "file":
            return {"type": "input_file", **part["file"]}
    return part


# -- working set -> items --------------------------------------------------------


async def _read_sources(session: HoldfastSession, sources: Sequence[holdfast.MessageSource]) -> dict[int, list[Json]]:
    """Read the log entries in a working set, and return their items by `seq` (position in the log)."""
    seqs = sorted({seq for source in sources if source.kind == "entry" for seq in source.seqs})
    stored: dict[int, list[Json]] = {}
    while seqs:
        last = next((at for at, seq in enumerate(seqs) if seq != seqs[0] + at), len(seqs)) - 1
        entries = await session.run("entries", start=seqs[0], stop=seqs[last] + 1)
        stored |= {entry.seq: _to_items(entry) for entry in entries}
        seqs = seqs[last + 1 :]
    return stored


def _find_tail(sources: Sequence[holdfast.MessageSource]) -> list[int]:
    """Return the positions (`seq`) of the newest entries in a working set, without a gap between them."""
    seqs = sorted({seq for source in sources if source.kind == "entry" for seq in source.seqs})
    gap = next((at for at in range(len(seqs) - 1, 0, -1) if seqs[at - 1] != seqs[at] - 1), 0)
    return seqs[gap:]


def _align(tail: Sequence[Json], items: Sequence[Json]) -> int | None:
    """Return the number of a call's items that are stored already, or None if the call's items do not continue the stored ones.

    Args:
        tail: the newest stored items that the working set contains.
        items: the items of the call.
    """
    keys = [_make_key(item) for item in tail]
    given = [_make_key(item) for item in items[-len(tail) - SEARCHED :]]
    for unsaved in range(min(SEARCHED, len(given)) if keys else 0):
        found = given[: len(given) - unsaved][-len(keys) :]
        if found == keys[-len(found) :]:
            return len(items) - unsaved
    return None


def _make_key(item: Json) -> str:
    """Return a key by which an item equals its stored copy, from which the runner removes its private fields."""
    return json.dumps({name: value for name, value in item.items() if name[:1] != "_"}, sort_keys=True, default=str)


def _use_own(stored: dict[int, list[Json]], tail: Sequence[int], items: Sequence[Json]) -> None:
    """Replace the newest items in `stored` by the call's own equal items."""
    end = len(items)
    for seq in reversed(tail):
        start = end - len(stored[seq])
        if start < 0:
            return
        stored[seq], end = list(items[start:end]), start


def _assemble(context: holdfast.Context, stored: dict[int, list[Json]]) -> list[Json]:
    made: list[Json] = []
    sources = list(zip(context.messages, context.sources, strict=True))
    entries = [(message["role"], seq) for message, source in sources if source.kind == "entry" for seq in source.seqs]
    # Chat Completions need media of results in a message of the user; items have them in the output.
    moved = {seq for role, seq in entries if role == "user" and ("tool", seq) in entries}
    for message, source in sources:
        own = stored.get(source.seqs[0], []) if source.kind == "entry" and len(source.seqs) == 1 else []
        if source.kind == "entry" and source.seqs[0] in moved:
            made += own if message["role"] == "tool" else []
        else:
            made += own if own and source.verbatim else _convert(message, own)
    return made


def _drop_dangling(items: Sequence[Json]) -> list[Json]:
    """Drop reasoning that is not followed by another item of the same reply, because the Responses API rejects such reasoning."""
    kept: list[Json] = []
    follows = False
    for item in reversed(items):
        follows = (follows or item.get("type") != "reasoning") and _find_role(item) == "assistant"
        if follows or item.get("type") != "reasoning":
            kept.append(item)
    return kept[::-1]
