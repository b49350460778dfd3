"""Embedders: what an endpoint is sent of many and of long texts, what a caller learns about failures, and what is kept in memory."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from aiohttp import web

from holdfast.errors import EmbeddingFailed, HoldfastError
from holdfast.settings import EmbedderSettings, GivenEmbedder, embedder_of
from tests.behaviour.kit.exchanges import Exchange, exchange
from tests.behaviour.kit.receivers import Embedder, embedder

KEY: Final = "sk-test-0123456789abcdef"
Refuse = Callable[[dict[str, Any]], web.Response | None]


def no(status: int, message: str = "no", *, headers: dict[str, str] | None = None, **fields: Any) -> web.Response:
    return web.json_response({"error": {"message": message, **fields}}, status=status, headers=headers)


def answer(*rows: Any) -> web.Response:
    return web.json_response({"data": [{"index": at, "embedding": one} for at, one in rows]})


def show(text: str) -> Any:
    return text if len(text) < 24 else [text[:8], len(text)]


def vector(made: bytes) -> str:
    """Name the numbers that are far from zero."""
    found = {at: round(one, 2) for at, one in enumerate(memoryview(made).cast("f")) if one > 0.1}
    return "plain" if len(found) == len(made) // 4 else str(found)


async def ask(x: Exchange, label: str, served: Embedder, model: Any, texts: Any, how: str = "embed") -> None:
    """Write down what the endpoint got, and what came back."""
    served.bodies.clear()
    try:
        made = await getattr(model, how)(texts)
        got: Any = [vector(one) for one in made] if len(made) < 9 else len(made)
    except EmbeddingFailed as exc:
        told = "".join(traceback.format_exception(exc))
        assert not [one for one in (KEY, "diagnosis") if one in told]
        known = sorted(exc.vectors) if len(exc.vectors) < 9 else len(exc.vectors)
        words = str(exc).replace(served.url.removesuffix("/v1"), "http://embedder")
        got = {"error": words, "again": exc.again, "after": exc.retry_after, "refused": exc.refused, "made": known}
    except HoldfastError as exc:
        got = f"{exc.code}: {exc}"
    sent = sorted((body["input"] for body in served.bodies), key=lambda one: (-len(one), one))
    x.note(label, {"sent": [[show(text) for text in one] if len(one) < 9 else len(one) for one in sent], "got": got})


def limit(number: int, *, told: bool = True) -> Refuse:
    """Refuse texts of more characters than `number`; say how many they have and may have, or not."""

    def refuse(body: dict[str, Any]) -> web.Response | None:
        longest = max(map(len, body["input"]))
        words = f"This model's maximum context length is {number} tokens"
        words += f", however you requested {longest} tokens ({longest} in your prompt)" * told
        return no(400, words, code="context_length_exceeded") if longest > number else None

    return refuse


def bad(status: int = 400, message: str = "no", word: str = "BAD") -> Refuse:
    return lambda body: no(status, message) if any(word in one for one in body["input"]) else None


@exchange()
async def test_what_an_endpoint_is_sent(x: Exchange) -> None:
    async with embedder(boat=0, car=1) as served:
        own: dict[str, Any] = {"base_url": served.url, "api_key": KEY, "model": "m"}
        model = embedder_of(EmbedderSettings(**own, headers={"X-Team": "a"}))
        await ask(x, "order", served, model, ["boat", "car", "boat", "car and boat"])
        x.note("headers", {name: served.headers[0].get(name) for name in ("authorization", "x-team")})
        x.note("body", {**served.bodies[0], "input": 0})
        await ask(x, "cached", served, model, ["car", "bus"])
        await ask(x, "many", served, model, [f"text {at}" for at in range(150)])
        await ask(x, "long", served, model, ["word " * 9_000, "word " * 200_000, "ü " * 6_000])
        await ask(x, "just not too long", served, model, ["a" * 8_000])
        await ask(x, "large", served, model, [f"{at} " + "reef " * 7_000 for at in range(20)])
        await ask(x, "nothing", served, model, [])
        for wrong in (["a", " "], ["a", 1], "a", ["\ud800"]):
            await ask(x, f"wrong {wrong!r}", served, model, wrong)
        for number, told in ((512, True), (512, False), (40, False), (1, True)):
            served.refuse = limit(number, told=told)
            await ask(
                x, f"limit {number} {told}", served, model, [f"{told}" + "x" * 1_000 + f"{number}", f"short {told}"]
            )
        served.refuse = lambda body: None
        prefixed = embedder_of(EmbedderSettings(**own, query_prefix="q: "))
        await ask(x, "text", served, prefixed, ["boat"])
        await ask(x, "question", served, prefixed, ["boat"], "embed_queries")
        await ask(x, "question again", served, prefixed, ["boat"], "embed_queries")
        await ask(x, "question without a prefix", served, model, ["boat"], "embed_queries")
        for one in (model, prefixed):
            await one.close()
        await ask(x, "closed", served, model, ["boat"])


@exchange()
async def test_what_a_caller_learns_about_failures(x: Exchange) -> None:
    async with embedder(boat=0, car=1) as served:
        model = embedder_of(EmbedderSettings(base_url=served.url, api_key=KEY, model="m", dimension=8))
        secret = "my diagnosis is nobody's business"
        served.refuse = lambda body: no(400)
        await ask(x, "not one text is accepted", served, model, ["boat", "bus"])
        served.refuse = bad()
        await ask(x, "only bad ones", served, model, ["BAD", "BADE"])
        await ask(x, "some bad ones", served, model, ["boat", "BAD", "car", "BAD", *"abcdefg", "BADE", "h"])
        await ask(x, "the others are cached", served, model, ["car", "boat", "h"])
        await ask(x, "some are cached", served, model, ["car", "BAD", "new", "BAD", "boat"])
        await ask(x, "many, and two bad ones", served, model, [f"{'BAD' * (at in {3, 66})} {at}" for at in range(70)])
        served.refuse = lambda body: no(503 if body["input"] == ["hello"] else 400, headers={"retry-after": "0"})
        await ask(x, "down for a plain text", served, model, ["tree"])
        for status in (400, 413, 422, 404, 401, 429, 500):
            served.refuse = lambda body, status=status: (  # type: ignore[misc]  # bound early
                None
                if "hello" in body["input"]
                else no(status, f"not {body['input'][0]}", headers={"retry-after": "0"})
            )
            await ask(x, f"status {status}", served, model, [secret])
        for label, made in (
            ("another dimension", answer((0, [1.0] * 7), (1, [1.0] * 8))), ("no second vector", answer((0, [1.0] * 8))), ("twice", answer((1, [1.0] * 8), (1, [1.0] * 8))),
            ("zeros", answer((0, [0.0] * 8), (1, [1.0] * 8))), ("no index", answer((None, [1.0] * 8), (None, [0.0] * 7 + [1.0]))), ("no JSON", web.Response(text='{"embedding"')),
        ):  # fmt: skip
            served.refuse = lambda body, made=made: made  # type: ignore[misc]  # bound early
            await ask(x, label, served, model, [f"{label} 1", f"{label} 2"])
        await model.close()


@exchange()
async def test_vectors_of_a_function_are_kept_up_to_a_size(x: Exchange) -> None:
    """There is room for 511 of this size. What was not used for longest goes first."""
    asked: list[str] = []

    def embed(texts: Sequence[str]) -> list[list[float]]:
        asked.extend(text[0] for text in texts)
        return [[1.0] * 8192] * len(texts)

    model = embedder_of(GivenEmbedder(embed, name="large"))
    for names in ("abcde", "a", "f", "a", "c", "b", "abcdef", "ef"):
        asked.clear()
        await model.embed([f"{name}{at}" for name in names for at in range(100)])
        x.note(names, Counter(asked))
