"""Pictures, recordings and files: stored once, returned as they were sent, and gone with the last message that has them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.behaviour.kit import World, assistant, refused, texts, through, user

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\x80\0\0\x01\xe0\x08\x06\0\0\0"
DATA = base64.b64encode(PNG + bytes(range(256)) * 40).decode()
OTHER = base64.b64encode(PNG + bytes(range(256)) * 41).decode()
OPENAI = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}", "detail": "low"}}
ANTHROPIC = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
PARTS: dict[str, dict[str, Any]] = {
    "image_url": OPENAI,
    "image": ANTHROPIC,
    "input_image": {"type": "input_image", "image_url": f"data:image/png;base64,{DATA}"},
    "input_audio": {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
    "file": {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{DATA}"}},
    "document": {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": DATA}},
    "link": {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    "small": {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
    "unusual base64": {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": DATA[:-2] + "\n" + DATA[-2:]},
    },
    "unknown": {"type": "hologram", "hologram": {"data": DATA}},
}


def seen(*parts: dict[str, Any]) -> dict[str, Any]:
    return user([{"type": "text", "text": "What is on it?"}, *parts])


@pytest.mark.parametrize("kind", PARTS)
async def test_a_medium_comes_back_as_it_was_sent(world: World, kind: str) -> None:
    async with world.open() as hf:
        session = await hf.given("s", seen(PARTS[kind]), assistant("A kelp."))
        assert (await session.messages())[0]["content"] == seen(PARTS[kind])["content"]
        await hf.import_session({**await session.export(), "id": "copy"})
        fork = await session.fork(id="f")
        for one in (hf.session("copy"), fork):
            assert (await one.messages())[0]["content"] == seen(PARTS[kind])["content"]


async def test_a_medium_is_stored_once_and_listed_in_exports(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", seen(OPENAI), seen(ANTHROPIC), seen(OPENAI, OPENAI))
        exported = await session.export()
        assert len(exported["images"]) == 4
        assert len({image["sha256"] for image in exported["images"]}) == 1
        first = exported["images"][0]
        assert (first["seq"], first["part"], first["mime_type"], first["size"]) == (0, 1, "image/png", [640, 480])
        assert first["bytes"] == len(base64.b64decode(DATA))


@through("library", "connect", "rest")
async def test_media_are_gone_with_their_last_message(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", seen(OPENAI), seen(OPENAI), assistant("Kelp.", origin={"raw": OPENAI}))
        for seq in range(3):
            assert DATA in str(await session.export(retired=True))
            await session.erase(seq)
        assert DATA not in str(await session.export(retired=True))


@through("library", "connect", "rest")
async def test_the_same_picture_in_another_form_is_the_same_message(world: World) -> None:
    """Another picture is another message. A picture that is left out stays."""
    async with world.open() as hf:
        session = await hf.given("s", seen(OPENAI), assistant("Kelp."))
        await session.turn(seen(ANTHROPIC), assistant("Kelp."), user("And now?"), reply="Moss.")
        await session.turn(
            user("What is on it?"), assistant("Kelp."), user("And now?"), assistant("Moss."), user("Why?")
        )
        assert [one["seq"] for one in await session.messages()] == [0, 1, 2, 3, 4]
        other = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{OTHER}"}}
        await session.turn(seen(other), assistant("Kelp."), user("Hm?"))
        assert texts(await session.messages())[1:] == ["Kelp.", "Hm?"]
        assert (await session.messages())[0]["seq"] > 4


@through("library", "connect", "rest")
async def test_media_in_an_origin_come_back_and_are_never_sent(world: World) -> None:
    origin = {
        "openai": OPENAI,
        "gemini": [{"inline_data": {"mime_type": "image/png", "data": OTHER}}],
        "text": "data " * 999,
    }
    async with world.open() as hf:
        session = await hf.given("s", user("Look.", origin=origin), {"role": "note", "origin": origin})
        fork = await session.fork(id="f")
        for one in (session, fork):
            assert [entry["origin"] for entry in await one.messages()] == [origin, origin]
        assert DATA not in str(await session.context())
        assert (await session.info())["bytes"] < len(DATA)
        for seq in (0, 1):
            await session.erase(seq)
        for one in (session, fork):
            assert DATA not in str(await one.export(retired=True))


@through("library", "connect", "rest")
async def test_a_model_without_eyes_gets_a_description(world: World) -> None:
    async with world.open(script=["Kelp."]) as hf:
        session = await hf.given("s")
        await session.send(seen(ANTHROPIC))
        assert hf.upstream.requests[0].body["messages"][0]["content"][1]["type"] == "image_url"
        assert (await session.messages())[0]["content"] == seen(ANTHROPIC)["content"]


@through("connect", "rest")
@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64," + "!" * 2000}}, "invalid_message"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 28_000_000}}, "too_large"),
        (
            {
                "type": "image_url",
                "image_url": {
                    "url": "data:image/png;base64,"
                    + base64.b64encode(PNG[:16] + b"\0\1\0\0" * 2 + PNG[24:] + bytes(2000)).decode()
                },
            },
            "too_large",
        ),
    ],
    ids=["no base64", "bytes", "pixels"],
)
async def test_a_medium_that_is_invalid_or_too_large_is_named(world: World, part: dict[str, Any], code: str) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        with refused(code, "messages[0].content[1]"):
            await session.append(seen(part))
        assert await session.messages() == []


def little(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little")


def big(number: int, size: int = 2) -> bytes:
    return number.to_bytes(size, "big")


SEGMENT = b"\xff\xe0" + big(18) + bytes(16)
FRAME = b"\xff\xc2" + big(17) + b"\x08" + big(480) + big(640)
IMAGES: dict[str, bytes] = {
    "png": PNG,
    "gif": b"GIF89a" + little(640, 2) + little(480, 2),
    "jpeg": b"\xff\xd8" + SEGMENT + b"\xff\xff\x01" + b"\xff\xd0" + SEGMENT + FRAME,
    "webp": b"RIFF" + bytes(4) + b"WEBPVP8X" + bytes(8) + little(639, 3) + little(479, 3),
    "lossless webp": b"RIFF" + bytes(4) + b"WEBPVP8L" + bytes(4) + b"\x2f" + little(639 | 479 << 14, 4),
    "lossy webp": b"RIFF" + bytes(4) + b"WEBPVP8 " + bytes(7) + b"\x9d\x01\x2a" + little(640, 2) + little(480, 2),
    "bmp": b"BM" + bytes(12) + little(40, 4) + little(640, 4) + little(2**32 - 480, 4),
    "bmp of os/2": b"BM" + bytes(12) + little(12, 4) + little(640, 2) + little(480, 2),
}
"""Images of 640 x 480 pixels, as far as their headers go."""
UNKNOWN: dict[str, bytes] = {
    "unknown": b"not an image",
    "jpeg without a frame": b"\xff\xd8" + SEGMENT,
    "broken jpeg": b"\xff\xd8\xff\xe0" + big(4) + bytes(4),
    "other webp": b"RIFF" + bytes(4) + b"WEBPXXXX",
}


@pytest.mark.parametrize("kind", [*IMAGES, *UNKNOWN])
async def test_the_size_of_an_image_is_read_from_its_header(world: World, kind: str) -> None:
    data = base64.b64encode((IMAGES | UNKNOWN)[kind] + bytes(2000)).decode()
    async with world.open() as hf:
        session = await hf.given("s", seen({"type": "image_url", "image_url": {"url": f"data:image/x;base64,{data}"}}))
        (image,) = (await session.export())["images"]
        assert image.get("size") == ([640, 480] if kind in IMAGES else None)


@through("library", "connect", "rest")
@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4.1-mini", "claude-sonnet-4-5", "gemini-2.5-pro"])
async def test_an_image_costs_the_tokens_that_its_model_counts(world: World, model: str) -> None:
    """A larger one costs more."""
    async with world.open() as hf:
        found = []
        for name, width, height in (("a", 64, 64), ("b", 640, 480), ("c", 4000, 3000)):
            png = PNG[:16] + big(width, 4) + big(height, 4) + PNG[24:] + bytes(2000)
            url = "data:image/png;base64," + base64.b64encode(png).decode()
            session = await hf.given(name, seen({"type": "image_url", "image_url": {"url": url}}))
            found.append((await session.context(model=model))["conversation_tokens"])
        assert found == sorted(found)
        assert found[0] < found[2]
