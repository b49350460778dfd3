"""Artifacts: what one is, whose it is, and what it may be called. No I/O."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidRequest
from holdfast.limits import ARTIFACT_NAME_BYTES, ARTIFACTS_TOLD

USER: Final = "user:"
"""What names begin with that all sessions of a user share."""
LOADER: Final = "load_artifact"
"""The tool that gives a model what an artifact holds, and results of tools that its prompt does not have any more."""
NOTHING: Final = -1
"""As an expected version: there is nothing of that name yet."""

_RESULT: Final = re.compile(r"result-(0|[1-9][0-9]{0,15})")
_MARKS: Final = " ._-()@+,"
_ALLOWED: Final = f"letters, digits, spaces and {' '.join(_MARKS.strip())}"
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])\s*(\..*)?", re.IGNORECASE)


class UserRef(msgspec.Struct, frozen=True, gc=False):
    """Whose artifacts, where they are no session's own. The tenant is the store handle's own."""

    user_id: str


Scope = SessionRef | UserRef
"""Where a name means one artifact: a session, or a user's sessions together."""


class NewArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """A version of an artifact about to be named; its content is stored already."""

    name: str
    """As `checked_name` gives it, `user:` included."""
    blob: str
    """Key of the content, that no other version has."""
    mime_type: str
    size: int
    """Bytes."""
    sha256: bytes
    """Of the content; 32 bytes."""
    created_at: int
    """Milliseconds since the epoch."""
    author: str | None = None
    metadata: dict[str, Any] = {}


class Artifact(NewArtifact, frozen=True, kw_only=True):
    """One version of an artifact."""

    version: int
    """From 0; a number is given once, as long as there is any version of the name."""

    @property
    def etag(self) -> str:
        """What tells this version's content from any other of the name, one that was deleted since included."""
        return f"{self.version}-{self.sha256.hex()[:32]}"


class ArtifactPage(msgspec.Struct, frozen=True):
    """Some artifacts and whether there are more."""

    artifacts: tuple[Artifact, ...]
    has_more: bool


def format_versions(versions: Mapping[str, int]) -> list[dict[str, Any]]:
    """Versions by name as replies tell of them: of very many the last ones."""
    return [{"name": name, "version": version} for name, version in versions.items()][-ARTIFACTS_TOLD:]


# -- names -------------------------------------------------------------------


def get_scope(ref: SessionRef, name: str) -> Scope:
    """Where the artifact lies that a session means by `name`."""
    return UserRef(ref.user_id) if name.startswith(USER) else ref


def check_name(name: str) -> str:
    """`name` in Unicode's form NFC, if it may be an artifact's.

    A name is never a path: its content lies under a key that says nothing of it. What would trip whoever writes it to
    a disk is refused all the same, on whatever system.

    Raises:
        InvalidRequest: says what is wrong, and what would be right.
    """
    if not isinstance(name, str):
        raise InvalidRequest(f"the name of an artifact is a string, not {type(name).__name__}", param="name")
    whole = unicodedata.normalize("NFC", name)
    plain = whole.removeprefix(USER)
    wrong = _find_mistake(plain)
    if wrong:
        shown = "".join(sign if sign.isprintable() else f"\\u{ord(sign):04x}" for sign in whole[:80])
        message = (
            f"an artifact cannot be called {shown!r}: {wrong}; allowed are {_ALLOWED}, with `user:` before the name"
        )
        raise InvalidRequest(message, param="name")
    return whole


def format_result_name(seq: int) -> str:
    """What the result of a tool is called, as `LOADER` knows it: the entry `seq` of the session."""
    return f"result-{seq}"


def parse_result_name(name: str) -> int | None:
    """Which entry a name means that is a result's; None: it is none."""
    found = _RESULT.fullmatch(name)
    return int(found[1]) if found else None


def _find_mistake(name: str) -> str | None:
    """Why `name` cannot be one; None when it can."""
    if not name:
        return "it is empty"
    odd = next((sign for sign in name if not _is_allowed(sign)), None)
    if odd is not None:
        called = repr(odd) if odd.isprintable() else f"U+{ord(odd):04X}"
        return f"it has {called} in it"
    size = len(name.encode())
    if size > ARTIFACT_NAME_BYTES:
        return f"it has {size} bytes, at most {ARTIFACT_NAME_BYTES} are allowed"
    if name[0] in " ." or name[-1] in " .":
        return "it begins or ends with a dot or a space"
    if unicodedata.category(name[0])[0] == "M":
        return "it begins with a mark that belongs to a letter before it"
    return "it is the name of a device on Windows" if _RESERVED.fullmatch(name) else None


def _is_allowed(sign: str) -> bool:
    return sign in _MARKS or unicodedata.category(sign)[0] in "LMN"


def fold_name(name: str) -> str:
    """What is equal for names that differ in case or Unicode form alone: of those there may be one at a time."""
    bare = unicodedata.normalize("NFD", name).casefold()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", bare))
