"""How many media a model takes, by its provider, and what refusals say about it. This module does no I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from holdfast.domain.medium import KINDS, Kind

MEGABYTE: Final = 1024 * 1024


class MediaLimits(msgspec.Struct, frozen=True):
    """The media that one prompt may have. None: there is no limit that is known."""

    inputs: Collection[str] | None = None
    """Accepted kinds, as in `Llm.inputs`. None: all."""
    max_images: int | None = None
    max_image_bytes: int | None = None
    """Bytes of one image as it is sent, in base64."""
    max_media_bytes: int | None = None
    """Bytes of all media together as they are sent, in base64."""


# The limits of a request include its text, so media get seven eighths of them.
_ANTHROPIC: Final = MediaLimits(None, 100, 5 * MEGABYTE, 28 * MEGABYTE)  # docs.claude.com, "Vision": 32 MB a request
_BY_ORIGIN: Final = {
    # platform.openai.com, "Images and vision": 500 images and 50 MB a request
    "https://api.openai.com": MediaLimits(None, 500, None, 43 * MEGABYTE),
    # ai.google.dev, "Image understanding": 3,600 images; 20 MB of inline data
    "https://generativelanguage.googleapis.com": MediaLimits(None, 3_600, None, 17 * MEGABYTE),
}


def find_limits(
    dialect: str, model: str, origin: str | None, inputs: Collection[str] | None, learned: Mapping[str, int]
) -> MediaLimits:
    """Return the limits of a model.

    Args:
        dialect: the API that the model is called with.
        model: name of the model at its provider. Claude has the same limits at all providers.
        origin: scheme and host of the provider.
        inputs: the kinds of media in the configuration; None: all.
        learned: what refusals have shown, from `read_refusal`.
    """
    base = _ANTHROPIC if dialect == "anthropic" or "claude" in model.lower() else MediaLimits()
    known = _BY_ORIGIN.get(origin or "", base)
    refused = learned.keys() & set(KINDS.values())
    return MediaLimits(
        inputs if not refused else frozenset(KINDS.values() if inputs is None else inputs) - refused,
        learned.get("max_images", known.max_images),
        known.max_image_bytes,
        learned.get("max_media_bytes", known.max_media_bytes),
    )


_NAMES: Final[Mapping[Kind, str]] = {
    "image": r"images?\b|image_url|pictures?\b|vision|multi-?modal|mmproj",
    "audio": r"audio",
    "video": r"video",
    "file": r"files?\b|documents?\b|pdf",
}
"""Words for each kind of media in errors."""
_NOT_TAKEN: Final = re.compile(
    r"(?:not|n't|un)[ -]?(?:yet )?(?:support|accept|enabled|allow|available|recogni[sz]ed|(?:be )?process|multi-?modal|a multi)"
    r"|no endpoints found that support|unknown variant|invalid (?:value|content type|part type)|only supported by certain"
    r"|only (?:supports?|accepts?|takes?) text|text[- ]only|does not match any of|missing data required|at most 0 "
    r"|can ?not (?:read|handle|see)|unexpected (?:content|part|type)|must be a string|valid string",
    re.IGNORECASE,
)
_OTHERS: Final = re.compile(
    r"\b(?:supported|allowed|accepted|valid|permitted) (?:content |part |input )*(?:types|values|modalities|tags|inputs)\b.*|\bexpected\b.*",
    re.IGNORECASE | re.DOTALL,
)
"""The list of what is accepted instead, which names the other kinds."""
_ONE: Final = re.compile(
    r"format|base ?64|decod|corrupt|dimension|pixel|resolution|download|fetch|\burls?\b|media.?type|mime|too (?:large|big|small)"
    r"|exceeds|maximum|at most [1-9]|up to \d|too (?:many|much)|(?:in|not a )valid (?:image|file|audio|video)|could not process",
    re.IGNORECASE,
)
"""Signs of an error about one medium, or about too many of them."""
_STRINGS: Final = re.compile(
    r"content\W.{0,40}(?:must be a string|valid string)|(?:must be a string|valid string).{0,40}content\b",
    re.IGNORECASE,
)
_MANY: Final = re.compile(
    r"too (?:many|much)|at most|up to|maximum|exceed|limit|only \d+|> ?\d|may be provided|supports? \d", re.IGNORECASE
)
_SIZE: Final = re.compile(r"\b(?:bytes|[km]b|pixels?|dimensions?|sizes?|tokens?|urls?|format)\b", re.IGNORECASE)
_PAGES: Final = re.compile(r"(\d+) document pages? \+ \d+ images? > (\d+)")
_LARGE: Final = re.compile(r"(?:request|payload|body|entity|content).{0,20}too large|request_too_large", re.IGNORECASE)


def read_refusal(words: str, status: int | None, sent: Mapping[str, int]) -> dict[str, int]:
    """Return what an error says about the media of a request; an empty dictionary if it says nothing about them.

    Args:
        words: the text of the error, with its code and type.
        status: HTTP status; None if the error came in a stream.
        sent: number of the media in the request by kind, and their `bytes` in base64.

    Returns:
        0 for each kind that the model does not take, `max_images`, and `max_media_bytes`.
    """
    if status is not None and status not in {400, 404, 413, 415, 422, 500, 501}:
        return {}
    kinds = [kind for kind in _NAMES if sent.get(kind)]
    named = _OTHERS.sub("", words)
    if _NOT_TAKEN.search(named) and not _ONE.search(named):
        refused = [kind for kind in kinds if re.search(_NAMES[kind], named, re.IGNORECASE)]
        return dict.fromkeys(refused or (kinds if _STRINGS.search(named) else ()), 0)
    images = sent.get("image", 0)
    is_count = re.search(_NAMES["image"], words, re.IGNORECASE) and _MANY.search(words) and not _SIZE.search(words)
    if images > 1 and is_count:
        if pages := _PAGES.search(words):
            return {"max_images": max(1, int(pages[2]) - int(pages[1]))}
        numbers = [int(number) for number in re.findall(r"(?<![\w.])\d{1,4}\b", words) if 0 < int(number) < images]
        if numbers or re.search(r"too many", words, re.IGNORECASE):
            return {"max_images": max(numbers, default=images * 3 // 4)}
    if sent.get("bytes", 0) > MEGABYTE and (status == 413 or _LARGE.search(words)) and "token" not in words:
        return {"max_media_bytes": sent["bytes"] * 3 // 4}
    return {}
