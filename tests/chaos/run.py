"""Two servers on one PostgreSQL, through bad networks, killed at random; what they acknowledged has to be there.

Every acknowledged message is in its log once, and a client's own messages in the order in which it said them; nobody is
shown or sent what another one said; every log can be derived anew.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.access import ID_RANDOM, SECRET_RANDOM, create_key
from holdfast.domain.session import Entry, SessionRef
from holdfast.engine.session_lock import LEASE
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.keys import ApiKey
from holdfast.stores.sessions import NewSession
from holdfast.stores.verify import verify
from holdfast.testing import Reply, ScriptedUpstream
from tests.chaos.api_clients import FILE, KINDS, ApiClient, RecordClient, is_file_saved, make_file_path
from tests.chaos.clients import MARKER, Client, Crossed
from tests.chaos.network import Network
from tests.edges.server import TOOL_SERVER, Process, config_text

SHARED = 5
"""Of five groups of clients one shares a session among so many."""
EACH = 20
"""For each this many chat clients, there is one client of each other API."""


class Member:
    """One of the servers, and its network."""

    def __init__(self, network: Network, config: Path, lease: int) -> None:
        self.network = network
        self._config = config
        self._env = {"TOOL_SERVER_LEASE": str(lease)}
        self._process: Process | None = None
        self.kills = 0

    @property
    def url(self) -> str | None:
        """Where it listens; None while it is down."""
        return self._process.url if self._process else None

    async def start(self) -> None:
        """Start it; returns when it listens."""
        start = partial(Process, self.network.url, config=self._config, env=self._env, program=TOOL_SERVER)
        self._process = await asyncio.to_thread(start)

    async def kill(self) -> None:
        """End it as a power cut would."""
        process, self._process = self._process, None
        if process is not None:
            self.kills += 1
            await asyncio.to_thread(process.kill)


class Chaos:
    """One run.

    Args:
        url: an empty place on a PostgreSQL server.
        folder: for its configuration.
        clients: how many.
        seed: the same one decides the same; what happens at the same time is the machine's affair.
        lease: milliseconds after which what a killed server had claimed is anybody's.
        report: told what is going on.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        clients: int,
        seed: int,
        lease: int = LEASE,
        report: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._url = url
        self._folder = folder
        self._chance = random.Random(seed)
        self._lease = lease
        self._report = report
        self._key = create_key(self._chance.randbytes(ID_RANDOM + SECRET_RANDOM))
        self.clients = [self._client(number) for number in range(clients)]
        self._prompts: dict[str, list[str]] = {}
        kinds = [kind for _ in range(-(-clients // EACH)) for kind in KINDS] + [RecordClient]
        self.api_clients: list[ApiClient] = [
            kind(number, random.Random(self._chance.random()), self._key.text, self._prompts)
            for number, kind in enumerate(kinds, start=clients)
        ]
        self.everyone: list[Client | ApiClient] = [*self.clients, *self.api_clients]
        self.members: list[Member] = []
        self._foreign: list[str] = []

    def _client(self, number: int) -> Client:
        block = number - number % (SHARED * 5)
        first = range(block, block + SHARED)
        group = first if number in first else [number]
        return Client(number, group, random.Random(self._chance.random()), self._key.text)

    async def run(self, seconds: float) -> str:
        """Let it happen for so long, then look at every log; what there is to say of it.

        Raises:
            AssertionError: something was lost, doubled, out of order or crossed.
        """
        async with AsyncExitStack() as stack:
            upstream = await stack.enter_async_context(ScriptedUpstream(self._echo))
            config = self._folder / "chaos.yaml"
            config.write_text(config_text(upstream.url, "context: {strategy: token_window, budget: 2000}"))
            for _ in range(2):
                network = await stack.enter_async_context(Network(self._url, random.Random(self._chance.random())))
                self.members.append(Member(network, config, self._lease))
                stack.push_async_callback(self.members[-1].kill)
            store = await open_store(self._url, tenant="default")
            stack.push_async_callback(store.close)
            await asyncio.gather(*(member.start() for member in self.members))
            await self._begin(store)
            began = time.monotonic()
            await self._under_way(seconds)
            return await self._judge(store, time.monotonic() - began)

    async def _begin(self, store: Store) -> None:
        key = ApiKey(id=self._key.id, hash=self._key.hash, tenant="default", user_id=None, role="admin", created_at=1)
        await store.add_key(key)
        for name in {client.session for client in self.clients}:
            await store.create(NewSession(id=name, user_id="default", timestamp=1))

    def _echo(self, body: dict[str, Any]) -> str | Reply:
        """The upstream: says the last user message again, and notes prompts that mix what does not belong together."""
        text = "".join(str(message.get("content") or "") for message in body["messages"])
        markers = set(MARKER.findall(text))
        if not any(markers <= client.markers for client in self.everyone):
            self._foreign.append(f"a prompt held {sorted(markers)}")
        said = [message["content"] for message in body["messages"] if message["role"] == "user"]
        self._prompts[said[-1]] = said
        # The result of a call that a kill interrupted says so, and the model repeats it.
        if f" {FILE} " in said[-1] and not is_file_saved(body["messages"][-1]):
            create = {"command": "create", "path": make_file_path(said[-1]), "file_text": said[-1]}
            return Reply(tool_calls=[("memory", create)])
        return f"heard: {said[-1]}"

    def _servers(self) -> Sequence[str]:
        return [member.url for member in self.members if member.url] or ["http://127.0.0.1:9"]

    async def _under_way(self, seconds: float) -> None:
        ends = asyncio.Event()
        talking = [asyncio.create_task(client.talk(self._servers, ends)) for client in self.everyone]
        mischief = asyncio.create_task(self._mischief(ends))
        done, _ = await asyncio.wait([*talking, mischief], timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        ends.set()
        for task in done:
            task.result()
        await mischief  # all servers run again, on good networks
        async with asyncio.timeout(120):
            await asyncio.gather(*talking)

    async def _mischief(self, ends: asyncio.Event) -> None:
        """One misfortune after the other; in the end all is well again."""
        while not ends.is_set():
            await asyncio.sleep(self._chance.uniform(0.3, 1.5))
            member, what = self._chance.choice(self.members), self._chance.choice(("kill", "drop", "drop", "slow"))
            self._report(f"{what} {self.members.index(member) + 1}")
            if what == "kill":
                await member.kill()
                await asyncio.sleep(self._chance.uniform(0, 1))
                await member.start()
            elif what == "drop":
                member.network.drop()
            else:
                member.network.slow = not member.network.slow
        for member in self.members:
            member.network.slow = False

    # -- what came of it -------------------------------------------------------

    async def _judge(self, store: Store, seconds: float) -> str:
        assert not self._foreign, self._foreign[:5]
        refused = [text for client in self.everyone for text in client.refused]
        assert not refused, refused[:5]
        entries = 0
        for session in {client.session for client in self.clients}:
            ref = SessionRef("default", session)
            await verify(store, ref)
            log = await store.entries(ref, retired=True)
            entries += len(log)
            for client in self.clients:
                if client.session == session:
                    check(client, log)
        for api_client in self.api_clients:
            await api_client.verify(self._chance.choice(self._servers()))
        by_kind = Counter[str]()
        for api_client in self.api_clients:
            by_kind[type(api_client).__name__] += api_client.acknowledged
        acknowledged = sum(len(client.acknowledged) for client in self.clients)
        tries = sum(client.tries for client in self.everyone)
        kills = sum(member.kills for member in self.members)
        dropped = sum(member.network.dropped for member in self.members)
        return (
            f"{len(self.clients)} clients, {seconds:.0f} s: {acknowledged} messages acknowledged in {tries} tries,"
            f" {entries} entries; {', '.join(f'{kind} {count}' for kind, count in by_kind.items())};"
            f" {kills} kills, {dropped} connections dropped: nothing lost, doubled or crossed"
        )


def check(client: Client, log: Sequence[Entry]) -> None:
    """What `client` was acknowledged is in its log, once and in order, and so are the replies it was given."""
    foreign = set(MARKER.findall("".join(entry.message.text for entry in log))) - client.markers
    if foreign:
        raise Crossed(f"the log of {client.session} holds {foreign}")
    live = [entry for entry in log if entry.retired_by is None]
    own = [entry.message.text for entry in live if entry.message.role == "user" and client.marker in entry.message.text]
    texts = [text for text, _ in client.acknowledged]
    doubled = [text for text, count in Counter(own).items() if count > 1]
    assert not doubled, f"doubled: {doubled[:5]}"
    lost = set(texts) - set(own)
    assert not lost, f"lost: {sorted(lost)[:5]}"
    assert [text for text in own if text in set(texts)] == texts, f"{client.marker}: out of order"
    replies = {entry.message.text for entry in live if entry.message.role == "assistant"}
    if len(client.markers) == 1:
        unanswered = [text for text, chat in client.acknowledged if chat and f"heard: {text}" not in replies]
        assert not unanswered, f"acknowledged replies that are not there: {unanswered[:5]}"
