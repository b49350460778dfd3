"""Nothing is there under that id, for this tenant and user."""

from __future__ import annotations

from holdfast.errors.base import HoldfastError


class NotFound(HoldfastError):
    """Nothing under that id for this tenant and user."""

    code = "not_found"
    http_status = 404


class SessionNotFound(NotFound):
    """No such session for this tenant and user."""

    code = "session_not_found"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"no session {session_id!r}")
        self.session_id = session_id


class EntryNotFound(NotFound):
    """No live entry with that `seq` in the session."""

    code = "message_not_found"

    def __init__(self, session_id: str, seq: int) -> None:
        super().__init__(f"session {session_id!r} has no live message with seq {seq}")
        self.seq = seq


class FactNotFound(NotFound):
    """No statement of the user with that id in a live message of the session."""

    code = "fact_not_found"

    def __init__(self, session_id: str, fact_id: str) -> None:
        super().__init__(
            f"session {session_id!r} has no fact {fact_id!r:.80}; list its facts to see their ids, like '4.1'"
        )
        self.fact_id = fact_id


class EndingNotFound(NotFound):
    """No end of a session with that id, of which hooks are still to be told."""

    code = "ending_not_found"

    def __init__(self, ending_id: str) -> None:
        super().__init__(f"there is no ending {ending_id!r} that is to be told of")


class CompactionNotFound(NotFound):
    """No compaction with that id in the session, or none that could be dropped."""

    code = "compaction_not_found"

    def __init__(self, session_id: str, compaction_id: int, such: str = "live or superseded ") -> None:
        super().__init__(f"session {session_id!r} has no {such}compaction {compaction_id}")
        self.compaction_id = compaction_id


class MemoryNotFound(NotFound):
    """No memory with that id."""

    code = "memory_not_found"

    def __init__(self, memory_id: str) -> None:
        super().__init__(f"there is no memory {memory_id!r:.80}")
        self.memory_id = memory_id


class ArtifactNotFound(NotFound):
    """No artifact of that name, or not that version of it.

    Args:
        name: as it was asked for.
        version: None: any.
        called: the name that is there instead, and differs in case or Unicode form alone.
    """

    code = "artifact_not_found"

    def __init__(self, name: str, version: int | None = None, *, called: str | None = None) -> None:
        of = "" if version is None else f"version {version} of "
        super().__init__(f"no {of}artifact {name!r}" + (f"; there is {called!r}" if called else ""))
        self.name = name
        self.version = version


class WorkspaceNotFound(NotFound):
    """No workspace of that agent, or no workspaces at all."""

    code = "workspace_not_found"

    def __init__(self, agent: str | None) -> None:
        off = "there are no workspaces here: hooks.workspace_git turns them on"
        super().__init__(off if agent is None else f"there is no agent {agent!r:.80}, and no workspace of that name")


class UserNotFound(NotFound):
    """No such user, as far as whoever asks may know."""

    code = "user_not_found"

    def __init__(self, user_id: str) -> None:
        super().__init__(f"no user {user_id!r}")


class KeyNotFound(NotFound):
    """No API key of that id."""

    code = "key_not_found"

    def __init__(self, key_id: str) -> None:
        super().__init__(f"there is no API key {key_id!r}")
