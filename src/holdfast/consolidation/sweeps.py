"""Sweeps over memories: they promote what was recalled often, well and by different questions; when they run, and the files they write.

    signals -> findings -> a model's proposals, where one is asked -> one write: promotions, proposals, diary entry, old signals
            -> files rendered from the records

The write expects the version that was read, so of two concurrent sweeps one promotes and the other finds nothing to do. A sweep that has
nothing to add writes nothing. Files are written after the records and from the records alone, so the next sweep completes what a crash
left undone.

Memories of an agent, of all, or of no named user are listed in the MEMORY.md and DREAMS.md of the agent's workspace; those of a user in files
of that user (`MEMORY.ada.md`), since users must not read each other's. The agent that remembered something decides the workspace; without
one it is `default`.
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
    commit_lines,
    diary_file,
    items_of,
    memory_file,
)
from holdfast.consolidation.promotion import DreamSettings, Finding, findings_of, promote, themes_of
from holdfast.consolidation.proposals import Proposer, Proposing
from holdfast.domain.memory import DiaryEntry, Memory, MemoryDelta, Owner, Signal
from holdfast.domain.session import DEFAULT_USER
from holdfast.errors import HoldfastError, InvalidRequest, StaleMemories
from holdfast.lifecycle.sweeper import SweepPace
from holdfast.limits import DIARY_KEPT, MEMORIES_AT_ONCE, MERGES_ASKED, PAGE
from holdfast.memory.memories import random_id
from holdfast.memory.owner_caches import Promoted
from holdfast.memory.ranking import DAY
from holdfast.numbers import check_whole
from holdfast.stores.base import Store
from holdfast.stores.memories import MemoryStore
from holdfast.stores.walk import iterate_owners
from holdfast.workspace import Workspace, Workspaces
from holdfast.workspace.files import make_user_file_name
from holdfast.workspace.workspace import DEFAULT, format_fields

_log = logging.getLogger("holdfast.dreams")
TRIES: Final = 10
"""Times that a sweep is decided anew, where somebody keeps changing the memories meanwhile."""
_PAUSE: Final = 0.02
"""Seconds before the third try, and as much more before each further one."""
TOLD: Final = 200
"""Memories that a report tells of, the best."""
_LONG: Final = 500
"""Signals from which on deciding takes long enough for others to wait."""
OnDreamt = Callable[["Dreamt"], Awaitable[None]]
"""Called behind a sweep that changed something, when that is durable."""


class Dreamt(msgspec.Struct, frozen=True):
    """A sweep over one owner's memories."""

    owner: Owner
    report: dict[str, Any]
    """What was decided, and why; as the diary keeps it."""
    memories: Mapping[str, Memory]
    """Those that it tells of, by id, as they are behind it."""
    written: bool
    """Whether anything was written; a dry run, or one with nothing new, writes nothing."""

    @property
    def promotions(self) -> int:
        """How many it promoted, or would have."""
        return int(self.report["verdicts"].get("promoted", 0))


