"""Media: pictures, recordings and files in messages."""

from __future__ import annotations

import base64
import json
from typing import Any

from holdfast.testing import ScriptedUpstream
from tests.behaviour.kit import World, assistant, gateway, refused, through, user

HERE = ("library", "connect", "rest")


def png(width: int = 640, height: int = 480, size: int = 3000, seed: int = 0) -> str:
    """Return base64 of bytes that begin like a PNG of this size."""
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return base64.b64encode(head + bytes((at * 7 + seed) % 251 for at in range(size))).decode()


def see(data: str, text: str = "See.") -> dict[str, Any]:
    url = {"url": f"data:image/png;base64,{data}"}
    return user([{"type": "text", "text": text}, {"type": "image_url", "image_url": url}])


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
async def test_too_many_media_are_refused(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("One."))
        with refused("too_large", "100"):
            await session.append(*[see(png(seed=number)) for number in range(101)])


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
