"""Learn from refusals of upstreams which part of a request they name, and which rule of a profile was wrong. This module does no I/O.

Nothing is guessed from English wording, which no provider documents. Only names of what was sent, JSON paths, types, codes and numbers count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.domain.medium import KINDS, Kind
from holdfast.domain.messages import Message
from holdfast.domain.profiles import KINDS_TAKEN, MEGABYTE, Profile
from holdfast.errors import ModelError

STATUSES: Final = frozenset({400, 404, 413, 415, 422, 500, 501})
"""HTTP statuses of refusals that may be about the form of a request. llama.cpp answers 500."""
_SCANNED_CHARS: Final = 4_000
"""Number of characters of an error that are read."""
_WORD: Final = re.compile(r"[A-Za-z0-9_-]+")
_CODE: Final = re.compile(r"[a-z0-9_.-]{3,60}", re.IGNORECASE)
_PATH: Final = re.compile(
    r"\b(?:messages|input|contents)((?:\.?\[\d{1,6}\]|\.\d{1,6}\b)(?:\.?\[\w+\]|\.\w+)*)"
    r"|['\"](?:messages|input|contents)\\?['\"]((?:, ?(?:\d{1,6}|\\?['\"][^'\"\\]{0,80}\\?['\"]))+)"
)
"""Positions in a request: `messages[3].content[1]` and `messages.[3].content.[1]` (OpenAI), `messages.3.content.1` (Anthropic), and
lists, such as `['body', 'messages', 3, 'content']` (Pydantic, so vLLM and Mistral)."""
_CALLS: Final[Mapping[str, Literal["single", "none"]]] = {
    "only supports single tool-calls": "single",  # templates of Llama 3
    "roles must alternate": "none",  # templates without tools, such as those of Gemma 2
}
"""Errors of chat templates, which are a part of the model: how many calls a reply may have."""
_STEP: Final = re.compile(r"[a-zA-Z_]+|\d+")


def read_words(error: ModelError) -> str:
    """Return the beginning of an upstream's error object as text. Errors without one have the upstream's words after a colon."""
    words = msgspec.json.encode(error.body).decode() if error.body else str(error).partition(": ")[2]
    return words[:_SCANNED_CHARS]


def read_reason(error: ModelError) -> str:
    """Return the status and the code of an error.

    The upstream's own message is not used, because it may quote the conversation or contain the upstream's address.
    """
    labels = [error.body.get(key) for key in ("code", "type")] if error.body else []
    code = next((label for label in labels if isinstance(label, str) and _CODE.fullmatch(label)), None)
    return f"{error.status} {code}" if code else f"{error.status}"


def find_place(words: str) -> tuple[int, ...]:
    """Return the position that an error names: the index of a message, then of its part, then of a part in that; empty if it names none.

    Of several positions in the first message, the most exact one counts. A call of a tool is no part.
    """
    places = [place for place, _ in _iter_places(words)]
    return max((place for place in places if place[0] == places[0][0]), key=len, default=())


def _iter_places(words: str) -> Iterator[tuple[tuple[int, ...], list[str]]]:
    for found in _PATH.finditer(words):
        steps = _STEP.findall(found[1] or found[2])
        if steps[0].isdigit():
            numbers = tuple(int(step) for step in steps if step.isdigit())
            yield numbers[:1] if {"tool_calls", "function_call"} & {*steps} else numbers, steps


def learn_rule(profile: Profile, sent: Sequence[Message], error: ModelError) -> Profile | None:
    """Return the profile without a field or role of messages, several calls or long ids, or with a field that replies with calls lacked.

    Args:
        profile: The profile with which the request was made.
        sent: The messages as they were sent.
        error: The refusal.

    Returns:
        The profile. None if the refusal names nothing of the kind that was sent.
    """
    if not _is_about_form(error):
        return None
    words = read_words(error)
    named = set(_WORD.findall(words))
    used = {name for message in sent for name in message.extra} | {"name" for message in sent if message.name}
    calls = [call for message in sent for call in message.tool_calls]
    most = next((most for text, most in _CALLS.items() if text in words), profile.calls)
    known = profile.required | profile.refused  # what was refused once is never tried again, so learning ends
    changes: dict[str, Any] = {}
    if refused := used & named:
        required, names = profile.required - refused, profile.names and "name" not in refused
        changes = {"refused": profile.refused | refused, "required": required, "names": names}
    elif "developer" in named and any(message.role == "developer" for message in sent):
        changes = {"developer": False}
    elif profile.template and profile.system and {"system", "role"} <= {word.lower() for word in named}:
        changes = {"system": False}
    elif profile.template and calls and most != profile.calls:
        changes = {"calls": most}
    elif not profile.nine and "9" in named and named & {call.id for call in calls}:
        changes = {"nine": True}
    elif wanted := ({"reasoning_content", "thought_signature"} & named) - known if calls else None:
        fields = profile.fields | wanted | {"extra_content"}
        changes = {"required": profile.required | wanted, "fields": fields}
    return msgspec.structs.replace(profile, **changes) if changes else None


# -- media -----------------------------------------------------------------------

_NAMES: Final = {kind: f"(?:{'|'.join(name for name in KINDS if KINDS[name] == kind)})s?" for kind in KINDS_TAKEN}
_NAMED: Final = {
    kind: re.compile(rf"\b0 {names}\b|['\"`]{names}\\?['\"`]|\b{names} inputs?\b|\b(?=\w+_){names}\b", re.IGNORECASE)
    for kind, names in _NAMES.items()
}
"""The name as a type of parts, as an input of a model, or with the number 0."""
_OF_MODEL: Final = re.compile(r"\b(?:models?|modalit(?:y|ies))\b", re.IGNORECASE)
_LOOSELY_NAMED: Final = {kind: re.compile(rf"\b{names}\b(?!/)", re.IGNORECASE) for kind, names in _NAMES.items()}
"""The name anywhere, which counts if the error names the model too."""
_VISION: Final = re.compile(r"\b(?:vision|multi-?modal|mmproj)\b", re.IGNORECASE)
_OF_DATA: Final = re.compile(
    r"base-?64|media_type|\b(?:bytes?|[kmg]i?b|px|pixels?|mime|urls?|tokens?|png|jpe?g|gif|webp|heic|wav|mp3|\w+/\w+)\b",
    re.IGNORECASE,
)
"""Names of what is in a medium. An error with one of them is about this medium."""
_TEXT_ONLY: Final = re.compile(r"\bstr(?:ing)?\b", re.IGNORECASE)
_MANY: Final = re.compile(r"\b(?:images|image\(s\)|image=\d+)", re.IGNORECASE)
_SUM: Final = re.compile(r"(\d+)\D{1,30}\+ ?\d+\D{1,30}> ?(\d+)")
"""Anthropic's sum: `20 document pages + 90 images > 100`."""
_NUMBER: Final = re.compile(r"(?<![\w.])\d{1,4}\b")
_LARGE: Final = re.compile(r"\b\w+_too_large\b")