class Dreams:
    """Dreams about the memories of one tenant.

    Attributes:
        on_dreamt: called behind each sweep that wrote something.

    Args:
        store: where memories are.
        clock: milliseconds since the epoch.
        settings: weights and gates.
        keep: milliseconds that signals are kept; they are looked at no longer, either.
        new_id: makes ids of diary entries.
        proposing: what is asked for merges, behind what one sweep decides, for each sweep anew; None: nobody is.
    """

    def __init__(
        self,
        store: MemoryStore,
        clock: Callable[[], int],
        settings: DreamSettings | None = None,
        *,
        keep: int = 180 * DAY,
        new_id: Callable[[], str] = lambda: f"dream_{uuid.uuid4().hex}",
        proposing: Callable[[], Proposing] | None = None,
    ) -> None:
        self.on_dreamt: list[OnDreamt] = []
        self.settings = settings or DreamSettings()
        self._store = store
        self._clock = clock
        self._keep = keep
        self._new_id = new_id
        self._proposing = proposing

    async def dream(self, owner: Owner, *, dry_run: bool = False, ask: bool = True) -> Dreamt:
        """Sweep over an owner's memories.

        Args:
            owner: whose.
            dry_run: decide, and write nothing at all; no model is asked.
            ask: whether a model is asked for merges, where one is to be.

        Raises:
            StaleMemories: somebody kept changing them meanwhile.
        """
        proposing = self._proposing() if self._proposing is not None and ask and not dry_run else None
        for attempt in range(TRIES):
            try:
                dreamt = await self._dreamt(owner, proposing, dry_run=dry_run)
            except StaleMemories:
                if attempt == TRIES - 1:
                    raise
                await asyncio.sleep(_PAUSE * attempt)  # who writes one thing after the other is done by then
                continue
            if dreamt.written:
                await self._tell(dreamt)
            return dreamt
        raise AssertionError("the loop ends before")

    async def diary(self, owner: Owner, limit: int = 20) -> list[dict[str, Any]]:
        """The newest sweeps, newest first, as `shown` tells them: with what memories say that there still are."""
        entries = await self._store.diary(owner, limit=limit)
        memories = await self.named(owner, entries)
        return [{"id": entry.id, "at": entry.at, **show_report(entry.report, memories)} for entry in entries]

    async def named(self, owner: Owner, entries: Sequence[DiaryEntry]) -> dict[str, Memory]:
        """The memories that diary entries tell of and that there still are, by id."""
        ids = {name for entry in entries for name in _ids_in(entry.report)}
        return {memory.id: memory async for memory in self._memories(owner, sorted(ids))}

    async def last(self, owner: Owner) -> int | None:
        """When the last sweep that wrote something was, milliseconds since the epoch; None: there was none."""
        newest = await self._store.diary(owner, limit=1)
        return newest[0].at if newest else None

    def owners(self) -> AsyncIterator[tuple[Owner, int]]:
        """Owners for whom something was ever written, each with when that last was."""
        return iterate_owners(self._store)

    # -- one sweep -------------------------------------------------------------

    async def _dreamt(self, owner: Owner, proposing: Proposing | None, *, dry_run: bool) -> Dreamt:
        now = self._clock()
        version = (await self._store.memories(owner, limit=1)).version
        signals = await self._store.signals(owner, since=now - self._keep)
        of: dict[str, list[Signal]] = {}
        for signal in signals:
            of.setdefault(signal.memory_id, []).append(signal)
        memories = {memory.id: memory async for memory in self._memories(owner, sorted(of))}

        def decided() -> tuple[list[Finding], dict[str, Any]]:
            findings = findings_of(memories.values(), of, now, self.settings)
            return findings, self._report(owner, findings, memories, signals, now)

        findings, report = await run_cpu(decided, long=len(signals) > _LONG)
        best = [promote(memories[one.memory_id], one, now) for one in findings if one.verdict == "promoted"]
        if dry_run or not (best or await self._is_news(owner, report["through"])):
            return Dreamt(owner, report, memories, written=False)
        proposals: list[Memory] = []
        if proposing is not None:
            proposals, said = await proposing.of(owner, best, now, room=MEMORIES_AT_ONCE - len(best))
            report |= said
        delta = MemoryDelta(
            put=(*best, *proposals),
            diary=(DiaryEntry(id=self._new_id(), at=now, report=report),),
            signals_before=now - self._keep,
        )
        stored = await self._store.change_memories(owner, delta, timestamp=now, expect=version)
        memories |= {memory.id: memory for memory in stored.memories}
        return Dreamt(owner, report, memories, written=True)

    async def _memories(self, owner: Owner, ids: Sequence[str]) -> AsyncIterator[Memory]:
        for start in range(0, len(ids), PAGE):
            page = await self._store.memories(owner, ids=ids[start : start + PAGE], limit=PAGE)
            for memory in page.memories:
                yield memory

    async def _is_news(self, owner: Owner, through: int | None) -> bool:
        """Whether something was recalled behind the last sweep."""
        if through is None:
            return False
        last = await self._store.diary(owner, limit=1)
        return not last or through > (last[0].report.get("through") or 0)

    def _report(
        self,
        owner: Owner,
        findings: Sequence[Finding],
        memories: Mapping[str, Memory],
        signals: Sequence[Signal],
        now: int,
    ) -> dict[str, Any]:
        day = Counter(signal.memory_id for signal in signals if signal.at > now - DAY)
        told = findings[:TOLD]
        return {
            "owner": {"kind": owner.kind, "id": owner.id},
            "verdicts": dict(Counter(one.verdict for one in findings)),
            "candidates": [one.to_wire() for one in told],
            "themes": [_strip_theme(theme.to_wire()) for theme in themes_of(list(memories.values()), day)],
            "agents": sorted({memories[one.memory_id].agent or "" for one in findings if one.verdict == "promoted"}),
            "through": max((signal.at for signal in signals), default=None),
        }

    async def _tell(self, dreamt: Dreamt) -> None:
        for told in self.on_dreamt:
            try:
                await told(dreamt)
            except Exception as exc:  # noqa: BLE001 - the last place: what was promoted is, whatever becomes of its files
                _log.error("behind a dream about %s memories: not done", dreamt.owner.kind, exc_info=exc)


