"""Five tenants with two users each, who all use the same names: no data crosses over.

Everything that a user writes contains that user's marker. Random operations follow, some concurrent, valid ones
and some that name other users' objects; no answer contains another user's marker, and in the end no log line,
metric or prompt does.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from holdfast.server.logs import JsonLines
from tests.clocks import Clock
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway

TENANTS = ("default", "t1", "t2", "t3", "t4")
USERS = ("ada", "bob")
SESSIONS = ("s0", "s1", "s2")
MARKER = re.compile(r"canary-\w+-\w+-x")
OPERATIONS, AT_ONCE = 350, 7


class Who(NamedTuple):
    """One caller."""

    tenant: str
    user: str | None
    key: str

    @property
    def marker(self) -> str:
        """Return the text that this caller writes."""
        return f"canary-{self.tenant}-{self.user or 'any'}-x"

    @property
    def may_see(self) -> set[str]:
        """Return the markers that an answer may contain.

        A tenant-wide key writes in the sessions of all its users.
        """
        users = ("any", *(USERS if self.user is None else (self.user,)))
        return {f"canary-{self.tenant}-{user}-x" for user in users}


class World:
    """The server, its callers, and a random generator."""

    def __init__(self, served: Served, seed: int) -> None:
        self.served = served
        self.chance = random.Random(seed)
        self.callers: list[Who] = []

    async def fill(self) -> None:
        """Create a key for each user and a tenant-wide key for each tenant."""
        for tenant in TENANTS:
            for user in (*USERS, None):
                role = "admin" if user is None else "write"
                key = await create_stored_key(self.served.hf, tenant=tenant, user_id=user, role=role)
                self.callers.append(Who(tenant, user, key))

    async def ask(self, who: Who, method: str, url: str, body: Any = None, **headers: str) -> str:
        """Send a request as that caller; check that the answer contains no other user's marker."""
        content = {"content": body} if isinstance(body, bytes) else {"json": body} if body is not None else {}
        response = await self.served.http.request(method, url, headers={**bearer(who.key), **headers}, **content)
        told = response.text + str(dict(response.headers))
        assert response.status_code < 500, (who, method, url, told)
        assert set(MARKER.findall(told)) <= who.may_see, (who, method, url, told)
        return str(response.text)

    def session(self) -> str:
        """Return the path of a session, sometimes with another user's name."""
        query = self.chance.choice(["", "", "", "?user_id=ada", "?user_id=bob", "?user_id=nobody"])
        return f"/v1/sessions/{self.chance.choice(SESSIONS)}{{}}{query}"


Operation = Callable[[World, Who], Awaitable[Any]]


async def chat(world: World, who: Who) -> None:
    """Run a turn in a named session."""
    body = {
        "messages": [{"role": "user", "content": f"hello {who.marker}"}],
        "session_id": world.chance.choice(SESSIONS),
        "user": world.chance.choice(USERS),
        "stream": world.chance.random() < 0.3,
    }
    if who.user is None:  # then the named user writes
        body["messages"] = [{"role": "user", "content": f"hello canary-{who.tenant}-{body['user']}-x"}]
    await world.ask(who, "POST", "/v1/chat/completions", body)


async def talk(world: World, who: Who) -> None:
    """Run a conversation that names no session, begins like everybody else's, and is resent with each turn."""
    said: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
    user = world.chance.choice(USERS) if who.user is None else who.user
    for _ in range(2):
        await world.ask(who, "POST", "/v1/chat/completions", {"messages": said, "user": user})
        marker = f"canary-{who.tenant}-{user}-x"
        said += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": marker}]


async def append(world: World, who: Who) -> None:
    """Append messages; a tenant-wide key writes in any session."""
    body = {"messages": [{"role": "user", "content": who.marker, "metadata": {"m": who.marker}}]}
    await world.ask(who, "POST", world.session().format("/messages"), body)


async def change(world: World, who: Who) -> None:
    """Change state, metadata and system messages."""
    body = {"state": {"k": who.marker}, "metadata": {who.marker: 1}, "system_messages": [who.marker]}
    await world.ask(who, "PATCH", world.session().format(""), body)


async def install(world: World, who: Who) -> None:
    """Import a whole session."""
    messages = [{"role": role, "content": f"{who.marker} {'word ' * 50}"} for role in ("user", "assistant")] * 3
    await world.ask(who, "PUT", world.session().format(""), {"messages": messages})


async def create(world: World, who: Who) -> None:
    body = {"id": world.chance.choice(SESSIONS), "state": {"k": who.marker}}
    if world.chance.random() < 0.5:
        body["user_id"] = world.chance.choice(USERS)
    await world.ask(who, "POST", "/v1/sessions", body)


async def move(world: World, who: Who) -> None:
    """Fork, move, rewind or close a session."""
    path, body = world.chance.choice(
        [
            ("/fork", {}),
            ("/fork", {"id": "s2"}),
            ("/move", {"id": "s2"}),
            ("/rewind", {"at_turn": 0}),
            ("/close", None),
            ("/context", {}),
        ]
    )
    await world.ask(who, "POST", world.session().format(path), body)


