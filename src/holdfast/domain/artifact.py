"""Artifacts, their scopes and their names. No I/O."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from holdfast.domain.objects import Count, JsonObject, Time, json_schema
from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidRequest
from holdfast.limits import ARTIFACT_NAME_BYTES, ARTIFACTS_TOLD

USER: Final = "user:"
"""Prefix of the names of artifacts that all sessions of a user share."""
LOADER: Final = "load_artifact"
"""Name of the tool with which a model loads artifacts, and tool results that its prompt no longer contains."""
NAMED_ARTIFACTS: Final = "artifacts"
"""Key in the `metadata` of a reply: the artifacts that tools saved in its turn, or that its text names."""
NOTHING: Final = -1
"""Expected version that means: no artifact with this name may exist yet."""

_RESULT: Final = re.compile(r"result-(0|[1-9][0-9]{0,15})")
_MARKS: Final = " ._-()@+,"
_ALLOWED: Final = f"letters, digits, spaces and {' '.join(_MARKS.strip())}"
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])\s*(\..*)?", re.IGNORECASE)


ArtifactName = Annotated[
    str,
    json_schema(
        description="letters, digits, spaces and `._-()@+,`, at most 255 bytes; with the prefix `user:` it belongs to all sessions of the user",
        minLength=1,
    ),
]


class UserRef(msgspec.Struct, frozen=True, gc=False):
    """The scope of artifacts that all sessions of a user share. The store handle determines the tenant."""

    user_id: str


Scope = SessionRef | UserRef
"""The scope in which an artifact's name is unique: one session, or all sessions of a user."""


class ArtifactFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a version of an artifact that are the same in the library and in the REST API."""

    name: ArtifactName
    mime_type: str
    """Media type of the content."""
    size: Count
    """Size in bytes."""
    author: str | None = None
    """Agent that saved the version, if known."""
    metadata: JsonObject = {}
    """Metadata given when the version was saved."""
    created_at: Time


class NewArtifact(ArtifactFields, frozen=True, kw_only=True):
    """A version of an artifact that is about to be recorded. Its content is already stored."""

    blob: str
    """Key of the content, unique to this version."""
    sha256: bytes
    """SHA-256 of the content; 32 bytes."""


class Artifact(NewArtifact, frozen=True, kw_only=True):
    """A recorded version of an artifact."""

    version: int
    """Number of the version, counted from 0. A number is not reused as long as any version of the name exists."""

    @property
    def etag(self) -> str:
        """The ETag. Any two contents that ever had this name, including deleted ones, have different ETags."""
        return f"{self.version}-{self.sha256.hex()[:32]}"


class ArtifactPage(msgspec.Struct, frozen=True):
    """One page of a list of artifacts. `has_more` is True if more pages follow."""

    artifacts: tuple[Artifact, ...]
    has_more: bool


def format_versions(versions: Mapping[str, int]) -> list[dict[str, Any]]:
    """Convert versions by name into the list that replies contain. If there are very many, the list contains only the last ones."""
    return [{"name": name, "version": version} for name, version in versions.items()][-ARTIFACTS_TOLD:]


# -- names -------------------------------------------------------------------


def get_scope(ref: Scope, name: str) -> Scope:
    """Return the scope of an artifact: the user for names that begin with `user:`, else the session `ref`.

    Raises:
        InvalidRequest: `ref` is a user, and the name does not begin with `user:`.
    """
    if name.startswith(USER):
        return UserRef(ref.user_id)
    if isinstance(ref, UserRef):
        raise InvalidRequest(f"an artifact without a session is called 'user:…', not {name!r:.80}", param="name")
    return ref


def check_name(name: str) -> str:
    """Check the name of an artifact, and return it in Unicode form NFC.

    The content is stored under a key that does not depend on the name, so a name is never used as a path. Nevertheless, names
    that are invalid or unsafe as file names on any system are refused.

    Raises:
        InvalidRequest: the name is not allowed. The message says why, and which names are allowed.
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
    """Return the name with which `LOADER` loads the tool result of the entry `seq`."""
    return f"result-{seq}"


def parse_result_name(name: str) -> int | None:
    """Return the `seq` of the tool result that the name refers to. Return None if the name does not refer to a tool result."""
    found = _RESULT.fullmatch(name)
    return int(found[1]) if found else None


def _find_mistake(name: str) -> str | None:
    """Return the reason why the name is not allowed; None if it is allowed."""
    if not name:
        return "it is empty"
    odd = next((sign for sign in name if not (sign in _MARKS or unicodedata.category(sign)[0] in "LMN")), None)
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


def fold_name(name: str) -> str:
    """Return a form that is equal for names that differ only in case or Unicode form. Such names cannot exist together."""
    bare = unicodedata.normalize("NFD", name).casefold()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", bare))