def show_report(report: Mapping[str, Any], memories: Mapping[str, Memory]) -> dict[str, Any]:
    """A report as people read it: with what each memory says, None where it is forgotten, and the words of each theme."""
    candidates = [{**one, "content": _said(one["memory_id"], memories)} for one in report.get("candidates", ())]
    themes = [_told(theme, memories) for theme in report.get("themes", ())]
    proposals = [_show_proposal(one, memories) for one in report.get("proposals", ())]
    told = {**report, "candidates": candidates, "themes": [theme for theme in themes if theme["terms"]]}
    return {**told, "proposals": proposals, "model": report.get("model")}


def _show_proposal(one: Mapping[str, Any], memories: Mapping[str, Memory]) -> dict[str, Any]:
    """A proposal with what it would say, and what became of it; None where it is gone."""
    memory = memories.get(one["memory_id"])
    return {**one, "content": _said(one["memory_id"], memories), "status": None if memory is None else memory.status}


def _said(memory_id: str, memories: Mapping[str, Memory]) -> str | None:
    memory = memories.get(memory_id)
    return None if memory is None else memory.content


def _strip_theme(theme: Mapping[str, Any]) -> dict[str, Any]:
    """A theme as the diary keeps it: without words, which come from the memories that there still are when it is read."""
    return {name: value for name, value in theme.items() if name != "terms"}


def _told(theme: Mapping[str, Any], memories: Mapping[str, Memory]) -> dict[str, Any]:
    there = [memories[name] for name in theme["memory_ids"] if name in memories]
    found = themes_of(there, dict.fromkeys((one.id for one in there), 1), near=0.0)
    return {**theme, "terms": list(found[0].terms) if found else []}


def _ids_in(report: Mapping[str, Any]) -> set[str]:
    ids = {one["memory_id"] for one in report.get("candidates", ())}
    ids |= {one["memory_id"] for one in report.get("proposals", ())}
    return ids.union(*(theme["memory_ids"] for theme in report.get("themes", ())))


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
            lines.insert(0, format_fields({"user": dreamt.owner.id}))  # so that others are not told what was promoted
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
            file = name if shared else make_user_file_name(name, owner.id)
            before = await workspace.read(file)
            if before == text:
                continue
            wrote = True
            gone |= _find_told(before or "") - _find_told(text)
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
        told = [
            msgspec.structs.replace(entry, report=show_report(entry.report, memories)) for entry in entries[:NIGHTS]
        ]
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
        file = DIARY_FILE if _is_shared(owner) else make_user_file_name(DIARY_FILE, owner.id)
        existing = await to_thread.run_sync(self._workspaces.list_workspaces, self._tenant)
        return [one for one in existing if (one.folder / file).is_file()]

    async def _telling(self, owner: Owner) -> list[Memory]:
        """The promoted memories of an owner that hold now."""
        now = self._clock()
        return [one for one in (await self._promoted.of(owner)).memories if one.is_valid_at(now)]


def _is_shared(owner: Owner) -> bool:
    return owner.kind != "user" or owner == NOBODY


def _agent_of(memory: Memory) -> str:
    """In whose workspace a memory is told of."""
    return memory.owner.id if memory.owner.kind == "agent" else memory.agent or DEFAULT


def _find_told(file: str) -> set[str]:
    """Ids of the memories whose words a file has."""
    return {name for name, text in items_of(file) if text != FORGOTTEN}


