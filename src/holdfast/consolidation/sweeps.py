"""Run sweeps over memories, by schedule or on request, and keep the files about memories up to date.

A sweep looks at the memories of one owner and promotes those that were recalled often, with good scores and by different questions:

    records of recalls (signals) -> a finding for each memory
        -> one write: promotions, diary entry, deletion of old signals
        -> files MEMORY.md and DREAMS.md, rendered from the store

The write succeeds only if the memories still have the version that was read. So if two sweeps run at the same time, one promotes, and the
other finds nothing to do. A sweep that finds nothing new writes nothing. Files are rendered after the write, only from what is stored. So
after a crash the next sweep completes them.

Memories of an agent, of the app, or of the default user are listed in MEMORY.md and DREAMS.md in the agent's workspace. Memories of a named
user are listed in separate files (`MEMORY.ada.md`), because users must not read each other's memories. A memory is listed in the workspace
of the agent that remembered it, or in the workspace `default` if there was no agent.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from anyio import to_thread

from holdfast.accounting import run_cpu
from holdfast.consolidation.diary import (
    DIARY_FILE,
    FORGOTTEN,
    MEMORY_FILE,
    make_commit_lines,
    parse_items,
    render_diary,
    render_memory_file,
)
from holdfast.consolidation.promotion import Finding, group_themes, make_findings, promote
from holdfast.domain.memory import DiaryEntry, Memory, MemoryDelta, Owner, Signal
from holdfast.domain.session import DEFAULT_USER
from holdfast.errors import HoldfastError, StaleMemories
from holdfast.lifecycle.sweeper import SweepPace
from holdfast.limits import DIARY_KEPT, PAGE
from holdfast.memory.owner_caches import PromotedCache
from holdfast.memory.ranking import DAY
from holdfast.numbers import check_whole
from holdfast.stores.base import Store
from holdfast.stores.logic.memories import MemoryStore
from holdfast.stores.walk import iterate_owners
from holdfast.workspace import Workspace, Workspaces
from holdfast.workspace.files import make_user_file_name
from holdfast.workspace.workspace import DEFAULT, format_fields

_log = logging.getLogger("holdfast.consolidation")
TRIES: Final = 10
"""Maximum number of attempts at a sweep, if other processes keep changing the memories."""
_PAUSE: Final = 0.02
"""Seconds before the third attempt. The second attempt follows at once, and each later pause is longer by this number of seconds."""
REPORT_MEMORIES: Final = 200
"""Maximum number of memories in a report. The best ones are reported."""
_LONG: Final = 500
"""Number of recall records (signals) above which the decision runs in a thread, because it is slow."""
SIGNAL_AGE: Final = 180 * DAY
"""Milliseconds after which a recall no longer counts, and its record (signal) is deleted."""
OnSwept = Callable[["SweepResult"], Awaitable[None]]
"""Async function that is called after a sweep that wrote something, when the write is durable."""


class SweepResult(msgspec.Struct, frozen=True):
    """The result of a sweep over one owner's memories."""

    owner: Owner
    report: dict[str, Any]
    """The decisions and their reasons, in the format of the diary."""
    memories: Mapping[str, Memory]
    """The memories that the report is about, by id, in their state after the sweep."""
    written: bool
    """True if the sweep wrote something. A dry run, and a sweep that finds nothing new, write nothing."""

    @property
    def promotions(self) -> int:
        """Number of memories that were promoted. For a dry run, the number that would be promoted."""
        return int(self.report["verdicts"].get("promoted", 0))


