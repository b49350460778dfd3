"""The files that tell of dreams: MEMORY.md and DREAMS.md in the workspaces of agents, as the records say at that moment.

What belongs to an agent, to all, or to nobody who was named stands in the agent's MEMORY.md and DREAMS.md; what belongs to a user
in files of that user's own (`MEMORY.ada.md`), since users must not read each other's. The agent that remembered something says
in whose workspace it is told; where none did, `default`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from anyio import to_thread

from holdfast.domain.memory import DiaryEntry, Memory, Owner
from holdfast.domain.session import DEFAULT_USER
from holdfast.dreams.rendering import (
    DIARY_FILE,
    FORGOTTEN,
    MEMORY_FILE,
    commit_lines,
    diary_file,
    items_of,
    memory_file,
)
from holdfast.dreams.sweep import Dreams, Dreamt, shown
from holdfast.errors import HoldfastError
from holdfast.limits import DIARY_KEPT
from holdfast.memory.promoted import Promoted
from holdfast.stores.base import Store
from holdfast.workspace import Workspace, Workspaces
from holdfast.workspace.disk import file_of_user
from holdfast.workspace.workspace import fields
from holdfast.workspace.workspaces import DEFAULT

_log = logging.getLogger("holdfast.dreams")
NOBODY: Final = Owner("user", DEFAULT_USER)
"""The user of whoever names none."""
NIGHTS: Final = 50
"""Sweeps that a diary tells of, the newest."""
_SEEN: Final = 10_000
"""Owners of whom is kept what their files say."""


class DreamFiles:
    """Keeps the files of one tenant's workspaces as its memories are.

    Args:
        dreams: those of the tenant.
        store: where memories are.
        workspaces: where files are.
        clock: milliseconds since the epoch.
        promoted: the promoted memories of the tenant's owners.
    """

    def __init__(
        self,
        dreams: Dreams,
        store: Store,
        workspaces: Workspaces,
        clock: Callable[[], int],
        promoted: Promoted,
    ) -> None:
        self._dreams = dreams
        self._store = store
        self._workspaces = workspaces
        self._tenant = store.tenant
        self._clock = clock
        self._promoted = promoted
        self._writing = asyncio.Lock()
        self._seen: OrderedDict[Owner, tuple[int, tuple[tuple[str, int], ...]]] = OrderedDict()

    async def dreamt(self, dreamt: Dreamt) -> None:
        """Write down what a sweep did, and commit it, with what it promoted."""
        subject = f"dream: {_counted(dreamt.promotions, 'promotion', 'promotions')}"
        lines = commit_lines(dreamt.report, dreamt.memories)
        if not _is_shared(dreamt.owner):
            lines.insert(0, fields({"user": dreamt.owner.id}))  # so that others are not told what was promoted
        await self._kept(dreamt.owner, subject, "\n".join(lines))

    async def changed(self, owner: Owner) -> None:
        """Write down that memories changed, where that changes a file: what is forgotten is told no more."""
        now = await self._promoted.of(owner)
        state = (now.life, tuple((one.id, one.version) for one in now.memories))
        if self._seen.get(owner) == state:
            return
        if await self._kept(owner, None, ""):
            self._seen[owner] = state
            self._seen.move_to_end(owner)
            while len(self._seen) > _SEEN:
                self._seen.popitem(last=False)

    async def _kept(self, owner: Owner, subject: str | None, body: str) -> bool:
        """Bring the files up to the records; whether that worked for all of them.

        One after the other: what was read before something was forgotten must not be written behind it.
        """
        async with self._writing:
            return await self._brought_up(owner, subject, body)

    async def _brought_up(self, owner: Owner, subject: str | None, body: str) -> bool:
        well, agents = True, await self._agents(owner)
        places = [self._workspaces.workspace(self._tenant, agent) for agent in agents] or await self._told_of(owner)
        for workspace in places:
            try:
                gone = await self._written(workspace, owner)
                if gone is not None:
                    told = subject or (
                        f"forget: {_counted(gone, 'memory', 'memories')}" if gone else "memories changed"
                    )
                    await workspace.commit(told, body)
            except HoldfastError as exc:  # the next change, or sweep, writes it
                well = False
                _log.warning(
                    "the memories in the workspace of agent %r were not written down: %s", workspace.agent, exc
                )
        return well

    async def _written(self, workspace: Workspace, owner: Owner) -> int | None:
        """Write the files in which an owner's memories stand; how many they tell of no more, None: nothing changed."""
        shared = _is_shared(owner)
        owners = (Owner("agent", workspace.agent), Owner("app"), NOBODY) if shared else (owner,)
        memories = [one for whose in owners for one in await self._telling(whose) if _agent_of(one) == workspace.agent]
        texts = {MEMORY_FILE: memory_file(memories), DIARY_FILE: await self._diary(owners)}
        wrote, gone = False, set[str]()
        for name, text in texts.items():
            file = name if shared else file_of_user(name, owner.id)
            before = await workspace.read(file)
            if before == text:
                continue
            wrote = True
            gone |= _told_in(before or "") - _told_in(text)
            await workspace.write(file, text)
        return len(gone) if wrote else None

    async def _diary(self, owners: Iterable[Owner]) -> str:
        entries: list[DiaryEntry] = []
        memories: dict[str, Memory] = {}
        for owner in owners:
            some = await self._store.diary(owner, limit=NIGHTS)
            memories |= await self._dreams.named(owner, some)
            entries += some
        entries.sort(key=lambda entry: (-entry.at, entry.id))
        told = [msgspec.structs.replace(entry, report=shown(entry.report, memories)) for entry in entries[:NIGHTS]]
        return diary_file(told, memories)

    async def _agents(self, owner: Owner) -> list[str]:
        """In whose workspaces something of an owner stands, or stood."""
        if owner.kind == "agent":
            return [owner.id]
        agents = {_agent_of(memory) for memory in await self._telling(owner)}
        for entry in await self._store.diary(owner, limit=DIARY_KEPT):
            agents |= {agent or DEFAULT for agent in entry.report.get("agents", ())} or {DEFAULT}
        return sorted(agents)

    async def _told_of(self, owner: Owner) -> list[Workspace]:
        """The workspaces that tell of an owner of whom nothing is known any more."""
        file = DIARY_FILE if _is_shared(owner) else file_of_user(DIARY_FILE, owner.id)
        existing = await to_thread.run_sync(self._workspaces.existing, self._tenant)
        return [one for one in existing if (one.folder / file).is_file()]

    async def _telling(self, owner: Owner) -> list[Memory]:
        """The promoted memories of an owner that hold now."""
        now = self._clock()
        return [one for one in (await self._promoted.of(owner)).memories if one.holds(now)]


def _is_shared(owner: Owner) -> bool:
    return owner.kind != "user" or owner == NOBODY


def _agent_of(memory: Memory) -> str:
    """In whose workspace a memory is told of."""
    return memory.owner.id if memory.owner.kind == "agent" else memory.agent or DEFAULT


def _told_in(file: str) -> set[str]:
    """Ids of the memories whose words a file has."""
    return {name for name, text in items_of(file) if text != FORGOTTEN}


def _counted(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"