def _counted(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


LEAST_INTERVAL = 60_000
"""Milliseconds between two dreams of an owner, at least."""


class DreamingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When dreams happen, what they go by, and what of them a session is told.

    Raises:
        InvalidRequest: a setting that cannot be.
    """

    enabled: bool = True
    """Whether they happen by themselves; somebody may ask for one in any case."""
    interval: int = DAY
    """Milliseconds between two dreams of an owner."""
    decides: DreamSettings = DreamSettings()
    """Weights and gates."""
    signals_kept: int = 180 * DAY
    """Milliseconds after which a recall counts no more, and goes."""
    inject_budget: int = 800
    """Tokens of promoted memories that a session of an agent with memory is told when it begins; 0: none are."""
    model: str | None = None
    """Name of an llm, or a model's, that is asked which promoted memories say the same; None: none is."""

    def __post_init__(self) -> None:
        for name, least in (("interval", LEAST_INTERVAL), ("signals_kept", DAY), ("inject_budget", 0)):
            check_whole(getattr(self, name), name, least)
        if self.model == "":
            raise InvalidRequest("model must be the name of an llm, and is empty", param="model")


class Dreaming:
    """Dreams of all tenants of a database.

    Attributes:
        settings: see there.

    Args:
        settings: see there.
        clock: milliseconds since the epoch.
        workspaces: where agents' files are; None: there are none.
        proposer: who is asked for merges of promoted memories; None: nobody.
    """

    def __init__(
        self,
        settings: DreamingSettings,
        clock: Callable[[], int],
        workspaces: Workspaces | None,
        proposer: Proposer | None = None,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._workspaces = workspaces
        self._proposer = proposer
        self._passed: dict[str, int] = {}

    def of(self, store: Store, promoted: Promoted | None = None) -> tuple[Dreams, DreamFiles | None]:
        """Dreams of a store's tenant, and its files, which are told of them; None: there are no workspaces."""
        settings, known = self.settings, promoted or Promoted(store)
        proposing = None if self._proposer is None else _proposing(self._proposer, store, known)
        dreams = Dreams(store, self._clock, settings.decides, keep=settings.signals_kept, proposing=proposing)
        if self._workspaces is None:
            return dreams, None
        files = DreamFiles(dreams, store, self._workspaces, self._clock, known)
        dreams.on_dreamt.append(files.dreamt)
        return dreams, files

    def pace(self, pace: SweepPace) -> SweepPace:
        """A pace of sweeps at which dreams come in time: four within the interval, at least."""
        if not self.settings.enabled:
            return pace
        often = self.settings.interval // 4
        return msgspec.structs.replace(
            pace,
            chore=min(pace.chore, often),
            latest=min(pace.latest, often / 1000),
            without=min(pace.without, often / 1000),
        )

    async def due(self, dreams: Dreams, tenant: str, now: int) -> int:
        """Dream about each owner of a tenant for whom it is time; how many dreams wrote something.

        One that fails is left to the next pass, and keeps no other one from it.
        """
        if not self.settings.enabled:
            return 0
        # What was not written to since before the pass behind which it would have been due was dealt with by then.
        settled = self._passed.get(tenant, 0) - self.settings.interval
        number = failed = asked = 0
        async for owner, changed in dreams.owners():
            if changed < settled:
                continue
            try:
                written, called = await self._dreamt(dreams, owner, now, ask=asked < MERGES_ASKED)
                number += written
                asked += called
            except HoldfastError as exc:
                failed += 1
                _log.warning("a dream about %s memories failed; the next pass tries again: %s", owner.kind, exc.code)
        if not failed:
            self._passed[tenant] = now
        return number

    async def _dreamt(self, dreams: Dreams, owner: Owner, now: int, *, ask: bool) -> tuple[bool, bool]:
        """Whether a dream wrote something, and whether a model was asked."""
        last = await dreams.last(owner)
        if last is not None and now - last < self.settings.interval:
            return False, False
        dreamt = await dreams.dream(owner, ask=ask)
        return dreamt.written, (dreamt.report.get("model") or {}).get("status") in ("asked", "failed")


def _proposing(proposer: Proposer, store: Store, promoted: Promoted) -> Callable[[], Proposing]:
    async def known(owner: Owner) -> Sequence[Memory]:
        return (await promoted.of(owner)).memories

    return lambda: Proposing(proposer, store, known, random_id)
