"""State, records and artifacts: one interface for each, whichever driver opened the product."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from holdfast import SessionRef
from tests.behaviour.kit.command_line import CommandLineDriver
from tests.behaviour.kit.drivers import Row
from tests.behaviour.kit.library import to_row
from tests.behaviour.kit.refusals import Refused, library_errors
from tests.behaviour.kit.rest import RestDriver, RestSession, ask

Rows = list[Row]
Namespaces = list[tuple[str, ...]]

# -- state -------------------------------------------------------------------------


class State:
    """The state of a session, of a user, or of the app. Without a session, keys have the prefix of the scope."""

    def __init__(self, hf: Any, session: str | None = None, user: str | None = None) -> None:
        self.hf, self.session, self.user = hf, session, user

    async def all(self) -> Row:
        if isinstance(self.hf, RestDriver):
            found: Row = await ask(self.hf.http, "GET", "/v1/state", **self._query())
        elif isinstance(self.hf, CommandLineDriver):
            found = await self.hf.ask("state", "get", **self._options())
        else:
            found = await self._native("all")
        return found

    async def set(self, **values: Any) -> None:
        """Change all keys or none; None deletes."""
        if isinstance(self.hf, RestDriver):
            await ask(self.hf.http, "PATCH", "/v1/state", values, **self._query())
        elif isinstance(self.hf, CommandLineDriver):
            for key, value in values.items():
                change = ("unset", key) if value is None else ("set", key, json.dumps(value))
                await self.hf.ask("state", *change, **self._options())
        else:
            await self._native("update", values)

    async def increment(self, key: str, by: float = 1) -> Any:
        """Add to a number; return the sum."""
        if isinstance(self.hf, RestDriver):
            return (await self.apply({"op": "increment", "key": key, "by": by}))[key]
        if isinstance(self.hf, CommandLineDriver):
            return (await self.hf.ask("state", "set", key, "--increment", str(by), **self._options()))[key]
        return await self._native("increment", key, by)

    async def append(self, key: str, *values: Any) -> int:
        """Append to a list; return its length."""
        if isinstance(self.hf, RestDriver):
            return len((await self.apply({"op": "append", "key": key, "values": [*values]}))[key])
        if isinstance(self.hf, CommandLineDriver):
            given = map(json.dumps, values)
            found: int = (await self.hf.ask("state", "set", "--append", key, *given, **self._options()))["length"]
            return found
        return int(await self._native("append", key, *values))

    async def compare_and_set(self, key: str, expected: Any, value: Any) -> bool:
        """Set a key if it has the expected value; None: if it has none."""
        if isinstance(self.hf, RestDriver):
            change = {"op": "set", "key": key, "value": value}
            try:
                await self.apply({"op": "expect", "key": key, "value": expected}, change)
            except Refused as exc:
                if exc.code != "stale_state":
                    raise
                return False
            return True
        done: bool = await self._native("compare_and_set", key, expected, value)
        return done

    async def apply(self, *changes: Row) -> Row:
        """REST only: apply operations in order, all or none; return the new values."""
        made = await ask(self.hf.http, "POST", "/v1/state", {"changes": [*changes]}, **self._query())
        values: Row = made["values"]
        return values

    def _query(self) -> dict[str, Any]:
        if self.session is None and self.user is None:
            return {"scope": "tenant"}
        return {"session_id": self.session, "user_id": self.user}

    def _options(self) -> dict[str, Any]:
        whole = self.session is None and self.user is None
        return {"session": self.session, "user": self.user, "app": whole}

    async def _native(self, method: str, *args: Any) -> Any:
        native = self.hf.native
        with library_errors():
            if self.session is not None:
                handle = (await native.get(SessionRef(self.user or "default", self.session))).state
            else:
                handle = native.app_state() if self.user is None else native.user_state(self.user)
            return await getattr(handle, method)(*args)


# -- records -----------------------------------------------------------------------


class Records:
    """Records of a session, of a user, or of the tenant in a namespace (not on the command line)."""

    def __init__(self, hf: Any, *labels: str, user: str | None = None, session: str | None = None) -> None:
        self.hf, self.labels, self.user, self.session = hf, labels, user, session
        self.rest = isinstance(hf, RestDriver)

    async def put(self, key: str, value: Any, *, expect: int | None = None, **options: Any) -> int:
        """Store JSON or bytes; return the version. Options: `text`, `ttl` in milliseconds."""
        return int((await self.change(("put", key, value, {"expect": expect, **options})))["version"])

    async def change(self, *changes: tuple[str, str, Any, dict[str, Any]]) -> Row:
        """Apply changes `(put or delete, key, value, options)`, all or none; return `version` and `existed`."""
        if not self.rest:
            made = []
            with library_errors():
                for op, key, value, options in changes:
                    ttl = options.get("ttl")
                    given = (key, value) if op == "put" else (key,)
                    more = options if ttl is None else {**options, "ttl": ttl / 1000}
                    made.append(getattr(self._native(), f"make_{op}")(*given, **more))
                return to_row(await self._native().change(made))
        body = []
        for op, key, value, options in changes:
            row = {
                "op": op,
                "namespace": [*self.labels],
                "key": key,
                **{k: v for k, v in options.items() if v is not None},
            }
            if op == "put":
                row |= {"value": value} if not isinstance(value, bytes) else _to_base64(value)
            body.append(row)
        found: Row = await ask(self.hf.http, "POST", "/v1/records", {"changes": body}, **self._owner())
        return found

    async def get(self, key: str) -> Row | None:
        if not self.rest:
            with library_errors():
                found = await self._native().get(key)
            return None if found is None else _from_record(found)
        try:
            row = await ask(self.hf.http, "GET", "/v1/records/record", **self._owner(), **self._path(), key=key)
        except Refused as exc:
            if exc.code != "record_not_found":
                raise
            return None
        return _from_answer(row)

    async def list(self, prefix: str = "", **options: Any) -> Rows:
        """Return the records in order. Options: `nested`, `limit`, `descending`, `values`."""
        if not self.rest:
            with library_errors():
                return [_from_record(one) for one in (await self._native().list(prefix, **options)).records]
        if options.pop("descending", False):
            options["order"] = "desc"
        query = {**self._owner(), **self._path(), "prefix": prefix or None, **options}
        return [_from_answer(one) for one in (await ask(self.hf.http, "GET", "/v1/records", **query))["data"]]

    async def search(self, query: str, prefix: str = "", **options: Any) -> Rows:
        """Return hits: records with `score` and `snippet`."""
        if not self.rest:
            with library_errors():
                found = await self._native().search(query, prefix=prefix, **options)
            return [{**_from_record(one.record), "score": one.score, "snippet": one.snippet} for one in found.hits]
        given = {**self._owner(), **self._path(), "q": query, "prefix": prefix or None, **options}
        rows = (await ask(self.hf.http, "GET", "/v1/records", **given))["data"]
        return [{**_from_answer(one), "score": one["score"], "snippet": one["snippet"]} for one in rows]

    async def namespaces(self, **options: Any) -> Namespaces:
        if not self.rest:
            with library_errors():
                return [tuple(one) for one in await self._native().namespaces(**options)]
        query = {**self._owner(), **self._path(), **options}
        found = await ask(self.hf.http, "GET", "/v1/records/namespaces", **query)
        return [tuple(one["namespace"]) for one in found["data"]]

    def _native(self) -> Any:
        ref = None if self.session is None else SessionRef(self.user or "default", self.session)
        return self.hf.native.records(self.labels, user_id=None if ref else self.user, session=ref)

    def _owner(self) -> dict[str, Any]:
        if self.session is None and self.user is None:
            return {"scope": "tenant"}
        return {"session_id": self.session, "user_id": self.user}

    def _path(self) -> dict[str, Any]:
        escaped = (label.replace("~", "~0").replace("/", "~1") for label in self.labels)
        return {"namespace": "/".join(escaped) or None}


def _to_base64(value: bytes) -> Row:
    return {"value": base64.b64encode(value).decode(), "encoding": "base64"}


def _from_record(record: Any) -> Row:
    names = ("key", "value", "version", "created_at", "updated_at", "expires_at", "text")
    return {"namespace": tuple(record.namespace), **{name: getattr(record, name, None) for name in names}}


def _from_answer(row: Row) -> Row:
    names = ("key", "version", "created_at", "updated_at", "expires_at", "text")
    value = row.get("value")
    if row.get("encoding") == "base64" and isinstance(value, str):
        value = base64.b64decode(value)
    return {"namespace": tuple(row["namespace"]), "value": value, **{name: row.get(name) for name in names}}


# -- artifacts ---------------------------------------------------------------------


class Files:
    """The artifacts of a session (not on the command line)."""

    def __init__(self, session: Any) -> None:
        self.session, self.rest = session, isinstance(session, RestSession)

    async def save(self, name: str, content: Any, *, expect: int | None = None, **options: Any) -> Row:
        """Save bytes or a text; return the artifact. Options: `mime_type`, `author`, `metadata`; `expect=-1`: there is none."""
        if not self.rest:
            return _to_file(await self._native("save", name, content, expect=expect, **options))
        headers = {"content-type": options["mime_type"]} if "mime_type" in options else {}
        if expect is not None:
            headers |= {"if-none-match": "*"} if expect == -1 else {"if-match": f'"{expect}"'}
        query = {"author": options["author"]} if "author" in options else {}
        query |= {"metadata": json.dumps(options["metadata"])} if "metadata" in options else {}
        data = content.encode() if isinstance(content, str) else content
        found: Row = (await self._send("PUT", name, query, headers, data)).json()
        return found

    async def load(self, name: str, version: int | None = None, part: tuple[int, int] | None = None) -> bytes:
        """Return the content, or the bytes from `part[0]` to before `part[1]`."""
        if not self.rest:  # `connect` has no parts
            more = {} if part is None else {"start": part[0], "stop": part[1]}
            found: bytes = (await self._native("load", name, version, **more)).data
            return found
        query = {} if version is None else {"version": version}
        headers = {} if part is None else {"range": f"bytes={part[0]}-{part[1] - 1}"}
        return bytes((await self._send("GET", name, query, headers)).content)

    async def list(self) -> Rows:
        if not self.rest:
            return [_to_file(one) for one in await self._native("list")]
        rows: Rows = (await self._send("GET", None)).json()["data"]
        return rows

    async def versions(self, name: str) -> Rows:
        if not self.rest:
            return [_to_file(one) for one in await self._native("versions", name)]
        rows: Rows = (await self._send("GET", None, {"name": name})).json()["data"]
        return rows

    async def delete(self, name: str, version: int | None = None) -> None:
        if self.rest:
            await self._send("DELETE", name, {} if version is None else {"version": version})
        else:
            await self._native("delete", name, version)

    async def _native(self, method: str, *args: Any, **options: Any) -> Any:
        handle = await self.session.native()
        with library_errors():
            return await getattr(handle.artifacts, method)(*args, **options)

    async def _send(
        self, method: str, name: str | None, query: Any = None, headers: Any = None, content: Any = None
    ) -> Any:
        path = f"{self.session.path}/artifacts" + ("" if name is None else "/" + quote(name, safe=""))
        params = {"user_id": self.session.user, **(query or {})}
        answer = await self.session.http.request(method, path, params=params, headers=headers, content=content)
        if answer.is_success:
            return answer
        error = answer.json()["error"]
        raise Refused(error["message"], code=error["code"], param=error.get("param"), status=answer.status_code)


def _to_file(artifact: Any) -> Row:
    row = to_row(artifact)
    return {**row, "sha256": bytes(artifact.sha256).hex() if isinstance(artifact.sha256, bytes) else artifact.sha256}


def names(rows: Sequence[Row]) -> list[tuple[str, int]]:
    """Return name and version of artifacts."""
    return [(row["name"], row["version"]) for row in rows]
