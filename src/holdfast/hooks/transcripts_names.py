"""Which file a session's transcript is in: a name for each session, and no two alike on any file system."""

from __future__ import annotations

from typing import Final

from holdfast.safe_names import is_plain, with_digest

DEFAULT: Final = "default"
"""The tenant and the user whose sessions' files are called as the sessions are."""
SUFFIX: Final = ".jsonl"


def file_name(tenant: str, user_id: str, session_id: str) -> str:
    """The name of a session's file: `<session id>.jsonl` where that is safe, else one with a digest that nobody else has.

    >>> file_name("default", "default", "support-42")
    'support-42.jsonl'
    >>> file_name("default", "ada", "../Support 42")
    '---support-42~3862ca8b0646b105cf4b26b0f0cb509ca0c8c512.jsonl'
    """
    if tenant == user_id == DEFAULT and is_plain(session_id):
        return session_id + SUFFIX
    return with_digest(session_id, tenant, user_id, session_id) + SUFFIX


def earlier_name(name: str, created_at: int, number: int = 1) -> str:
    """Where a file goes whose session has given up its name to another one.

    Args:
        name: the file's, so far.
        created_at: when its session was made, milliseconds since the epoch.
        number: above 1, where that name is taken.

    >>> earlier_name("support-42.jsonl", 1760000000000)
    'support-42@1760000000000.jsonl'
    """
    again = "" if number == 1 else f"-{number}"
    return f"{name.removesuffix(SUFFIX)}@{created_at}{again}{SUFFIX}"


def earlier_id(name: str, session_id: str) -> str:
    """The id under which the session of a file is put up again: of one that gave up its name to another, a new one.

    >>> earlier_id("support-42.jsonl", "support-42"), earlier_id("support-42@1760000000000.jsonl", "support-42")
    ('support-42', 'support-42@1760000000000')
    """
    _, at, moment = name.removesuffix(SUFFIX).rpartition("@")
    return f"{session_id}@{moment}" if at and moment.replace("-", "").isdigit() else session_id


def earlier_names(name: str) -> str:
    """The pattern of all names that `earlier_name` makes of one."""
    return f"{name.removesuffix(SUFFIX)}@*{SUFFIX}"
