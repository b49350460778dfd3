"""An old and a new server on one database: mixed traffic, then a check of everything that was acknowledged."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.domain.session import SessionRef
from holdfast.stores import open_store
from holdfast.stores.verify import verify
from holdfast.testing import ScriptedUpstream
from tests.upgrade.releases import NEW, Release, ReleaseServer
from tests.upgrade.traffic import Servers, Talker, answer


def write_config(folder: Path, upstream: str, *more: str) -> Path:
    """Write a configuration that both releases understand."""
    llm = {"model": "gpt-4o", "base_url": upstream, "api_key": "sk-x", "timeout": "20s"}
    lines = [
        f"llms: {json.dumps({'default': llm})}",
        "context: {strategy: digest, budget: 1500}",
        *more,
    ]
    path = folder / "rolling.yaml"
    path.write_text("\n".join(lines))
    return path


class Rolling:
    """An old server runs, the database is upgraded, a new server starts; later the old one stops.

    Args:
        url: an empty database.
        folder: for configuration and logs.
        old: the old release.
        talkers: number of clients.
        report: is called with lines about the progress.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        old: Release,
        *,
        talkers: int = 6,
        report: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._url = url
        self._folder = folder
        self._old = old
        self._count = talkers
        self._report = report
        self.logs: dict[str, str] = {}

    async def run(self, seconds: float, *, rate: float | None = None) -> str:
        """Run the traffic, and check its result.

        Args:
            seconds: duration of the traffic to both servers.
            rate: requests per second; None: as fast as possible.

        Raises:
            AssertionError: something was lost, doubled, different or refused.
        """
        async with ScriptedUpstream(answer) as upstream:
            config = write_config(self._folder, upstream.url)
            with ReleaseServer(self._old, self._url, self._folder, config=config) as before:
                servers = Servers([before.url])
                talkers = [Talker(servers, number, named=number % 3 != 2) for number in range(self._count)]
                await self._talk(talkers, servers, seconds / 6, rate)
                self._report("the database is upgraded while the old server runs")
                migrating = asyncio.to_thread(NEW.succeed, self._url, "migrate", folder=self._folder)
                await asyncio.gather(migrating, self._talk(talkers, servers, 5, rate))
                with ReleaseServer(NEW, self._url, self._folder, config=config) as after:
                    servers.urls.append(after.url)
                    self._report("both servers run")
                    await self._talk(talkers, servers, seconds, rate, upstream)
                    self._report("the old server stops")
                    assert before.stop() == 0
                    servers.urls.pop(0)
                    await self._talk(talkers, servers, seconds / 6, rate)
                    self.logs = {"0.1": before.log, "0.2": after.log}
                    problems = servers.problems + await self._judge(talkers, servers)
                await servers.close()
        self._report("the logs are verified")
        NEW.succeed(self._url, "sessions", "verify", "--all", folder=self._folder)
        await self._verify(talkers, problems)
        assert not problems, f"{len(problems)} problems:\n" + "\n".join(problems[:40])
        sent = sum(count for kind, count in servers.requests.items() if not kind.startswith("retry"))
        return f"{sent} requests, {sum(len(one.acknowledged) for one in talkers)} messages: {dict(servers.requests)}"

    async def _talk(
        self,
        talkers: Sequence[Talker],
        servers: Servers,
        seconds: float,
        rate: float | None,
        upstream: ScriptedUpstream | None = None,
    ) -> None:
        until = time.monotonic() + seconds
        pause = len(talkers) / rate if rate else 0

        async def go_on(talker: Talker) -> None:
            while time.monotonic() < until:
                began = time.monotonic()
                await talker.act()
                await asyncio.sleep(max(0, pause - (time.monotonic() - began)))
                if upstream is not None and len(upstream.requests) > 1000:
                    upstream.requests.clear()

        reported = time.monotonic()
        working = asyncio.gather(*map(go_on, talkers))
        while not working.done():
            await asyncio.wait([working], timeout=60)
            if time.monotonic() - reported > 55:
                reported = time.monotonic()
                self._report(f"{sum(servers.requests.values())} requests, {len(servers.problems)} problems")
                for problem in servers.problems[-3:]:
                    self._report(f"    {problem:.300}")
        await working

    async def _judge(self, talkers: Sequence[Talker], servers: Servers) -> list[str]:
        """Compare what the new server alone shows with what was acknowledged."""
        problems: list[str] = []
        for talker in talkers:
            if not talker.named:
                continue
            state = await servers.send_to(0, "GET", f"/v1/users/{talker.user}/state")
            counted = (state or {}).get("state", state or {}).get("user:n", (state or {}).get("n", 0))
            if counted != talker.increments:
                problems.append(f"{talker.user}: counted {counted}, not {talker.increments}")
            listed: set[str] = set()
            after = ""
            while True:
                page = await servers.send_to(0, "GET", f"/v1/memories?user_id={talker.user}&limit=100{after}")
                listed |= {one["id"] for one in page["data"]}
                if not page.get("has_more"):
                    break
                after = f"&after={page['last_id']}"
            if lost := talker.memories - listed:
                problems.append(f"{talker.user}: memories lost: {lost}")
            unfound = [one.split()[0] for one in talker.acknowledged if not await self._find(servers, talker, one)]
            if unfound:
                problems.append(f"{talker.user}: not found: {unfound[:5]} and {len(unfound)} in all")
        return problems

    async def _find(self, servers: Servers, talker: Talker, text: str) -> bool:
        word = text.split(maxsplit=1)[0]
        for _ in range(40):
            found: Any = await servers.send_to(0, "GET", f"/v1/search?user_id={talker.user}&q={word}")
            if found is not None and word in repr(found["data"]):
                return True
            await asyncio.sleep(0.5)
        return False

    async def _verify(self, talkers: Sequence[Talker], problems: list[str]) -> None:
        store = await open_store(self._url, tenant="default")
        try:
            for talker in talkers:
                for session in {talker.session} if talker.session else talker.sessions:
                    ref = SessionRef(talker.user, session)
                    await verify(store, ref)
                    log = await store.entries(ref, retired=True)
                    if [entry.seq for entry in log] != list(range(len(log))):
                        problems.append(f"{session}: gaps in the log")
                    said = [
                        entry.message.text for entry in log if entry.message.role == "user" and not entry.retired_by
                    ]
                    doubled = [text for text, count in Counter(said).items() if count > 1]
                    if doubled:
                        problems.append(f"{session}: doubled {doubled[:3]}")
                    wanted = (
                        talker.acknowledged
                        if talker.named
                        else [one["content"] for one in talker.history if one["role"] == "user"]
                    )
                    if said != wanted:
                        lost = [one for one in wanted if one not in said]
                        problems.append(f"{session}: {len(said)} messages, {len(wanted)} acknowledged, lost {lost[:3]}")
        finally:
            await store.close()
