"""Concurrent anonymous clients with equal words never get another client's conversation."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest

from holdfast.agents import Llm, Roster
from holdfast.holdfast import Holdfast
from tests.amounts import examples
from tests.service.simulator.gateway import Gateway, Speaker
from tests.service.simulator.unnamed import Client, Model, check_sessions, look_up
from tests.stores.servers import place

STEPS = 12
UNNAMED = 4
_tenants = count()


async def play(url: str, seed: int) -> None:
    """Run four anonymous clients and two devices of one user concurrently, in a separate tenant."""
    roster = Roster({"default": Llm(name="default", model="gpt-4o", client=Model())})
    async with Holdfast(url, tenant=f"t{next(_tenants)}", roster=roster, tools=[look_up]) as hf:
        gateway = Gateway(hf, Speaker(lambda _: ""), single_user=False)
        clients = [Client(gateway, f"c{at}", seed * 31 + at) for at in range(UNNAMED)]
        clients += [Client(gateway, f"d{at}", seed * 31 + UNNAMED + at, user="ada") for at in range(2)]
        try:
            async with asyncio.TaskGroup() as group:
                for client in clients:
                    group.create_task(client.live(STEPS))
            assert await check_sessions(gateway) >= len(clients)
        except BaseException as exc:
            exc.add_note(f"seed {seed}: {[client.trace for client in clients]}")
            raise


@pytest.mark.parametrize(("store", "number"), [("sqlite", 12), ("postgres", 4)])
async def test_conversations_of_anonymous_clients_never_mix(store: str, number: int, tmp_path: Path) -> None:
    """No prompt or session has another client's words or tool results; no session is empty, and no turn runs twice."""
    with place(store, tmp_path) as url:
        for seed in range(examples(number)):
            await play(url, seed)