class Consolidator:
    """Runs sweeps over the memories of one tenant.

    Attributes:
        on_swept: functions that are called after each sweep that wrote something.

    Args:
        store: the store of memories.
        clock: returns the time in milliseconds since the epoch.
        new_id: creates an id for a diary entry.
    """

    def __init__(
        self,
        store: MemoryStore,
        clock: Callable[[], int],
        new_id: Callable[[], str] = lambda: f"dream_{uuid.uuid4().hex}",
    ) -> None:
        self.on_swept: list[OnSwept] = []
        self._store = store
        self._clock = clock
        self._new_id = new_id

    async def consolidate(self, owner: Owner, *, dry_run: bool = False) -> SweepResult:
        """Run a sweep over the memories of an owner, and return its result.

        Args:
            owner: the owner.
            dry_run: True: only decide. Nothing is written.

        Raises:
            StaleMemories: other processes changed the memories during each of `TRIES` attempts.
        """
        for attempt in range(TRIES):
            try:
                swept = await self._run_sweep(owner, dry_run=dry_run)
            except StaleMemories:
                if attempt == TRIES - 1:
                    raise
                await asyncio.sleep(_PAUSE * attempt)  # gives a process with a series of writes time to finish
                continue
            if swept.written:
                await self._notify(swept)
            return swept
        raise AssertionError("the loop ends before")

    async def diary(self, owner: Owner, limit: int = 20) -> list[dict[str, Any]]:
        """Return the reports of the latest sweeps, newest first, each with its id and time; see `show_report`.

        Args:
            owner: the owner of the memories.
            limit: maximum number of sweeps.
        """
        entries = await self._store.diary(owner, limit=limit)
        memories = await self.load_named(owner, entries)
        return [{"id": entry.id, "at": entry.at, **show_report(entry.report, memories)} for entry in entries]

    async def load_named(self, owner: Owner, entries: Sequence[DiaryEntry]) -> dict[str, Memory]:
        """Return the memories to which diary entries refer, by id. Forgotten memories are not included."""
        ids = {name for entry in entries for name in _collect_ids(entry.report)}
        return {memory.id: memory async for memory in self._iter_memories(owner, sorted(ids))}

    async def get_last_time(self, owner: Owner) -> int | None:
        """Return the time of the last sweep that wrote something, in milliseconds since the epoch; None if there was none."""
        newest = await self._store.diary(owner, limit=1)
        return newest[0].at if newest else None

    def owners(self) -> AsyncIterator[tuple[Owner, int]]:
        """Yield each owner of memories, with the time of the last write to the owner's memories in milliseconds since the epoch."""
        return iterate_owners(self._store)

    # -- one sweep -------------------------------------------------------------

    async def _run_sweep(self, owner: Owner, *, dry_run: bool) -> SweepResult:
        now = self._clock()
        version = (await self._store.memories(owner, limit=1)).version
        signals = await self._store.signals(owner, since=now - SIGNAL_AGE)
        of: dict[str, list[Signal]] = {}
        for signal in signals:
            of.setdefault(signal.memory_id, []).append(signal)
        memories = {memory.id: memory async for memory in self._iter_memories(owner, sorted(of))}

        def decide() -> tuple[list[Finding], dict[str, Any]]:
            findings = make_findings(memories.values(), of, now)
            return findings, self._make_report(owner, findings, memories, signals, now)

        findings, report = await run_cpu(decide, long=len(signals) > _LONG)
        best = [promote(memories[one.memory_id], one, now) for one in findings if one.verdict == "promoted"]
        if dry_run or not (best or await self._has_news(owner, report["through"])):
            return SweepResult(owner, report, memories, written=False)
        delta = MemoryDelta(
            put=tuple(best),
            diary=(DiaryEntry(id=self._new_id(), at=now, report=report),),
            signals_before=now - SIGNAL_AGE,
        )
        stored = await self._store.change_memories(owner, delta, timestamp=now, expect=version)
        memories |= {memory.id: memory for memory in stored.memories}
        return SweepResult(owner, report, memories, written=True)

    async def _iter_memories(self, owner: Owner, ids: Sequence[str]) -> AsyncIterator[Memory]:
        for start in range(0, len(ids), PAGE):
            page = await self._store.memories(owner, ids=ids[start : start + PAGE], limit=PAGE)
            for memory in page.memories:
                yield memory

    async def _has_news(self, owner: Owner, through: int | None) -> bool:
        """Return True if there was a recall after those that the last sweep looked at.

        Args:
            owner: the owner of the memories.
            through: time of the latest recall, in milliseconds since the epoch; None: there were no recalls.
        """
        if through is None:
            return False
        last = await self._store.diary(owner, limit=1)
        return not last or through > (last[0].report.get("through") or 0)

    def _make_report(
        self,
        owner: Owner,
        findings: Sequence[Finding],
        memories: Mapping[str, Memory],
        signals: Sequence[Signal],
        now: int,
    ) -> dict[str, Any]:
        day = Counter(signal.memory_id for signal in signals if signal.at > now - DAY)
        reported = findings[:REPORT_MEMORIES]
        return {
            "owner": {"kind": owner.kind, "id": owner.id},
            "verdicts": dict(Counter(one.verdict for one in findings)),
            "candidates": [one.to_wire() for one in reported],
            "themes": [_strip_theme(theme.to_wire()) for theme in group_themes(list(memories.values()), day)],
            "agents": sorted({memories[one.memory_id].agent or "" for one in findings if one.verdict == "promoted"}),
            "through": max((signal.at for signal in signals), default=None),
        }

    async def _notify(self, swept: SweepResult) -> None:
        for listener in self.on_swept:
            try:
                await listener(swept)
            except Exception as exc:  # noqa: BLE001 - the outermost handler: promotions are durable even if their files are not written
                _log.error("a listener failed after a sweep over %s memories", swept.owner.kind, exc_info=exc)


