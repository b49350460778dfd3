"""One run: some clients, some minutes of their lives, and what must hold afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from random import Random
from typing import NamedTuple

from holdfast import faults
from tests.simulation import loop
from tests.simulation.clients import KINDS, Client
from tests.simulation.world import MEMORY, World

PEOPLE = ("ada", "bob")
_MOST_CLIENTS = 12


class Outcome(NamedTuple):
    """The outcome of a run."""

    turns: int
    trace: list[str]
    violation: str | None


def simulate(seed: int, *, steps: int = 8, only: Collection[int] | None = None, url: str = MEMORY) -> Outcome:
    """Run a seed: always the same, unless `url` is that of a real database.

    `only` are the numbers of the clients that take part, and `steps` is what each of them does.
    """
    found: list[World] = []

    async def live() -> None:
        world = World(seed, url, is_rough=seed % 4 != 0)
        found.append(world)
        await world.begin()
        clients = _make_clients(world, seed)
        try:
            await asyncio.gather(*(one.live(steps) for at, one in enumerate(clients) if only is None or at in only))
            if world.violation is None:
                await world.settle()
                await world.check_logs()
        finally:
            await world.close()

    problem = None
    try:
        loop.run(seed, live(), exact=url == MEMORY)
    except (AssertionError, RuntimeError) as exc:
        problem = f"{type(exc).__name__}: {exc}"
    finally:
        faults.active.clear()
    world = found[0]
    if world.violation is not None:
        problem = str(world.violation)
    return Outcome(world.turns, world.trace, problem)


def _make_clients(world: World, seed: int) -> list[Client]:
    """Return the clients of a seed: of a few kinds, and of two people who do the same."""
    chance = Random(seed)
    made: list[Client] = []
    for number in range(3):
        kind = chance.choice(KINDS)
        is_named = kind.identified and kind.api != "messages"  # else people are told apart by less
        for person in PEOPLE if chance.random() < (0.4 if is_named else 0.8) else PEOPLE[:1]:
            owner = person if kind.identified else f"{person}{number}"
            other: Client | None = None
            for device in range(kind.devices):
                name = f"{len(made)} {kind.name} {person}.{device}"
                session = f"s{number}{person}"
                other = Client(world, name, owner, kind, Random(f"{seed} {len(made)}"), session=session, other=other)
                made.append(other)
    return made


def shorten(seed: int, *, steps: int = 8) -> tuple[Collection[int], int, Outcome]:
    """Return the fewest clients and steps with which a seed still fails in the same way, and that run."""
    outcome = simulate(seed, steps=steps)
    chosen = list(range(_MOST_CLIENTS))
    if not outcome.violation:
        return chosen, steps, outcome

    def fails(tried: Outcome) -> bool:
        return (tried.violation or "").partition(":")[0] == (outcome.violation or "").partition(":")[0]

    for number in list(chosen):
        fewer = [one for one in chosen if one != number]
        tried = simulate(seed, steps=steps, only=fewer)
        if fails(tried):
            chosen, outcome = fewer, tried
    while steps > 1 and fails(tried := simulate(seed, steps=steps - 1, only=chosen)):
        steps, outcome = steps - 1, tried
    return chosen, steps, outcome


def report(seed: int, *, steps: int) -> str:
    """Return what a seed's shortened run did and what did not hold."""
    clients, steps, outcome = shorten(seed, steps=steps)
    if not outcome.violation:
        return f"seed {seed}: {outcome.turns} turns, and everything holds"
    trace = "\n".join(line[:300] for line in outcome.trace[-60:])
    return f"{trace}\nseed {seed}, clients {[*clients]}, {steps} steps: {outcome.violation}"
