"""Media: pictures, recordings and files in messages."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from holdfast.testing import ScriptedUpstream
from tests.behaviour.kit import World, assistant, gateway, refused, texts, through, user

HERE = ("library", "connect", "rest")


def png(width: int = 640, height: int = 480, size: int = 3000, seed: int = 0) -> str:
    """Return base64 of bytes that begin like a PNG of this size."""
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return base64.b64encode(head + bytes((at * 7 + seed) % 251 for at in range(size))).decode()


def see(data: str, text: str = "See.") -> dict[str, Any]:
    url = {"url": f"data:image/png;base64,{data}"}
    return user([{"type": "text", "text": text}, {"type": "image_url", "image_url": url}])


SOUND = user([{"type": "input_audio", "input_audio": {"data": png(seed=3), "format": "wav"}}])
ANTHROPIC = user([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png(seed=4)}}])
FILE = user(
    [{"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{png(seed=5)}"}}]
)


@through(*HERE)
async def test_messages_are_read_back_as_they_were_sent(world: World) -> None:
    sent = [see(png()), SOUND, ANTHROPIC, FILE, see("aGVsbG8=", "Small.")]
    async with world.open() as hf:
        session = await hf.given("s", *sent)
        assert [row["content"] for row in await session.messages()] == [one["content"] for one in sent]
        prompt = json.dumps((await session.context())["messages"])
        assert [png(seed=number) in prompt for number in (0, 3, 4, 5)] == [True] * 4
        exported = await session.export()
        assert [len(exported[name]) for name in ("images", "audios", "files")] == [3, 1, 1]
        first, *_ = exported["images"]
        assert (first["seq"], first["mime_type"], first["size"]) == (0, "image/png", [640, 480])


@through(*HERE)
async def test_a_picture_is_stored_once(world: World) -> None:
    async with world.open(store="file") as hf:
        session = await hf.given("s", *[see(png(size=200_000), f"{number}") for number in range(10)])
        exported = await session.export()
        assert len({one["sha256"] for one in exported["images"]}) == 1
        stored = sum(path.stat().st_size for path in world.folder.glob("chat.db*"))
        assert stored < 1_500_000
        receipt = await session.delete()
        assert (receipt["media"], receipt["media_bytes"]) == (1, 200_024)


@through(*HERE)
async def test_a_picture_goes_with_its_last_message(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", see(png()), see(png()), see(png(seed=1)))
        await session.erase(0)
        assert png() in json.dumps(await session.export(retired=True))
        await session.erase(1)
        assert png() not in json.dumps(await session.export(retired=True))
        assert (await session.delete())["media"] == 1


@through("library", "rest")
async def test_the_model_gets_the_picture_and_a_client_may_leave_it_out(world: World) -> None:
    async with world.open(script=["A cat.", "Yes."]) as hf:
        session = hf.session("s")
        await session.send(see(png(), "What is it?"))
        assert png() in json.dumps(hf.upstream.requests[0].body)
        await session.send(user("What is it?"), assistant("A cat."), user("Sure?"))
        assert len(await session.messages()) == 4
        assert png() in json.dumps(hf.upstream.requests[1].body), "the log keeps it"


async def test_a_model_without_eyes_gets_a_description() -> None:
    async with ScriptedUpstream(["A word."]) as upstream:
        llm = {"model": "m", "base_url": upstream.url, "api_key": "k", "inputs": ["text"]}
        async with gateway(None, f"llms: {json.dumps({'default': llm})}") as served:
            await served.chat([see(png(), "What is it?")])
        (request,) = upstream.requests
    sent = json.dumps(request.body["messages"])
    assert png() not in sent
    assert "[image: image/png, 640x480, 3.0 kB: this model takes no images]" in sent


@through("connect", "rest")
@pytest.mark.parametrize(
    ("part", "code", "words"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,!!!" + "x" * 2000}}, "invalid_message", "base64"),
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png(20_000, 20_000)}"}}, "too_large", "100000000"),
    ],
)  # fmt: skip
async def test_a_wrong_medium_is_refused_with_its_place(world: World, part: Any, code: str, words: str) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("One."))
        with refused(code, "content[0]") as refusal:
            await session.append(user("Two."), user([part]))
        assert words in str(refusal.value)
        assert texts(await session.messages()) == ["One."]


@through("connect", "rest")
async def test_too_many_media_are_refused(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("One."))
        with refused("too_large", "100"):
            await session.append(*[see(png(seed=number)) for number in range(101)])


@through(*HERE)
async def test_a_link_is_passed_on_and_never_fetched(world: World) -> None:
    link = user([{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/cat.png"}}])
    async with world.open() as hf:
        session = await hf.given("s", link)
        assert [row["content"] for row in await session.messages()] == [link["content"]]


@through("library", "rest")
async def test_forks_and_transcripts_have_them_too(world: World) -> None:
    config = f"hooks: {{transcripts_dir: {json.dumps(str(world.folder / 't'))}}}"
    async with world.open(config, store="file") as hf:
        session = await hf.given("s", see(png()), assistant("A cat."))
        fork = await session.fork(id="f")
        await session.delete()
        assert png() in json.dumps(await fork.messages())
        await fork.close()
        await world.native.sweep()
        written = (world.folder / "t/f.jsonl").read_text()
        assert png() not in written
        assert "[image/png, 640x480, 3.0 kB, sha256:" in written
