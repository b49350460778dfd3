"""Taking media out of messages and restoring them byte for byte, and messages without their data."""

from __future__ import annotations

import base64
import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.domain.media.checks import check_media
from holdfast.domain.media.parts import list_hashes, mark_part, restore_data, take_out_data
from holdfast.domain.media.placeholders import restore_media
from holdfast.domain.messages import (
    Message,
    decode_payload,
    encode_canonical,
    encode_payload,
)
from holdfast.errors import InvalidRequest
from holdfast.tokens import STORED, get_counter
from holdfast.wire.openai import parse_message, to_chat_message
from tests.unit.media_kit import anthropic, b64, image_url, png

MODELS = ("gpt-4o", "gpt-5-mini", "claude-3-5-sonnet", "gemini-2.0-flash", "somebody-elses")


def make_message(*parts: dict[str, Any], role: str = "user") -> Message:
    return parse_message({"role": role, "content": [{"type": "text", "text": "see"}, *parts]})


def take_out(message: Message) -> tuple[Message, dict[bytes, bytes]]:
    contents: dict[bytes, bytes] = {}
    (told,) = take_out_data([message], contents)
    return told, contents


# -- out is in ---------------------------------------------------------------

contents = st.binary(max_size=40).map(lambda some: some * 60) | st.binary(min_size=760, max_size=2000) | st.just(png())
wrapped = st.sampled_from(["\n", "\r\n", " "])


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Draw base64 data as clients write it, valid or not, and text that only looks like it."""
    content = draw(contents)
    text = b64(content)
    match draw(st.integers(0, 6)):
        case 1:
            text = draw(wrapped).join(text[at : at + 76] for at in range(0, len(text), 76))
        case 2:
            text = text.rstrip("=")
        case 3:
            text = base64.urlsafe_b64encode(content).decode()
        case 4:  # unused bits after the end
            text = text[:-2] + "/" + "=" if text.endswith("=") and text[-2] != "=" else text + "!"
        case 5:
            text = draw(st.text(max_size=5)) + text + draw(st.text(max_size=5))
        case 6:
            text = draw(st.text(max_size=10)) * 200
    heads = [
        "",
        "",
        "data:image/png;base64,",
        "data:;base64,",
        "DATA:image/png;x=y;base64,",
        "data:text/plain,",
        "data:",
    ]
    return draw(st.sampled_from(heads)) + text


kinds = st.sampled_from(
    [
        "image_url",
        "image",
        "input_image",
        "input_audio",
        "audio",
        "video",
        "video_url",
        "file",
        "input_file",
        "document",
    ]
) | st.sampled_from(["thinking", "tool_result", "x"])
keys = st.sampled_from(
    ["url", "data", "image_url", "file", "file_data", "source", "frames", "type", "media_type", "video", "k"]
)
values = st.recursive(
    texts()
    | st.none()
    | st.integers(-5, 5)
    | st.sampled_from(["base64", "text", "url", "image/png", "https://x.io/a.png"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=6,
)
shaped = st.one_of(
    st.builds(lambda text: {"type": "image_url", "image_url": {"url": text, "detail": "low"}}, texts()),
    st.builds(lambda text: {"type": "input_image", "image_url": text}, texts()),
    st.builds(
        lambda text: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": text}}, texts()
    ),
    st.builds(
        lambda text: {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}}, texts()
    ),
    st.builds(lambda text: {"type": "input_audio", "input_audio": {"data": text, "format": "wav"}}, texts()),
    st.builds(lambda text: {"type": "file", "file": {"filename": "a.pdf", "file_data": text}}, texts()),
    st.builds(lambda items: {"type": "video", "fps": 1.0, "frames": items}, st.lists(texts(), max_size=3)),
)
free = st.builds(lambda kind, fields: {**fields, "type": kind}, kinds, st.dictionaries(keys, values, max_size=4))


@given(st.lists(shaped | free, max_size=4))
@example([image_url(png(), detail="high"), image_url(png())])
def test_extracted_media_can_be_restored(parts: list[dict[str, Any]]) -> None:
    """Bytes, digest and token counts are the same with and without the data."""
    message = make_message(*parts)
    told, kept = take_out(message)
    back = restore_data(told, kept)
    assert back == message
    assert json.dumps(to_chat_message(back)) == json.dumps(to_chat_message(message))
    assert decode_payload(encode_payload(told)) == told
    assert set(list_hashes([told])) == set(kept)
    assert encode_canonical(told) == encode_canonical(message)
    assert take_out_data([told], {}) == (told,)
    for model in MODELS:
        assert get_counter(model).message(told) == get_counter(model).message(message)
    assert STORED.message(told) == STORED.message(message)


@given(st.lists(shaped | free, max_size=4))
def test_plain_text_stays_in_the_message_until_the_secret_scan(parts: list[dict[str, Any]]) -> None:
    """Before the scan no text is taken out; the second pass takes out the rest."""
    message = make_message(*parts)
    first: dict[bytes, bytes] = {}
    (early,) = take_out_data([message], first, plain=False)
    assert not any(one.text for part in early.media for one in part.held)
    assert restore_data(early, first) == message
    assert encode_canonical(early) == encode_canonical(message)
    (late,) = take_out_data([early], first)
    assert late == take_out(message)[0]
    assert restore_data(late, first) == message


def test_clients_cannot_forge_a_reference() -> None:
    """A field `held`, a mark or the stored form in a request is plain client data."""
    told, kept = take_out(make_message(image_url(png())))
    stored = json.loads(encode_payload(told))["content"][1]
    for part in (stored, {**image_url(b""), "held": stored["held"]}, {"type": "image_url", **mark_part(told.media[0])}):
        message = make_message(part)
        assert not any(one.held for one in message.media)
        assert restore_data(take_out(message)[0], kept) == message


# -- digests ------------------------------------------------------------


@given(contents.filter(bool), contents.filter(bool))
def test_media_digests_depend_on_content_and_kind(content: bytes, other: bytes) -> None:
    """The part type and base64 alphabet do not matter; other data or another kind give another digest."""
    lines = "\n".join(b64(content)[at : at + 60] for at in range(0, len(b64(content)), 60))
    same = [
        image_url(content, detail="low"),
        anthropic(content, cache_control={"type": "ephemeral"}),
        {"type": "input_image", "image_url": f"data:image/webp;base64,{b64(content)}"},
        {"type": "image_url", "image_url": {"url": f"data:;base64,{base64.urlsafe_b64encode(content).decode()}"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": lines}},
    ]
    digests = {
        encode_canonical(each) for part in same for each in (make_message(part), take_out(make_message(part))[0])
    }
    assert len(digests) == 1
    assert encode_canonical(make_message(anthropic(content, "document", "application/pdf"))) not in digests
    assert (encode_canonical(make_message(image_url(other))) in digests) == (other == content)


# -- limits ------------------------------------------------------------------

MOST = 3000
"""Bytes that a medium may have."""


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | texts() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | kinds, inner, max_size=4),
    max_leaves=8,
)


@given(json_values, json_values, st.lists(shaped | free | json_values, max_size=3))
def test_any_body_is_accepted_or_rejected_with_a_position(messages: Any, images: Any, parts: list[Any]) -> None:
    said_by_client = [{"role": "user", "content": parts}]
    for body in ({"messages": messages, "images": images}, {"messages": said_by_client, "videos": images}):
        assert find_rejected_field(body) != ""


def find_rejected_field(body: dict[str, Any]) -> str | None:
    """Return the rejected field, or None if the body is accepted."""
    try:
        check_media(body, MOST)
        restore_media(body)
    except InvalidRequest as error:
        return error.param or ""
    return None