def show_report(report: Mapping[str, Any], memories: Mapping[str, Memory]) -> dict[str, Any]:
    """Return a report from the diary with the text of each memory and the terms of each theme.

    The diary itself does not contain these texts. The text of a forgotten memory is None.
    """
    candidates = [{**one, "content": _get_content(one["memory_id"], memories)} for one in report.get("candidates", ())]
    themes = [_show_theme(theme, memories) for theme in report.get("themes", ())]
    return {**report, "candidates": candidates, "themes": [theme for theme in themes if theme["terms"]]}


def _get_content(memory_id: str, memories: Mapping[str, Memory]) -> str | None:
    memory = memories.get(memory_id)
    return None if memory is None else memory.content


def _strip_theme(theme: Mapping[str, Any]) -> dict[str, Any]:
    """Return a theme without its terms, for the diary. When the diary is read, the terms come from the memories that then exist."""
    return {name: value for name, value in theme.items() if name != "terms"}


def _show_theme(theme: Mapping[str, Any], memories: Mapping[str, Memory]) -> dict[str, Any]:
    there = [memories[name] for name in theme["memory_ids"] if name in memories]
    found = group_themes(there, dict.fromkeys((one.id for one in there), 1), near=0.0)
    return {**theme, "terms": list(found[0].terms) if found else []}


def _collect_ids(report: Mapping[str, Any]) -> set[str]:
    ids = {one["memory_id"] for one in report.get("candidates", ())}
    return ids.union(*(theme["memory_ids"] for theme in report.get("themes", ())))


NOBODY: Final = Owner("user", DEFAULT_USER)
"""The owner of memories from requests that do not name a user."""
NIGHTS: Final = 50
"""Maximum number of sweeps in a diary file. The newest are listed."""
_LISTED_OWNERS: Final = 10_000
"""Maximum number of owners for whom this process remembers which memories the files list."""


