"""Define errors for ids that do not exist for this tenant and user."""

from __future__ import annotations

from holdfast.errors.base import HoldfastError


class NotFound(HoldfastError):
    """The id does not exist for this tenant and user."""

    code = "not_found"
    http_status = 404


class SessionNotFound(NotFound):
    """The session does not exist for this tenant and user."""

    code = "session_not_found"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"no session {session_id!r}")
        self.session_id = session_id


class EntryNotFound(NotFound):
    """The session has no entry with that `seq`, or the entry was erased or rewound."""

    code = "message_not_found"

    def __init__(self, session_id: str, seq: int) -> None:
        super().__init__(f"session {session_id!r} has no live message with seq {seq}")
        self.seq = seq


class FactNotFound(NotFound):
    """The session has no fact with that id. A fact is a statement in a message of the user that was neither erased nor rewound."""

    code = "fact_not_found"

    def __init__(self, session_id: str, fact_id: str) -> None:
        super().__init__(
            f"session {session_id!r} has no fact {fact_id!r:.80}; list its facts to see their ids, like '4.1'"
        )
        self.fact_id = fact_id


class EndingNotFound(NotFound):
    """No ending with that id is waiting for hooks. An ending is the record of an ended session whose hooks must still be called."""

    code = "ending_not_found"

    def __init__(self, ending_id: str) -> None:
        super().__init__(f"there is no ending {ending_id!r} that is waiting for hooks")


class CompactionNotFound(NotFound):
    """The session has no compaction with that id, or the compaction cannot be dropped."""

    code = "compaction_not_found"

    def __init__(self, session_id: str, compaction_id: int, such: str = "live or superseded ") -> None:
        super().__init__(f"session {session_id!r} has no {such}compaction {compaction_id}")
        self.compaction_id = compaction_id


class CallNotFound(NotFound):
    """The turn has no recorded model call with that number."""

    code = "call_not_found"

    def __init__(self, session_id: str, turn_id: int, number: int | None) -> None:
        which = "recorded model call" if number is None else f"recorded model call {number}"
        super().__init__(f"turn {turn_id} of session {session_id!r} has no {which}; turns and calls are counted from 0")


class MemoryNotFound(NotFound):
    """No memory has that id."""

    code = "memory_not_found"

    def __init__(self, memory_id: str) -> None:
        super().__init__(f"there is no memory {memory_id!r:.80}")
        self.memory_id = memory_id


class ArtifactNotFound(NotFound):
    """The artifact, or the requested version of it, does not exist.

    Args:
        name: the requested name.
        version: the requested version. None: any version.
        called: name of an existing artifact that differs from `name` only in case or Unicode form. None: there is none.
    """

    code = "artifact_not_found"

    def __init__(self, name: str, version: int | None = None, *, called: str | None = None) -> None:
        of = "" if version is None else f"version {version} of "
        super().__init__(f"no {of}artifact {name!r}" + (f"; there is {called!r}" if called else ""))
        self.name = name
        self.version = version


class RecordNotFound(NotFound):
    """There is no record with that key in that namespace, or it has expired."""

    code = "record_not_found"

    def __init__(self, key: str) -> None:
        super().__init__(f"there is no record {key!r:.80} in this namespace")
        self.key = key


class WorkspaceNotFound(NotFound):
    """The agent has no workspace, or workspaces are disabled."""

    code = "workspace_not_found"

    def __init__(self, agent: str | None) -> None:
        disabled = "workspaces are disabled: enable hooks.workspace_git"
        super().__init__(
            disabled if agent is None else f"there is no agent {agent!r:.80}, and no workspace of that name"
        )


class UserNotFound(NotFound):
    """The user does not exist, or the caller may not know that it exists."""

    code = "user_not_found"

    def __init__(self, user_id: str) -> None:
        super().__init__(f"no user {user_id!r}")


class KeyNotFound(NotFound):
    """No API key has that id."""

    code = "key_not_found"

    def __init__(self, key_id: str) -> None:
        super().__init__(f"there is no API key {key_id!r}")
