"""The command line, with `--json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.behaviour.kit.drivers import Row
from tests.behaviour.kit.refusals import Refused


class Printed(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Any]


def to_options(options: Mapping[str, Any]) -> list[str]:
    """Return options of a command: `limit=3` becomes `--limit 3`, `full=True` becomes `--full`."""
    made: list[str] = []
    for name, value in options.items():
        flag = "--" + {"session_id": "session", "user_id": "user"}.get(name, name).replace("_", "-")
        if value is True:
            made.append(flag)
        elif value is not None and value is not False:
            made += [flag, str(value)]
    return made


class CommandLineSession:
    """A session, as commands name it."""

    def __init__(self, driver: CommandLineDriver, id: str, user: str) -> None:  # noqa: A002
        self.driver, self.id, self.user = driver, id, user

    async def ask(self, *command: str, arguments: tuple[Any, ...] = (), **options: Any) -> Any:
        """Run a command about this session; return what it printed, decoded."""
        return await self.driver.ask(*command, self.id, *map(str, arguments), user=self.user, **options)

    async def info(self) -> Row:
        shown: Row = await self.ask("sessions", "show")
        return shown

    async def messages(self, *, retired: bool = False) -> list[Row]:
        found: list[Row] = (await self.export(retired=retired))["messages"]
        return found

    async def export(self, **options: Any) -> Row:
        options = {"no_records": not options.pop("records", True), **options}
        printed = await self.driver.call("sessions", "export", self.id, *to_options({"user": self.user, **options}))
        found: Row = json.loads(printed.out)
        return found

    async def annotate(self, seq: int, **fields: Any) -> Row:
        pinned = fields.pop("pinned", None)
        pin = {} if pinned is None else {"pin" if pinned else "unpin": True}
        found: Row = await self.ask("sessions", "annotate", arguments=(seq,), **pin, **fields)
        return found

    async def fork(self, at_turn: int | None = None, id: str | None = None) -> CommandLineSession:  # noqa: A002
        made = await self.ask("sessions", "fork", at_turn=at_turn, id=id)
        return CommandLineSession(self.driver, made["id"], made["user_id"])

    async def rewind(self, at_turn: int) -> Row:
        found: Row = await self.ask("sessions", "rewind", at_turn=at_turn)
        return found

    async def move(self, **to: Any) -> CommandLineSession:
        options = {"to_user" if name == "user_id" else name: value for name, value in to.items()}
        made = await self.ask("sessions", "move", **options)
        return CommandLineSession(self.driver, made["id"], made["user_id"])

    async def close(self) -> Row:
        closed: Row = (await self.ask("sessions", "close"))[0]
        return closed

    async def delete(self) -> Row:
        receipt: Row = (await self.ask("sessions", "delete", yes=True))[0]["receipt"]
        return receipt

    async def explain(self, **options: Any) -> Row:
        found: Row = await self.ask("explain", **options)
        return found

    async def prompt(self, call_id: str = "next", **options: Any) -> Row:
        found: Row = await self.ask("prompt", arguments=() if call_id == "next" else (call_id,), **options)
        return found

    async def facts(self, **options: Any) -> list[Row]:
        found: list[Row] = await self.ask("facts", **options)
        return found

    async def change_fact(self, fact_id: str, how: str) -> None:
        options: dict[str, Any] = {how: fact_id}
        await self.ask("facts", **options)

    async def compactions(self) -> list[Row]:
        found: list[Row] = (await self.info()).get("compactions", [])
        return found

    async def state(self) -> Row:
        found: Row = await self.driver.ask("state", "get", session=self.id, user=self.user)
        return found

    async def change_state(self, **values: Any) -> Row:
        where = {"session": self.id, "user": self.user}
        for key, value in values.items():
            change = ("unset", key) if value is None else ("set", key, json.dumps(value))
            await self.driver.call("state", *change, *to_options(where))
        return await self.state()


class CommandLineDriver:
    """The commands of `holdfast`, on one database."""

    name = "cli"

    def __init__(self, run: Run, store: str, config: str | None) -> None:
        self._run, self._given = run, ["--store", store, *(["--config", config] if config else [])]

    async def run(self, *arguments: str, input: str | None = None) -> Printed:  # noqa: A002
        """Run a command on the database, whatever comes of it."""
        # Workspaces are folders: their commands take no database.
        given = self._given[2:] if arguments[0] == "workspace" else self._given
        found: Printed = await self._run([*arguments, *given], input)
        return found

    async def call(self, *arguments: str, input: str | None = None) -> Printed:  # noqa: A002
        """Run a command. Raises `Refused` with what it printed if it fails."""
        printed = await self.run(*arguments, input=input)
        if printed.code != 0:
            raise Refused(printed.err.removeprefix("Error: ").strip(), code=None)
        return printed

    async def ask(self, *command: str, **options: Any) -> Any:
        """Run a command with `--json`; return what it printed, decoded."""
        return json.loads((await self.call(*command, "--json", *to_options(options))).out)

    def session(self, id: str = "s", user: str = "default") -> CommandLineSession:  # noqa: A002
        return CommandLineSession(self, id, user)

    async def given(self, id: str, *messages: Any, user: str = "default", **fields: Any) -> CommandLineSession:  # noqa: A002
        await self.import_session({"id": id, "user_id": user, "messages": [*messages], **fields})
        return self.session(id, user)

    async def sessions(self, **options: Any) -> list[Row]:
        found: list[Row] = await self.ask("sessions", "list", **options)
        return found

    async def import_session(self, exported: Mapping[str, Any], **options: Any) -> Row:
        printed = await self.call("sessions", "import", "-", *to_options(options), input=json.dumps(exported))
        return {"printed": printed.out}

    async def search(self, query: str, **options: Any) -> list[Row]:
        found: list[Row] = (await self.ask("search", query, **{"user": "default", **options}))["hits"]
        return found

    async def remember(self, content: str, **options: Any) -> Row:
        found: Row = await self.ask("memories", "remember", content, **options)
        return found

    async def memories(self, query: str | None = None, **options: Any) -> list[Row]:
        command = ("memories", "list") if query is None else ("memories", "recall", query)
        found = await self.ask(*command, **options)
        rows: list[Row] = found if isinstance(found, list) else found["memories"]
        return rows

    async def review(self, memory_id: str, decision: str, **owner: Any) -> Row:
        found: Row = await self.ask("memories", "review", memory_id, decision, **owner)
        return found

    async def forget(self, memory_id: str) -> None:
        await self.call("memories", "forget", memory_id)

    async def shared_state(self, user: str | None = None) -> Row:
        found: Row = await self.ask("state", "get", **_scope(user))
        return found

    async def change_shared_state(self, values: Mapping[str, Any], user: str | None = None) -> Row:
        for key, value in values.items():
            await self.call("state", "set", key, json.dumps(value), *to_options(_scope(user)))
        return await self.shared_state(user)

    async def delete_user(self, user: str) -> Row:
        receipt: Row = (await self.ask("sessions", "delete", user=user, yes=True))["receipt"]
        return receipt


def _scope(user: str | None) -> dict[str, Any]:
    return {"app": True} if user is None else {"user": user}