class MemoryFiles:
    """Keeps the memory files in the workspaces of a tenant up to date: MEMORY.md, DREAMS.md, and the files of named users.

    Args:
        consolidator: the consolidator of the tenant.
        store: the store of the tenant.
        workspaces: the workspaces that contain the files.
        clock: returns the time in milliseconds since the epoch.
        promoted: cache of the promoted memories.
    """

    def __init__(
        self,
        consolidator: Consolidator,
        store: Store,
        workspaces: Workspaces,
        clock: Callable[[], int],
        promoted: PromotedCache,
    ) -> None:
        self._consolidator = consolidator
        self._store = store
        self._workspaces = workspaces
        self._tenant = store.tenant
        self._clock = clock
        self._promoted = promoted
        self._writing = asyncio.Lock()
        self._seen: OrderedDict[Owner, tuple[int, tuple[tuple[str, int], ...]]] = OrderedDict()

    async def handle_sweep(self, swept: SweepResult) -> None:
        """Update the files after a sweep, and commit them. The commit message lists the promotions."""
        subject = f"dream: {_format_count(swept.promotions, 'promotion', 'promotions')}"
        lines = make_commit_lines(swept.report, swept.memories)
        if not _is_shared(swept.owner):
            lines.insert(0, format_fields({"user": swept.owner.id}))  # hides the promotions from other users
        await self._update_files(swept.owner, subject, "\n".join(lines))

    async def handle_change(self, owner: Owner) -> None:
        """Update the files after a change of an owner's memories, so that forgotten memories disappear from them.

        Do nothing if the promoted memories of the owner are the same as in the last call.
        """
        now = await self._promoted.get(owner)
        state = (now.life, tuple((one.id, one.version) for one in now.memories))
        if self._seen.get(owner) == state:
            return
        if await self._update_files(owner, None, ""):
            self._seen[owner] = state
            self._seen.move_to_end(owner)
            while len(self._seen) > _LISTED_OWNERS:
                self._seen.popitem(last=False)

    async def _update_files(self, owner: Owner, subject: str | None, body: str) -> bool:
        """Update and commit the files that list an owner's memories.

        Only one call runs at a time. Otherwise a call that read a memory before it was forgotten could write it to a file afterwards.

        Args:
            owner: the owner.
            subject: first line of the commit message; None: a line that says what changed.
            body: rest of the commit message.

        Returns:
            False if the update failed in any workspace.
        """
        async with self._writing:
            return await self._update_workspaces(owner, subject, body)

    async def _update_workspaces(self, owner: Owner, subject: str | None, body: str) -> bool:
        well, agents = True, await self._list_agents(owner)
        places = [self._workspaces.workspace(self._tenant, agent) for agent in agents] or await self._find_workspaces(
            owner
        )
        for workspace in places:
            try:
                removed = await self._write_files(workspace, owner)
                if removed is not None:
                    message = subject or (
                        f"forget: {_format_count(removed, 'memory', 'memories')}" if removed else "memories changed"
                    )
                    await workspace.commit(message, body)
            except HoldfastError as exc:  # retried by the next change or sweep
                well = False
                _log.warning("the memory files in the workspace of agent %r were not written: %s", workspace.agent, exc)
        return well

    async def _write_files(self, workspace: Workspace, owner: Owner) -> int | None:
        """Write the files in a workspace that list an owner's memories.

        Returns:
            The number of memories that are no longer listed; None if no file has changed.
        """
        shared = _is_shared(owner)
        owners = (Owner("agent", workspace.agent), Owner("app"), NOBODY) if shared else (owner,)
        memories = [
            one for whose in owners for one in await self._read_promoted(whose) if _get_agent(one) == workspace.agent
        ]
        texts = {MEMORY_FILE: render_memory_file(memories), DIARY_FILE: await self._diary(owners)}
        wrote, removed = False, set[str]()
        for name, text in texts.items():
            file = name if shared else make_user_file_name(name, owner.id)
            before = await workspace.read(file)
            if before == text:
                continue
            wrote = True
            removed |= _find_listed(before or "") - _find_listed(text)
            await workspace.write(file, text)
        return len(removed) if wrote else None

    async def _diary(self, owners: Iterable[Owner]) -> str:
        entries: list[DiaryEntry] = []
        memories: dict[str, Memory] = {}
        for owner in owners:
            some = await self._store.diary(owner, limit=NIGHTS)
            memories |= await self._consolidator.load_named(owner, some)
            entries += some
        entries.sort(key=lambda entry: (-entry.at, entry.id))
        readable = [
            msgspec.structs.replace(entry, report=show_report(entry.report, memories)) for entry in entries[:NIGHTS]
        ]
        return render_diary(readable, memories)

    async def _list_agents(self, owner: Owner) -> list[str]:
        """Return the names of the agents whose workspaces list memories of an owner, or listed them earlier."""
        if owner.kind == "agent":
            return [owner.id]
        agents = {_get_agent(memory) for memory in await self._read_promoted(owner)}
        for entry in await self._store.diary(owner, limit=DIARY_KEPT):
            agents |= {agent or DEFAULT for agent in entry.report.get("agents", ())} or {DEFAULT}
        return sorted(agents)

    async def _find_workspaces(self, owner: Owner) -> list[Workspace]:
        """Return the workspaces that contain files of an owner. This method is used if nothing is stored for the owner any more."""
        file = DIARY_FILE if _is_shared(owner) else make_user_file_name(DIARY_FILE, owner.id)
        existing = await to_thread.run_sync(self._workspaces.list_workspaces, self._tenant)
        return [one for one in existing if (one.folder / file).is_file()]

    async def _read_promoted(self, owner: Owner) -> list[Memory]:
        """Return the promoted memories of an owner that are valid now."""
        now = self._clock()
        return [one for one in (await self._promoted.get(owner)).memories if one.is_valid_at(now)]