def find_untaken(words: str, kinds: Collection[Kind], *, exactly: bool = False) -> Kind | None:
    """Return the one of some kinds of media that an error names as not taken by the model; None if it names none or one medium.

    Of several kinds, the first one counts: errors list what is accepted afterwards.

    Args:
        words: The error.
        kinds: The kinds.
        exactly: True if words that only often mean a kind do not count.
    """
    words = _PATH.sub("", words)
    if _OF_DATA.search(words):
        return None
    patterns = [_NAMED, _LOOSELY_NAMED] if not exactly and _OF_MODEL.search(words) else [_NAMED]
    for pattern in patterns:
        found = [(match.start(), kind) for kind in kinds if (match := pattern[kind].search(words))]
        if found:
            return min(found)[1]
    is_vision = not exactly and _VISION.search(words)
    return min(kinds, key=lambda kind: kind != "image", default=None) if is_vision else None


def learn_media(profile: Profile, sent: Sequence[Message], error: ModelError) -> Profile | None:
    """Return the profile without a kind of media, or with a smaller number of images or bytes.

    Args:
        profile: The profile with which the request was made.
        sent: The messages as they were sent.
        error: The refusal.

    Returns:
        The profile. None if the refusal is not about the media that were sent.
    """
    words, media = read_words(error), [part for message in sent for part in message.media if part.type in KINDS]
    if not media or not _is_about_form(error):
        return None
    count = Counter(KINDS[part.type] for part in media)
    size = sum(len(msgspec.json.encode({"type": part.type, **part.extra})) for part in media)
    if (most := _find_most(words, count["image"], error.status)) is not None:
        return msgspec.structs.replace(profile, max_images=most)
    untaken = {kind} if (kind := find_untaken(words, count)) else _find_with_text(sent, words)
    if untaken:
        taken = KINDS_TAKEN if profile.inputs is None else profile.inputs
        return msgspec.structs.replace(profile, inputs=taken - untaken)
    if size > MEGABYTE and (error.status == 413 or _LARGE.search(words)) and "token" not in words:
        return msgspec.structs.replace(profile, max_media_bytes=size * 3 // 4)
    return None


def _is_about_form(error: ModelError) -> bool:
    return error.status in {None, *STATUSES} and bool(read_words(error))


def _find_most(words: str, images: int, status: int | None) -> int | None:
    """Return the number of images that an error names as the most, which is smaller than the number of images that were sent."""
    words = _PATH.sub("", words)
    if images < 2 or not _MANY.search(words) or _OF_DATA.search(words):
        return None
    if pages := _SUM.search(words):
        return max(1, int(pages[2]) - int(pages[1]))
    numbers = [int(number) for number in _NUMBER.findall(words.replace("image=", " "))]
    return max((number for number in numbers if 0 < number < images and number != status), default=None)


def _find_with_text(sent: Sequence[Message], words: str) -> set[Kind]:
    """Return the kinds of media in a message whose content must be text, according to a path and a type."""
    place = find_place(words)
    is_content = any("content" in steps for _, steps in _iter_places(words))
    if len(place) != 1 or place[0] >= len(sent) or not (is_content and _TEXT_ONLY.search(words)):
        return set()
    return {KINDS[part.type] for part in sent[place[0]].media if part.type in KINDS}
