"""What a model takes of pictures and files: too many, too large, and kinds that it refuses."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import World, assistant, calls, result, through, user
from tests.behaviour.kit.anthropic import AnthropicUpstream
from tests.behaviour.kit.inspector import look
from tests.behaviour.kit.seams import run_command

pytestmark = through("library", "rest")
HEAD = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\x80\0\0\x01\xe0\x08\x06\0\0\0"


def picture(number: int = 0, size: int = 1_000) -> dict[str, Any]:
    data = base64.b64encode(HEAD + number.to_bytes(4, "big") * (size // 4)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


PDF = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64," + "JVBERi0x" * 200}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRkFB" * 200, "format": "wav"}}
PARTS = {"image": picture(), "file": PDF, "audio": SOUND}


def seen(*parts: dict[str, Any]) -> dict[str, Any]:
    return user([{"type": "text", "text": "What is it?"}, *parts])


def count(body: Any, word: str = '"image') -> int:
    return json.dumps(body["messages"]).count(word)


def refusing(refuses: Callable[[str], bool], status: int, message: str) -> Callable[[dict[str, Any]], Any]:
    return lambda body: Reply(status=status, error=message) if refuses(json.dumps(body["messages"])) else "Yes."


@pytest.mark.parametrize(
    ("kind", "status", "message"),
    [
        ("image", 404, "No endpoints found that support image input"),
        ("image", 500, "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"),
        ("image", 400, "Failed to deserialize the JSON body: unknown variant `image_url`, expected `text` at line 1"),
        ("image", 400, "Invalid content type. image_url is only supported by certain models."),
        ("image", 400, "At most 0 image(s) may be provided in one request."),
        ("image", 400, "my-model is not a multimodal model"),
        ("image", 422, "Image input modality is not enabled for this model"),
        ("image", 415, "this model does not support images"),
        ("image", 400, "messages[0].content must be a string"),
        ("file", 400, "Unsupported chat content part type: 'file'. Supported types: audio_url, image_url, text. (value=file)"),
        ("file", 400, "Invalid value: 'file'. Supported values are: 'text', 'image_url', 'input_audio', 'refusal'."),
        ("file", 422, "Input tag 'file' found using 'type' does not match any of the expected tags: 'text', 'image_url'"),
        ("audio", 400, "This model does not support audio input"),
    ],
)  # fmt: skip
@through("rest")
async def test_a_kind_that_a_model_refuses_is_described(world: World, kind: str, status: int, message: str) -> None:
    mark = {"image": "image_url", "file": '"file"', "audio": "input_audio"}[kind]
    async with world.gateway(
        refusing(lambda sent: f'"type": {json.dumps(mark.strip(chr(34)))}' in sent, status, message)
    ) as served:
        reply = await served.chat([seen(PARTS[kind])])
        assert reply["status"] == 200
        assert [one["code"] for one in reply["session"]["warnings"]] == ["media_described"]
        assert f"takes no {kind}" in reply["session"]["warnings"][0]["message"]
        reply = await served.chat("And now?")
        assert "warnings" not in reply["session"]
        assert (await served.chat([seen(PARTS[kind])], session_id="other"))["status"] == 200
        assert [bool(one.refused) or count(one.body, mark) > 0 for one in served.upstream.requests] == [True] + [
            False
        ] * 3
        assert f"[{kind}" in served.sent["messages"][0]["content"][1]["text"]
        shown = (await served.rest.session().context())["messages"]
        assert shown[0] == served.upstream.requests[-2].body["messages"][0]
        served.clock.now += 3_601_000
        await served.chat("And later?")
        assert [count(one.body, mark) > 0 for one in served.upstream.requests[-2:]] == [True, False]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "Could not process image"),
        (400, "You uploaded an unsupported image. Please make sure your image has of one the following formats: png"),
        (400, "Invalid base64 image_url"),
        (400, "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes"),
        (400, "Unsupported media type: image/heic"),
        (400, "temperature is not supported with this model"),
        (401, "Your key does not support image input"),
        (503, "image input is not supported at the moment"),
    ],
)
async def test_an_error_about_one_picture_or_something_else_is_not_learned(
    world: World, status: int, message: str
) -> None:
    async with world.gateway([Reply(status=status, error=message), "Yes."]) as served:
        assert (await served.chat([seen(picture(0), picture(1))]))["status"] != 200
        assert (await served.chat([seen(picture())], session_id="other"))["status"] == 200
        assert count(served.sent, "data:image/png") == 1


async def test_the_oldest_pictures_become_a_line_in_steps(world: World) -> None:
    refusal = "Too much media: 0 document pages + 101 images > 100"
    script = refusing(lambda sent: sent.count('"type": "image"') > 100, 400, refusal)
    async with world.gateway(
        None, upstream=AnthropicUpstream(script), llm={"provider": "anthropic", "model": "claude-sonnet-4-5"}
    ) as served:
        session = await served.rest.given(
            "s", *(one for at in range(98) for one in (seen(picture(at)), assistant("Yes.")))
        )
        numbers = []
        for at in range(98, 130):
            assert (await served.chat([seen(picture(at))]))["status"] == 200
            numbers.append(count(served.sent, '"type": "image"'))
        assert numbers == [99, 100, *range(75, 101), *range(75, 79)]
        line = served.sent["messages"][0]["content"][1]["text"]
        assert line.startswith("[image: image/png, 640x480, 1.0 kB, sent 20")
        assert line.endswith(
            " in message 0: left out here, because a prompt has at most 100 images; ask the user to send it again if you need it]"
        )
        shown = (await session.context(dialect="anthropic"))["messages"]
        assert count({"messages": shown}, '"type": "image"') == 78


async def test_pictures_of_the_newest_message_are_never_left_out(world: World) -> None:
    async with world.gateway(["Yes."] * 2, llm={"profile": "mistral"}) as served:
        await served.chat([seen(picture())])
        await served.chat([seen(*map(picture, range(1, 10)))])
        assert (count(served.sent, "data:image"), served.sent["messages"][-1]["content"][-1]) == (9, picture(9))


@pytest.mark.parametrize(("model", "is_limited"), [("anthropic/claude-sonnet-4.5", True), ("meta/llama-4", False)])
async def test_a_claude_model_has_its_limits_at_every_provider(world: World, model: str, is_limited: bool) -> None:
    async with world.gateway(["Yes."] * 2, llm={"model": model, "profile": "openrouter"}) as served:
        await served.rest.given("s", *(one for at in range(99) for one in (seen(picture(at)), assistant("Yes."))))
        for at in (99, 100):
            await served.chat([seen(picture(at))])
        assert (count(served.sent, "data:image") <= 100) is is_limited


async def test_a_number_of_pictures_is_learned(world: World) -> None:
    refusal = "Too many images provided. This model supports up to 5 images"
    async with world.gateway(refusing(lambda sent: sent.count('"image_url"') > 10, 400, refusal)) as served:
        for at in range(14):
            assert (await served.chat([seen(picture(at))]))["status"] == 200
        assert sum(one.body["messages"][-1]["content"][1] == picture(5) for one in served.upstream.requests) == 2
        assert {count(one.body, "data:image") for one in served.upstream.requests[-8:]} == {3, 4, 5}


async def test_a_number_of_bytes_is_learned(world: World) -> None:
    script = refusing(lambda sent: len(sent) > 1_500_000, 413, "Request Entity Too Large")
    async with world.gateway(script) as served:
        for at in range(8):
            assert (await served.chat([seen(picture(at, 300_000))]))["status"] == 200
        assert sum(len(json.dumps(one.body)) > 1_500_000 for one in served.upstream.requests) <= 2


async def test_a_picture_that_is_too_large_is_refused_once(world: World) -> None:
    script = refusing(
        lambda sent: len(sent) > 5_242_880, 400, "image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes"
    )
    async with world.gateway(
        None, upstream=AnthropicUpstream(script), llm={"provider": "anthropic", "model": "claude-sonnet-4-5"}
    ) as served:
        assert (await served.chat([seen(picture(0, 4_500_000))]))["status"] == 400
        assert (await served.chat("And now?"))["status"] == 200
        assert "at most images of 5.2 MB" in json.dumps(served.sent)


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
async def test_a_broken_picture_of_a_tool_is_left_out_alone(world: World, provider: str) -> None:
    """The error names the position that the picture has in the provider's own format."""

    def answer(body: dict[str, Any]) -> Any:
        for at, message in enumerate(body["messages"]):
            for place, part in enumerate(message["content"] if isinstance(message["content"], list) else ()):
                inner = part["content"] if part["type"] == "tool_result" else []
                for path, one in [(f"{place}", part), *((f"{place}.content.{n}", one) for n, one in enumerate(inner))]:
                    if one["type"] in ("image", "image_url") and broken in json.dumps(one):
                        return Reply(status=400, error=f"messages.{at}.content.{path}: Could not process image")
        return "Yes."

    broken = picture(7)["image_url"]["url"].partition("base64,")[2]
    shots = [{"type": "text", "text": "Two shots."}, picture(6), picture(7)]
    upstream = AnthropicUpstream(answer) if provider == "anthropic" else None
    model = "claude-sonnet-4-5" if provider == "anthropic" else "gpt-4o"
    async with world.gateway(
        None if upstream else answer, upstream=upstream, llm={"provider": provider, "model": model}
    ) as served:
        await served.rest.given("s", user("Look."), calls(("c1", "shoot", {})), result("c1", shots), assistant("Done."))
        for _ in range(2):
            assert (await served.chat("And now?"))["status"] == 200
        assert len(served.upstream.requests) == 3
        sent = json.dumps(served.sent)
        assert "Two shots." in sent
        assert picture(6)["image_url"]["url"].partition("base64,")[2] in sent
        assert "[image: image/png, 640x480, 1.0 kB is left out here" in sent
        (entry,) = [one for one in await served.entries("s") if one["role"] == "tool"]
        assert entry["metadata"]["refused_by"]["default"]["parts"] == [2]


@through("rest")
async def test_what_was_learned_is_shown(world: World) -> None:
    refusal = "Invalid value: 'file'. Supported values are: 'text', 'image_url'."
    async with world.gateway(refusing(lambda sent: '"file"' in sent, 400, refusal)) as served:
        await served.chat([seen(PDF, picture())])
        assert count(served.sent, "data:image") == 1
        assert "learned from refusals: takes no file" in (await look(served, "/inspect/agents")).text
        printed = await run_command(["doctor", "--server", served.url])
        assert "default (gpt-4o): profile openai, chosen by profile; learned: takes no file (400" in printed.out
    printed = await run_command(["doctor", "--server", served.url])
    assert (printed.code, "start it, or correct the address" in printed.out) == (1, True)