async def summarize(world: World, who: Who) -> None:
    body = {"preview": world.chance.random() < 0.5, "budget": 120, "target": 0.3}
    await world.ask(who, "POST", world.session().format("/compactions"), body)


async def keep(world: World, who: Who) -> None:
    """Store an artifact of a session or a user."""
    name = world.chance.choice(["a.txt", "user:a.txt"])
    url = world.session().format(f"/artifacts/{name}")
    await world.ask(who, "PUT", url, who.marker.encode(), **{"content-type": "text/plain"})


async def share(world: World, who: Who) -> None:
    """Set state of a session, a user or the app."""
    user = world.chance.choice(USERS)
    places = [
        (f"/v1/state?session_id={world.chance.choice(SESSIONS)}", "user:k"),
        (f"/v1/state?user_id={user}", "user:k"),
        ("/v1/state?scope=tenant", "app:k"),
    ]
    url, key = world.chance.choice([*places, (places[0][0], "app:k"), (places[0][0], "k")])
    if world.chance.random() < 0.5:
        await world.ask(who, "PATCH", url, {key: who.marker})
    else:
        changes = [{"op": "append", "key": f"{key}l", "values": [who.marker]}]
        await world.ask(who, "POST", url, {"changes": changes})


async def look(world: World, who: Who) -> None:
    """Read from every route."""
    whose = world.chance.choice(["", "?user_id=ada", "?user_id=bob", "?after=s0", "?after=s1&after_user=ada"])
    pages = [f"{path}{whose}" for path in ("/v1/sessions", "/sessions")]
    tails = ["", "/messages", "/history", "/compactions", "/compactions/1", "/explain?q=a", "/explain?seq=0"]
    tails += ["/calls", "/calls/next?log_limit=9"]
    tails += ["/artifacts", "/artifacts/a.txt", "/artifacts/user:a.txt", "/artifacts?name=a.txt"]
    states = [
        world.session().format("/state"),
        *(f"/v1/state?user_id={user}" for user in USERS),
        "/v1/state?scope=tenant",
    ]
    url = world.chance.choice([*pages, *states, *(world.session().format(tail) for tail in tails), "/v1/models"])
    await world.ask(who, "GET", url)


async def remove(world: World, who: Who) -> None:
    """Delete a session, a message, an artifact, or all data of a user."""
    tails = ("", "/messages/0", "/artifacts/user:a.txt", "/compactions/1")
    url = world.chance.choice(
        [
            *(world.session().format(tail) for tail in tails),
            f"/v1/users/{world.chance.choice(USERS)}",
            f"/v1/state?user_id={world.chance.choice(USERS)}",
            "/v1/state?scope=tenant",
        ]
    )
    await world.ask(who, "DELETE", url)


KINDS: tuple[tuple[Operation, int], ...] = (
    (chat, 5),
    (talk, 2),
    (append, 2),
    (change, 2),
    (install, 2),
    (create, 1),
    (move, 2),
    (summarize, 1),
    (keep, 2),
    (share, 3),
    (look, 8),
    (remove, 1),
)
"""Each with its weight."""


@pytest.mark.parametrize("seed", range(3))
async def test_no_data_crosses_between_tenants_and_users(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    async with gateway(lambda _: "ok", clock=Clock()) as (served, upstream):
        world = World(served, seed)
        await world.fill()
        await served.hf.sweep()
        operations, weights = zip(*KINDS, strict=True)
        for _ in range(OPERATIONS // AT_ONCE):
            kinds = world.chance.choices(operations, weights, k=AT_ONCE)
            await asyncio.gather(*(kind(world, world.chance.choice(world.callers)) for kind in kinds))
        metrics = await world.ask(world.callers[2], "GET", "/metrics")
        assert "holdfast_requests_total" in metrics
        assert not MARKER.findall(metrics)
        await check_logs_are_separate(served)
        # A tenant-wide key may write into any of its sessions; a prompt still belongs to one tenant.
        for request in upstream.requests:
            markers = set(MARKER.findall(request.raw.decode()))
            assert len({marker.split("-")[1] for marker in markers}) <= 1, markers
            assert len({marker.split("-")[2] for marker in markers} - {"any"}) <= 1, markers
        assert len(upstream.requests) > OPERATIONS / 10
    lines = [JsonLines().format(record) for record in caplog.records]
    assert len(lines) > OPERATIONS
    assert not [line for line in lines if MARKER.search(line)]


async def check_logs_are_separate(served: Served) -> None:
    """Check that the stored data of each user contains no other user's marker."""
    stored = 0
    for tenant in TENANTS:
        async with served.hf.serve_tenant(tenant) as one:
            page = await one.sessions(limit=1000)
            assert not page.has_more
            for session in page.sessions:
                found = set(MARKER.findall(str(await one.export(session.ref, retired=True))))
                assert found <= {f"canary-{tenant}-{user}-x" for user in (session.user_id, "any")}
                stored += len(found)
    assert stored