def _is_shared(owner: Owner) -> bool:
    return owner.kind != "user" or owner == NOBODY


def _get_agent(memory: Memory) -> str:
    return memory.owner.id if memory.owner.kind == "agent" else memory.agent or DEFAULT


def _find_listed(file: str) -> set[str]:
    """Return the ids of the memories that a file lists with their text."""
    return {name for name, text in parse_items(file) if text != FORGOTTEN}


def _format_count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


LEAST_INTERVAL = 60_000
"""Minimum of `ConsolidationSettings.interval`, in milliseconds."""


class ConsolidationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The schedule of consolidation.

    Raises:
        InvalidRequest: a setting is invalid.
    """

    enabled: bool = True
    """True: sweeps run automatically. If False, they run only on request."""
    interval: int = DAY
    """Milliseconds between two automatic sweeps over the memories of an owner."""

    def __post_init__(self) -> None:
        check_whole(self.interval, "interval", LEAST_INTERVAL)


class Consolidation:
    """Schedules the sweeps over the memories of all tenants of a database.

    Attributes:
        settings: schedule of the sweeps.

    Args:
        settings: the value of the attribute.
        clock: returns the time in milliseconds since the epoch.
        workspaces: the workspaces of agents; None: agents have no workspaces.
    """

    def __init__(
        self,
        settings: ConsolidationSettings,
        clock: Callable[[], int],
        workspaces: Workspaces | None,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._workspaces = workspaces
        self._passed: dict[str, int] = {}

    def create(self, store: Store, promoted: PromotedCache | None = None) -> tuple[Consolidator, MemoryFiles | None]:
        """Create the consolidator for one tenant, and the object that updates the tenant's memory files after sweeps.

        Args:
            store: the store of the tenant.
            promoted: cache of the promoted memories; None: a new one.

        Returns:
            The consolidator, and the memory files or None if agents have no workspaces.
        """
        consolidator = Consolidator(store, self._clock)
        if self._workspaces is None:
            return consolidator, None
        files = MemoryFiles(consolidator, store, self._workspaces, self._clock, promoted or PromotedCache(store))
        consolidator.on_swept.append(files.handle_sweep)
        return consolidator, files

    def adjust_pace(self, pace: SweepPace) -> SweepPace:
        """Return `pace`, made faster if necessary, so that background work passes at least four times per interval of consolidation."""
        if not self.settings.enabled:
            return pace
        often = self.settings.interval // 4
        return msgspec.structs.replace(
            pace,
            chore_ms=min(pace.chore_ms, often),
            max_interval_seconds=min(pace.max_interval_seconds, often / 1000),
            default_interval_seconds=min(pace.default_interval_seconds, often / 1000),
        )

    async def sweep_due(self, consolidator: Consolidator, tenant: str, now: int) -> int:
        """Run a sweep for each owner of a tenant whose last sweep is at least one interval ago.

        If a sweep fails, the other sweeps run anyway, and the next call tries it again.

        Args:
            consolidator: the consolidator of the tenant.
            tenant: the tenant.
            now: milliseconds since the epoch.

        Returns:
            The number of sweeps that wrote something.
        """
        if not self.settings.enabled:
            return 0
        # Owners without a write since one interval before the last pass were already swept by that pass.
        settled = self._passed.get(tenant, 0) - self.settings.interval
        number = failed = 0
        async for owner, changed in consolidator.owners():
            if changed < settled:
                continue
            try:
                number += await self._run_sweep(consolidator, owner, now)
            except HoldfastError as exc:
                failed += 1
                _log.warning("a sweep over %s memories failed; the next pass retries: %s", owner.kind, exc.code)
        if not failed:
            self._passed[tenant] = now
        return number

    async def _run_sweep(self, consolidator: Consolidator, owner: Owner, now: int) -> bool:
        """Run a sweep for an owner, if it is due. Return True if it wrote something."""
        last = await consolidator.get_last_time(owner)
        if last is not None and now - last < self.settings.interval:
            return False
        return (await consolidator.consolidate(owner)).written
