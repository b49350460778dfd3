"""The API's objects about workspaces, as JSON Schema."""

from __future__ import annotations

from typing import Final

from holdfast.limits import WORKSPACE_DIFF_BYTES
from holdfast.server.shapes import Schema, array, asked, boolean, nullable, record, ref, text, whole

_AGENT: Final = text("the agent's name")

WORKSPACE_COMPONENTS: Final[dict[str, Schema]] = {
    "WorkspaceCommit": record(
        "A commit of a workspace.",
        {
            "oid": text("its id"),
            "short_oid": text("the first seven characters of that"),
            "subject": text("its first line"),
            "body": text("what else it says: session, agent, user and reason where a session's end made it"),
            "author": text("name and address"),
            "timestamp_unix": whole("seconds since the epoch", None),
        },
    ),
    "WorkspaceHistory": record(
        "What was committed, newest first.",
        {
            "object": {"const": "workspace.history"},
            "agent": _AGENT,
            "commits": array(ref("WorkspaceCommit")),
            "diff": text(
                f"from the oldest to the newest, at most {WORKSPACE_DIFF_BYTES} bytes; its end says what is left out"
            ),
        },
        optional=("diff",),
    ),
    "CheckpointRequest": asked("Why.", {"note": nullable(text("one line; unset: `manual`"))}),
    "Checkpoint": record(
        "What became of it.",
        {
            "object": {"const": "workspace.checkpoint"},
            "agent": _AGENT,
            "ok": {"const": True},
            "skipped": boolean("there was nothing to commit"),
            "oid": text("the commit's, its first seven characters"),
            "subject": text("the commit's first line"),
            "reason": text("why there is no commit"),
            "left_out": array(
                record("A file that is not in it, or not as it is now.", {"name": text(), "why": text()}),
            ),
        },
        optional=("oid", "subject", "reason", "left_out"),
    ),
}
