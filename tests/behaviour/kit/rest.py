"""The REST API, by plain HTTP requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx2

from tests.behaviour.kit.drivers import Row
from tests.behaviour.kit.refusals import Refused


async def ask(http: httpx2.AsyncClient, method: str, path: str, body: Any = None, **query: Any) -> Any:
    """Send a request; return the decoded answer. Raises `Refused` with the error of the answer."""
    given = {name: value for name, value in query.items() if value is not None}
    params = {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}
    answer = await http.request(method, path, params=params, **({} if body is None else {"json": body}))
    found: Any = answer.json() if answer.content else None
    if answer.is_success:
        return found
    error = found["error"]
    refusal = Refused(error["message"], code=error.get("code"), param=error.get("param"), status=answer.status_code)
    refusal.body = found
    raise refusal


def to_owner(options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that name the owner of memories, taken out of `options`."""
    user, agent, app = options.pop("user", None), options.pop("agent", None), options.pop("app", False)
    if app:
        return {"scope": "app"}
    return {"agent": agent, "scope": "agent"} if agent is not None else {"user_id": user or "default"}


def to_message(given: Any) -> Any:
    """Return a message: a text is what the user says."""
    return {"role": "user", "content": given} if isinstance(given, str) else given


class RestSession:
    """A session at its path."""

    def __init__(self, http: httpx2.AsyncClient, id: str, user: str) -> None:  # noqa: A002
        self.http, self.id, self.user = http, id, user
        self.path = "/v1/sessions/" + quote(id, safe="").replace(".", "%2E")

    async def ask(self, method: str, *more: Any, body: Any = None, **query: Any) -> Any:
        """Send a request to a path below the session."""
        path = "/".join([self.path, *(quote(str(one), safe="") for one in more)])
        return await ask(self.http, method, path, body, **{"user_id": self.user, **query})

    async def info(self) -> Row:
        return await self._row("GET", "info")

    async def messages(self, *, retired: bool = False) -> list[Row]:
        found: list[Row] = []
        while True:
            after = found[-1]["seq"] if found else None
            page = await self.ask("GET", "messages", limit=100, after=after, retired=retired or None)
            found += page["data"]
            if not page["has_more"]:
                return found

    async def export(self, **options: Any) -> Row:
        return await self._row("GET", **options)

    async def history(self, view: str = "voice") -> list[Row]:
        found: Row = await self.ask("GET", "history", view=view)
        rows: list[Row] = found["contents" if view == "voice" else "messages"]
        return rows

    async def append(self, *messages: Any, **options: Any) -> list[Row]:
        key, expect = options.pop("idempotency_key", None), options.pop("expect", None)
        headers = {"idempotency-key": key, "if-match": None if expect is None else str(expect)}
        given = [to_message(message) for message in messages]
        if (state := options.pop("state", None)) is not None:
            options["changes"] = [{"op": "set", "key": key, "value": value} for key, value in state.items()]
        with _headers(self.http, headers):
            found = await self.ask("POST", "messages", body={"messages": given, **options})
        rows: list[Row] = found["data"]
        return rows

    async def replace(self, seq: int, message: Any, **options: Any) -> Row:
        return await self._row("PUT", "messages", seq, body={"message": to_message(message), **options})

    async def erase(self, seq: int) -> Row:
        return await self._row("DELETE", "messages", seq)

    async def annotate(self, seq: int, **fields: Any) -> Row:
        return await self._row("PATCH", "messages", seq, body=fields)

    async def update(self, **fields: Any) -> Row:
        return await self._row("PATCH", body=fields)

    async def fork(self, at_turn: int | None = None, id: str | None = None) -> RestSession:  # noqa: A002
        body = {name: value for name, value in {"at_turn": at_turn, "id": id}.items() if value is not None}
        made = await self._row("POST", "fork", body=body)
        return RestSession(self.http, made["id"], made["user_id"])

    async def rewind(self, at_turn: int) -> Row:
        return await self._row("POST", "rewind", body={"at_turn": at_turn})

    async def move(self, **to: Any) -> RestSession:
        made = await self._row("POST", "move", body=to)
        return RestSession(self.http, made["id"], made["user_id"])

    async def close(self) -> Row:
        return await self._row("POST", "close")

    async def delete(self) -> Row:
        receipt: Row = (await self._row("DELETE"))["receipt"]
        return receipt

    async def context(self, **options: Any) -> Row:
        return await self._row("POST", "context", body=options)

    async def explain(self, **options: Any) -> Row:
        return await self._row("GET", "explain", **{"q" if k == "text" else k: v for k, v in options.items()})

    async def prompt(self, call_id: str = "next", **options: Any) -> Row:
        return await self._row("GET", "calls", call_id, **options)

    async def calls(self, **options: Any) -> list[Row]:
        return await self._rows("GET", "calls", **options)

    async def facts(self, **options: Any) -> list[Row]:
        return await self._rows("GET", "facts", **options)

    async def change_fact(self, fact_id: str, how: str) -> None:
        body = {"pin": {"pinned": True}, "drop": {"dropped": True}, "reset": {"pinned": False, "dropped": False}}
        await self.ask("PATCH", "facts", fact_id, body=body[how])

    async def compact(self, **options: Any) -> Row | None:
        try:
            return await self._row("POST", "compactions", body=options)
        except Refused as exc:
            if exc.code != "nothing_to_compact":
                raise
            return None

    async def compactions(self) -> list[Row]:
        return await self._rows("GET", "compactions")

    async def drop_compaction(self, compaction_id: int) -> Row:
        return await self._row("DELETE", "compactions", compaction_id)

    async def state(self) -> Row:
        return await self._row("GET", "state")

    async def change_state(self, **values: Any) -> Row:
        return await self._row("PATCH", "state", body=values)

    async def turn(self, *messages: Any, reply: str | None = None, **options: Any) -> Row:
        given = [to_message(message) for message in messages]
        made = await self._row("POST", "turns", body={"messages": given, **options})
        if reply is not None:
            await self.append({"role": "assistant", "content": reply}, expect_log=made["session"]["log_marker"])
        return made

    async def send(self, *messages: Any, **options: Any) -> Row:
        given = [to_message(message) for message in messages]
        body = {"session_id": self.id, "user": self.user, "messages": given, **options}
        found: Row = await ask(self.http, "POST", "/v1/chat/completions", body)
        return found

    async def speak(self, text: str | None = None, **options: Any) -> Row:
        return await self._row("POST", "speak", body={**({} if text is None else {"text": text}), **options})

    async def interrupt(self, **heard: Any) -> Row:
        return await self._row("POST", "interrupt", body=heard)

    async def _row(self, method: str, *more: Any, body: Any = None, **query: Any) -> Row:
        found: Row = await self.ask(method, *more, body=body, **query)
        return found

    async def _rows(self, method: str, *more: Any, **query: Any) -> list[Row]:
        found: list[Row] = (await self.ask(method, *more, **query))["data"]
        return found


