"""A turn's claim on its session, so that of all servers on one database one answers at a time.

It costs nothing: the claim rides on the write that opens a turn, and its end on the one that ends it. Only a turn that takes
longer than `RENEWED` writes besides, and one that writes nothing at its opening. A server that dies leaves its claims to
expire; then whoever comes next takes the session over. The clocks of the servers have to agree to within two seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from holdfast.domain.session import Claim, Session, SessionRef
from holdfast.errors import SessionBusy, SessionNotFound, StaleSession, StoreError, TurnLost
from holdfast.liveness import is_dead
from holdfast.repeating import Repeated
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.stores.logic.claims import held_until

_log = logging.getLogger("holdfast.turn")
LEASE: Final = 5_000
"""Milliseconds after which a claim that was not renewed is anybody's: so long does a crash on another host block a session."""
RENEWED: Final = 1_500
"""Milliseconds after which it is renewed: it may fail twice. Turns that are shorter never write for it."""
AGAIN: Final = 1_000
"""Milliseconds after which that is tried again where the store failed."""
SHORTEST, LONGEST = 0.05, 1.0
"""Seconds between two looks at a session that is answered by another server: they grow."""
_RACES: Final = 16
"""Times that a turn tries to write behind what others write at the same time, before its claim alone has to do."""

Pause = Callable[[float], Awaitable[object]]
"""Waits for so many seconds."""


