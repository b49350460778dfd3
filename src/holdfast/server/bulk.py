"""REST API to close, delete or export many sessions at once: those that a request names, or that a filter finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.session import SessionRef
from holdfast.errors import HoldfastError, InvalidRequest, SessionNotFound, TooLarge
from holdfast.lifecycle.removal import Receipt
from holdfast.limits import PREVIEWED_SESSIONS
from holdfast.server.http import Call, get_session_by_id
from holdfast.server.limits import BULK_EXPORT_BYTES, BULK_SESSIONS
from holdfast.server.replies import make_failure_reply
from holdfast.server.routes import BODY, OF_SESSION, Routes
from holdfast.server.sessions import SessionSelection, SessionsQuery, get_page
from holdfast.sessions.transfer import export_session
from holdfast.stores.checks import check_id
from holdfast.stores.walk import measure_records
from holdfast.wire.objects import Answer, Count, Id, JsonObject, NonEmpty, Request

routes = Routes("sessions")
BulkAction = Literal["close", "delete", "export"]
_INLINE_BYTES: Final = 64 * 1024
"""Size of a session up to which its export is encoded on the event loop."""


class SessionName(Request, kw_only=True):
    """The name of a session."""

    id: Id
    user_id: Id | None = None
    """User of the session; null: as in routes for one session."""


class SessionFilter(SessionSelection, kw_only=True):
    """Selects sessions by their fields, the longest unchanged first."""

    status: Literal["active", "closed"] | None = None
    """Only sessions with this status. To close sessions, it must be `active` or unset."""
    after: NonEmpty | None = None
    """Id of the session after which to begin: that of the last result of the previous request."""


class BulkRequest(Request, kw_only=True):
    """An action for many sessions. Either `sessions` or `filter` must be given."""

    action: BulkAction
    sessions: list[SessionName] | None = None
    """The sessions, at most 100."""
    filter: SessionFilter | None = None
    """Selects the sessions. One request processes the first 100 of them."""
    dry_run: bool = False
    """True: only count the sessions. Nothing is changed."""


class BulkError(Answer, kw_only=True):
    """The reason why a session was not processed."""

    code: str
    message: str


class BulkResult(Answer, kw_only=True):
    """The result for one session."""

    id: Id
    user_id: Id | None
    """User of the session; null if the request did not name the user and the session was not found."""
    status: Literal["done", "failed", "found"]
    """`found`: the request is a dry run, and the session would be processed."""
    error: BulkError | None = None
    receipt: Receipt | None = None
    """Counts of the deleted data."""
    export: JsonObject | None = None
    """The exported session, as in `GET /v1/sessions/{id}`."""


class BulkResults(Answer, kw_only=True):
    """The results of a request for many sessions."""

    object: Literal["bulk"] = "bulk"
    action: BulkAction
    dry_run: bool
    count: Count
    """Number of sessions that were processed without an error. In a dry run: number of sessions that would be processed, up to 1,000."""
    failed: Count
    """Number of sessions that were not processed because of an error."""
    has_more: bool
    """True if the filter selects more sessions."""
    results: list[BulkResult]
    """One result for each session, in order. Empty for a dry run with a filter."""


class _Target(NamedTuple):
    """A session to process."""

    id: str
    user_id: str | None
    ref: SessionRef | None
    """The session, if it was found already."""


@routes.add("POST", "/v1/bulk/sessions", "write", error_statuses=(*BODY, *OF_SESSION))
async def process(call: Call, body: BulkRequest) -> BulkResults:
    """Close, delete or export up to 100 sessions. With `dry_run`, only count them.

    Each session is processed on its own: an error is reported in its result, and the others are processed all the same. With a filter, send
    the request again until `has_more` is false or nothing was done. To export more, pass the last result in `after` and `after_user`.
    """
    if (body.sessions is None) == (body.filter is None):
        raise InvalidRequest("give either sessions or filter", param="sessions")
    if body.filter is None:
        targets, has_more = _read_names(body.sessions or []), False
    else:
        selected = _check_filter(body.action, body.filter)
        if body.dry_run:
            return await _count(call, body.action, selected)
        targets, has_more = await _select(call, selected)
    if body.action == "export" and not body.dry_run:
        await call.reserve_answer(BULK_EXPORT_BYTES)
    run = _Run(call, "count" if body.dry_run else body.action)
    results = [await run.process(target) for target in targets]
    failed = sum(result.status == "failed" for result in results)
    return BulkResults(
        action=body.action,
        dry_run=body.dry_run,
        count=len(results) - failed,
        failed=failed,
        has_more=has_more,
        results=results,
    )


def _read_names(names: Sequence[SessionName]) -> list[_Target]:
    if len(names) > BULK_SESSIONS:
        raise TooLarge(f"{len(names)} sessions at once; at most {BULK_SESSIONS} are allowed", param="sessions")
    for at, name in enumerate(names):
        check_id(name.id, f"sessions[{at}].id")
        if name.user_id is not None:
            check_id(name.user_id, f"sessions[{at}].user_id")
    return [_Target(name.id, name.user_id, None) for name in names]


def _check_filter(action: BulkAction, selected: SessionFilter) -> SessionFilter:
    if action != "close":
        return selected
    if selected.status == "closed":
        raise InvalidRequest(
            "filter.status must be active: closed sessions cannot be closed again", param="filter.status"
        )
    return msgspec.structs.replace(selected, status="active")


async def _select(call: Call, selected: SessionFilter) -> tuple[list[_Target], bool]:
    page = await get_page(call, _make_query(selected))
    return [_Target(one.id, one.user_id, one.ref) for one in page.sessions], page.has_more


async def _count(call: Call, action: BulkAction, selected: SessionFilter) -> BulkResults:
    """Count the sessions that a filter selects, up to `PREVIEWED_SESSIONS`."""
    count, has_more = 0, True
    while has_more and count < PREVIEWED_SESSIONS:
        page = await get_page(call, _make_query(selected))
        count, has_more = count + len(page.sessions), page.has_more and bool(page.sessions)
        if has_more:
            last = page.sessions[-1]
            selected = msgspec.structs.replace(selected, after=last.id, after_user=last.user_id)
    return BulkResults(action=action, dry_run=True, count=count, failed=0, has_more=has_more, results=[])


def _make_query(selected: SessionFilter) -> SessionsQuery:
    return SessionsQuery(**msgspec.structs.asdict(selected), limit=BULK_SESSIONS, order="asc")


class _Run:
    """Processes the sessions of one request, one after the other.

    Args:
        call: the request.
        action: what to do with each session; `count`: only find it.
    """

    def __init__(self, call: Call, action: BulkAction | Literal["count"]) -> None:
        self._call = call
        self._action = action
        self._exported = 0
        """Bytes of all exports so far."""

    async def process(self, target: _Target) -> BulkResult:
        """Process one session. An error becomes its result."""
        user_id = target.user_id
        try:
            if target.ref is None:
                owner = self._call.get_owner(user_id)
                ref = (await get_session_by_id(self._call.hf, target.id, owner)).ref
            else:
                ref = target.ref
            user_id = ref.user_id
            fields = await self._apply(ref)
        except HoldfastError as exc:
            error: dict[str, Any] = make_failure_reply(exc, self._call.hf.guard).body["error"]
            failure = BulkError(code=error["code"], message=error["message"])
            return BulkResult(id=target.id, user_id=user_id, status="failed", error=failure)
        status: Literal["done", "found"] = "found" if self._action == "count" else "done"
        return BulkResult(id=target.id, user_id=user_id, status=status, **fields)

    async def _apply(self, ref: SessionRef) -> dict[str, Any]:
        """Apply the action to a session, and return fields of its result."""
        if self._action == "close":
            await self._call.hf.close_session(ref)
        elif self._action == "delete":
            receipt = await self._call.hf.remove(ref)
            if receipt is None:  # another request deleted it in the meantime
                raise SessionNotFound(ref.id)
            return {"receipt": receipt}
        elif self._action == "export":
            return {"export": await self._export(ref)}
        return {}

    async def _export(self, ref: SessionRef) -> msgspec.Raw:
        """Return a session as JSON. Raise `TooLarge` if the response would be too large with it."""
        store, now = self._call.hf.store, self._call.hf.clock()
        size = (await store.get(ref)).bytes + (await measure_records(store, ref, now=now))[1]
        self._check_size(size)
        async with self._call.transfer(size):
            exported = await export_session(store, ref, raw=True, now=now)
        data = await run_cpu(msgspec.json.encode, exported, long=size > _INLINE_BYTES)
        self._check_size(len(data))
        self._exported += len(data)
        return msgspec.Raw(data)

    def _check_size(self, size: int) -> None:
        if self._exported + size > BULK_EXPORT_BYTES:
            raise TooLarge(
                f"the exports of one request have at most {BULK_EXPORT_BYTES:,} bytes: export this session in another request"
            )