class RestDriver:
    """A server, asked by HTTP."""

    name = "rest"

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    def session(self, id: str = "s", user: str = "default") -> RestSession:  # noqa: A002
        return RestSession(self.http, id, user)

    async def create(self, id: str | None = "s", *, user: str = "default", **fields: Any) -> RestSession:  # noqa: A002
        named = {} if id is None else {"id": id}
        made = await ask(self.http, "POST", "/v1/sessions", {**named, "user_id": user, **fields})
        return self.session(made["id"], made["user_id"])

    async def given(self, id: str, *messages: Any, user: str = "default", **fields: Any) -> RestSession:  # noqa: A002
        session = await self.create(id, user=user, **fields)
        if messages:
            await session.append(*messages)
        return session

    async def sessions(self, **options: Any) -> list[Row]:
        user = options.pop("user", None)
        found: list[Row] = (await ask(self.http, "GET", "/v1/sessions", user_id=user, **options))["data"]
        return found

    async def import_session(self, exported: Mapping[str, Any], **options: Any) -> Row:
        target = options.pop("session_id", exported.get("id"))
        query = {"user_id": options.pop("user_id", exported.get("user_id")), "replace": options.pop("replace", False)}
        path = self.session(target).path
        found: Row = await ask(self.http, "PUT", path, {**exported, "id": target}, **query)
        return found

    async def search(self, query: str, **options: Any) -> list[Row]:
        user = options.pop("user", "default")
        found: list[Row] = (await ask(self.http, "GET", "/v1/search", q=query, user_id=user, **options))["data"]
        return found

    async def remember(self, content: str, **options: Any) -> Row:
        body = {**to_owner(options), "content": content, **options}
        found: Row = await ask(self.http, "POST", "/v1/memories", body)
        return found

    async def memories(self, query: str | None = None, **options: Any) -> list[Row]:
        owner = to_owner(options)
        found: list[Row] = (await ask(self.http, "GET", "/v1/memories", q=query, **owner, **options))["data"]
        return found

    async def review(self, memory_id: str, decision: str, **owner: Any) -> Row:
        found: Row = await ask(self.http, "POST", f"/v1/memories/{memory_id}/review", {"decision": decision})
        return found

    async def forget(self, memory_id: str) -> None:
        await ask(self.http, "DELETE", f"/v1/memories/{memory_id}")

    async def shared_state(self, user: str | None = None) -> Row:
        found: Row = await ask(self.http, "GET", "/v1/state", **_scope(user))
        return found

    async def change_shared_state(self, values: Mapping[str, Any], user: str | None = None) -> Row:
        found: Row = await ask(self.http, "PATCH", "/v1/state", {**values}, **_scope(user))
        return found

    async def delete_user(self, user: str) -> Row:
        receipt: Row = (await ask(self.http, "DELETE", "/v1/users/" + quote(user, safe="")))["receipt"]
        return receipt


def _scope(user: str | None) -> dict[str, str]:
    return {"scope": "tenant"} if user is None else {"user_id": user}


class _headers:  # noqa: N801
    """Send these headers, those that are not None, within the block."""

    def __init__(self, http: httpx2.AsyncClient, headers: Mapping[str, str | None]) -> None:
        self.http, self.added = http, {name: value for name, value in headers.items() if value is not None}

    def __enter__(self) -> None:
        self.http.headers.update(self.added)

    def __exit__(self, *_: object) -> None:
        for name in self.added:
            del self.http.headers[name]