class Claiming:
    """One turn's claim on its session.

    Attributes:
        until: milliseconds since the epoch, when the claim expires; 0: there is none.
        left: whether there may be a claim that has to be given back.
        taken: whether another server took the session over.

    Args:
        store: the tenant's, as it is.
        ref: which session.
        holder: an identifier that nobody else uses: the process's, `-`, and a number.
        clock: milliseconds since the epoch.
        told: called when the turn is wanted by another server, or was taken over (`taken`).
        every: milliseconds between two looks whether it is wanted, at most `RENEWED`.
    """

    def __init__(
        self,
        store: Store,
        ref: SessionRef,
        holder: str,
        clock: Callable[[], int],
        told: Callable[[], None],
        *,
        every: int = RENEWED,
    ) -> None:
        self.until = 0
        self.left = False
        self.taken = False
        self._store = store
        self._ref = ref
        self._holder = holder
        self._clock = clock
        self._told = told
        self._every = every
        self._identity: str | None = None
        self._version = 0
        self._writing = asyncio.Lock()
        self._over = False
        self._keeping = Repeated(self.keep)

    # -- writing -----------------------------------------------------------

    async def written(self, store: Store, write: Append, *, last: bool = False) -> Appended:
        """Do a write of the turn: it claims the session or renews that, and with the `last` one it ends.

        Args:
            store: where the turn writes.
            write: what it writes; its `timestamp` is now.
            last: whether it ends the turn.

        Raises:
            SessionBusy: a turn of another server has the session.
            TurnLost: another server took it over; nothing was written.
        """
        async with self._writing:
            return await self._written(store, write, last=last)

    async def _written(self, store: Store, write: Append, *, last: bool) -> Appended:
        first = not self.until
        try:
            appended = await self._tried(store, write, last=last)
        except SessionBusy as exc:
            if first and not self.taken:
                raise
            raise self._lost() from exc
        except (asyncio.CancelledError, StoreError):
            self.left = True  # it may have been done all the same
            raise
        self._heard(appended.session)
        return appended

    async def _tried(self, store: Store, write: Append, *, last: bool) -> Appended:
        """Write behind the turn's own last write, or behind others' that were no turn's: so nothing of it comes too late."""
        if self.taken:
            raise self._lost()
        claim = Claim(self._holder, write.timestamp + LEASE)
        claimed = msgspec.structs.replace(write, claim=claim, release=self._holder if last else None)
        if self.until and write.expect is None:
            version = self._version
            for _ in range(_RACES):
                try:
                    return await store.append(self._ref, msgspec.structs.replace(claimed, expect=version))
                except StaleSession:
                    version = await self._still()
        return await store.append(self._ref, claimed)

    async def _still(self) -> int:
        """A version at which the session is the turn's: what is there by its holder's name nobody took over. Raises `TurnLost`."""
        session = await self._store.get(self._ref)
        if session.claim is None or session.claim.holder != self._holder:
            raise self._lost()
        return session.version

    def _lost(self) -> TurnLost:
        self.until, self.left, self.taken = 0, False, True
        self._stop()
        return TurnLost(self._ref.id)

    def _heard(self, session: Session) -> None:
        """What a write or a look says of the claim."""
        claim = session.claim
        if claim is None or claim.holder != self._holder:
            self.until, self.left = 0, False
            self._stop()
            return
        self.until, self.left = claim.until, True
        self._identity, self._version = session.identity, session.version
        if not (self._keeping.begun or self._over):
            self._keeping.begin(self._every)
        if claim.wanted:
            self._told()

    async def hold(self, session: Session) -> bool:
        """Claim the session where the turn's opening wrote nothing that did; False: it has changed, and has to be looked at anew.

        Args:
            session: as it was when the opening found that there is nothing to write.

        Raises:
            SessionBusy: a turn of another server has it.
        """
        if self.until:
            return True
        write = Append(timestamp=self._clock(), expect=session.version, identity=session.identity)
        try:
            await self.written(self._store, write)
        except StaleSession:
            return False
        return True

    async def release(self) -> None:
        """Give back what no write of the turn has; where that fails, the claim expires."""
        self._over = True
        self._stop()
        async with self._writing:
            if not self.left:
                return
            self.until, self.left = 0, False
            try:
                write = Append(timestamp=self._clock(), identity=self._identity, release=self._holder)
                await self._store.append(self._ref, write)
            except SessionNotFound:
                pass
            except StoreError as exc:
                _log.warning("the claim on session %r could not be given back: it expires", self._ref.id, exc_info=exc)

    async def free(self) -> bool:
        """Release the session's claim if the turn that made it has ended without doing so; return whether that was so.

        A turn of this process has ended, or this one would not have its place: the store failed when it would have released
        the claim. A turn of a process that has died ended with it.
        """
        claim = (await self._store.get(self._ref)).claim
        if claim is None or not self._has_ended(claim):
            return False
        await self._store.append(self._ref, Append(timestamp=self._clock(), release=claim.holder))
        return True

    def _has_ended(self, claim: Claim) -> bool:
        """Return True if the claim is known to be left over from an earlier turn."""
        return claim.holder.rpartition("-")[0] == self._holder.rpartition("-")[0] or is_dead(claim.holder)

    # -- while a model is thinking -----------------------------------------

    def _stop(self) -> None:
        """No more looks; one that is under way comes to its end: what was written then is known."""
        self._keeping.stop(midway=False)

    async def keep(self) -> int:
        """Renew the claim if it is time, or look whether the turn is wanted; milliseconds until the next time, 0: none."""
        try:
            async with self._writing:
                if not self.until:  # the turn has ended meanwhile
                    return 0
                await self._kept()
        except TurnLost:
            self._told()
            return 0
        except SessionNotFound:  # deleted: the turn finds out by itself
            return 0
        except StoreError as exc:
            _log.warning("the claim on session %r could not be renewed", self._ref.id, exc_info=exc)
            return AGAIN
        return self._every

    async def _kept(self) -> None:
        now = self._clock()
        if now >= self.until - LEASE + RENEWED:
            await self._written(self._store, Append(timestamp=now, identity=self._identity), last=False)
            return
        session = await self._store.get(self._ref)
        if session.claim is None or session.claim.holder != self._holder:
            raise self._lost()
        self._heard(session)

    # -- before it is there ------------------------------------------------

    async def wait(self, busy: SessionBusy, pause: Pause, left: Callable[[], float], *, interrupt: bool) -> None:
        """Wait until no other server's turn has the session, by looking again and again.

        Args:
            busy: what the last try said.
            pause: waits.
            left: seconds that there are left to wait.
            interrupt: ask the other turn to stop.

        Raises:
            SessionBusy: they are over.
        """
        seconds = SHORTEST
        while True:
            claim, now = (await self._store.get(self._ref)).claim, self._clock()
            if claim is None or (until := held_until(claim, now)) <= now or is_dead(claim.holder):
                return
            if interrupt and not claim.wanted:
                await self._store.want(self._ref, claim.holder)
            if left() <= 0:
                raise SessionBusy(self._ref.id, until=until) from busy
            await pause(min(seconds, left(), max(SHORTEST, (until - now) / 1000)))
            seconds = min(2 * seconds, LONGEST)
