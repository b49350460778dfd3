"""When dreams happen: by the clock, for every owner whose memories were recalled since the last one; and what is told behind them.

The sweep's chore calls this under the sweep's lease, for one tenant after the other. Should two processes come to the same owner
at once all the same, one of them writes, and the other one finds nothing to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from holdfast.domain.memory import Memory, Owner
from holdfast.dreams.files import DreamFiles
from holdfast.dreams.gates import DreamSettings
from holdfast.dreams.proposing import Proposer, Proposing
from holdfast.dreams.sweep import Dreams
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.life.sweeping import Pace
from holdfast.limits import MERGES_ASKED
from holdfast.memory.promoted import Promoted
from holdfast.memory.ranking import DAY
from holdfast.memory.remembering import random_id
from holdfast.numbers import check_whole
from holdfast.stores.base import Store
from holdfast.workspace import Workspaces

_log = logging.getLogger("holdfast.dreams")
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

    def pace(self, pace: Pace) -> Pace:
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
