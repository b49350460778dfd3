"""The REST API over dreams: sweep over an owner's memories now, or only see what a sweep would do; and the diary of those that were."""

from __future__ import annotations

from typing import Any, Final

from holdfast.consolidation.sweeps import shown
from holdfast.domain.memory import Owner
from holdfast.limits import DIARY_PAGE
from holdfast.server.fields import check_fields, optional
from holdfast.server.http import Call
from holdfast.server.memories import SCOPES, check_writes, owner_in
from holdfast.server.replies import Reply, listed

USUAL: Final = 20
"""Sweeps of the diary that are told unless the request says otherwise."""

MODEL_TOLD: Final = ("status", "code", "memories", "prompt_tokens", "completion_tokens")
"""What is told of asking a model."""


async def dream(call: Call) -> Reply:
    """Sweep over an owner's memories now: those that were recalled often, well and differently enough are promoted.

    With `dry_run` nothing is written, and the answer is what would be. Of an agent's memories or the app's it takes an API key that is of
    no user, or an admin's.
    """
    body = await call.body()
    check_fields(body, "user_id", "agent", "scope", "dry_run")
    dry_run = optional(body, "dry_run", bool, "true or false") or False
    scope, agent = optional(body, "scope", str, "a string"), optional(body, "agent", str, "a string")
    owner = owner_in(call, scope, body.get("user_id"), agent)
    check_writes(call, owner)
    dreamt = await call.hf.dreams.dream(owner, dry_run=dry_run)
    told = {"object": "dream", "dry_run": dry_run, "written": dreamt.written, "promotions": dreamt.promotions}
    return Reply({**told, **_told(shown(dreamt.report, dreamt.memories))})


async def diary(call: Call) -> Reply:
    """The newest sweeps over an owner's memories that wrote something, newest first: what was decided, and why.

    What memories say is looked up now: of one that is forgotten, `content` is null.
    """
    scope = call.choice("scope", "", "", *SCOPES) or None
    owner = owner_in(call, scope, call.text("user_id"), call.text("agent"))
    limit = call.number("limit", USUAL, 1, DIARY_PAGE)
    found = await call.hf.dreams.diary(owner, limit + 1)
    data = [{"object": "dream", "id": one["id"], "at": one["at"], **_told(one)} for one in found[:limit]]
    return Reply(listed(data, has_more=len(found) > limit))


def _told(report: dict[str, Any]) -> dict[str, Any]:
    """A report in the words of the API: whose it is as memories tell that."""
    owner = Owner(report["owner"]["kind"], report["owner"]["id"])
    return {
        "scope": owner.kind,
        "user_id": owner.id if owner.kind == "user" else None,
        "agent": owner.id if owner.kind == "agent" else None,
        "verdicts": report["verdicts"],
        "candidates": report["candidates"],
        "themes": report["themes"],
        "proposals": report["proposals"],
        "model": None if report["model"] is None else {name: report["model"].get(name) for name in MODEL_TOLD},
    }
