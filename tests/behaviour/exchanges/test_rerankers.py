"""Rerankers: what an endpoint is asked, which answers and failures leave the order of hits as it was, and what the log says about them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web

import holdfast
from holdfast.errors import HoldfastError
from holdfast.settings import IndexSettings, RerankSettings
from tests.behaviour.kit import reranker, user
from tests.behaviour.kit.exchanges import Exchange, exchange
from tests.behaviour.kit.seams import settle

KEY: Final = "sk-secret-1234567890"
SAID: Final = ("kelp is green", "kelp soup is the longest answer of all", "kelp grows")


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()} {record.exc_info or ''}".strip())


async def find(x: Exchange, label: str, given: Any, place: str = "http://nowhere", query: str = "kelp") -> None:
    """Search with a reranker; write down the order of the hits, notes, and what is logged."""
    log = Lines()
    logger = logging.getLogger("holdfast.search")
    logger.addHandler(log)
    try:
        async with holdfast.open("sqlite://:memory:", index=IndexSettings(rerank=given)) as hf:
            await (await hf.session("s")).append([user(one) for one in SAID])
            await settle(hf)
            found = await hf.search(query, limit=9)
            rows = [[hit.seq, hit.parts.get("rerank")] for hit in found.hits]
            lines = [one.replace(place.removesuffix("/v2"), "http://reranker") for one in log.lines]
            x.note(label, {"hits": rows, "notes": found.notes, "log": lines})
            assert KEY not in str(lines)
            assert "soup" not in str(lines)
    except HoldfastError as exc:
        x.note(label, f"{exc.code} {getattr(exc, 'param', None)}: {exc}")
    finally:
        logger.removeHandler(log)


def scores(*pairs: Any, name: str = "results") -> web.Response:
    rows = [{"index": at, "relevance_score": one} for at, one in pairs]
    return web.json_response({name: rows} if name else rows)


@exchange()
async def test_answers_of_an_endpoint(x: Exchange) -> None:
    async with reranker() as served:
        url = served.url
        for form, model in (("cohere", "m"), ("voyage", "m"), ("tei", None), ("cohere", None)):
            served.bodies.clear()
            given: Any = {"base_url": url, "model": model, "form": form, "timeout": 30}
            try:
                await find(x, f"{form} {model}", RerankSettings(api_key=KEY, **given), url)
            except HoldfastError as exc:
                x.note(f"{form} {model}", str(exc))
            x.note("asked", served.bodies)
        x.note("key", served.headers[0]["authorization"])
        settings = RerankSettings(base_url=f"{url}/rerank", model="m", api_key=KEY, timeout=30)
        await find(x, "the whole address", settings, url)
        for label, made in (
            ("scores by place", scores((2, 0.1), (0, 0.9), (1, 0.5))), ("in data", scores((0, 1), (1, 2), (2, 3), name="data")), ("a list", scores((0, 3), (1, 2), (2, 1), name="")),
            ("too few", scores((0, 1))), ("twice", scores((0, 1), (0, 2), (1, 3))), ("beyond", scores((0, 1), (1, 2), (3, 3))), ("no score", scores((0, None), (1, 1), (2, 2))),
            ("infinite", web.Response(text='{"results": [{"index": 0, "relevance_score": 1e999}, {"index": 1, "relevance_score": 1}, {"index": 2, "relevance_score": 1}]}')),
            ("no results", web.json_response({"id": 1})), ("no JSON", web.Response(text="<html>soup</html>")),
            ("refused", web.json_response({"error": {"message": f"cannot rank {SAID[1]!r} with {KEY}"}}, status=400)), ("no key", web.json_response({"error": {"message": "no such key"}}, status=401)),
        ):  # fmt: skip
            served.once[:] = [made]
            await find(x, label, settings, url)
        served.once[:] = [
            web.Response(status=503, headers={"retry-after": "0"}),
            web.Response(status=429, headers={"retry-after": "0"}),
        ]
        await find(x, "busy at first", settings, url)
        served.bodies.clear()
        await find(x, "a long question", settings, url, "kelp" + " kelp" * 400)
        x.note("asked", [len(served.bodies[0]["query"]), served.bodies[0]["query"][:8]])


@exchange()
async def test_functions_and_objects(x: Exchange) -> None:
    def by_length(query: str, texts: Sequence[str]) -> list[int]:
        return [len(text) for text in texts]

    async def later(query: str, texts: Sequence[str]) -> list[int]:
        return [-len(text) for text in texts]

    def broken(query: str, texts: Sequence[str]) -> list[int]:
        raise ValueError(f"no {texts}")

    class Own:
        name = "own"

        def rerank(self, query: str, texts: Sequence[str]) -> Any:
            return later(query, texts)

        async def close(self) -> None:
            x.note("closed", True)

    for label, given in (
        ("a function", by_length), ("an async function", later),
        ("an object", Own()), ("broken", broken), ("too few", lambda query, texts: [1.0]), ("a text", lambda query, texts: "abc"), ("words", lambda query, texts: ["a", "b", "c"]),
        ("not a number", lambda query, texts: [float("nan"), 1, 2]), ("None", lambda query, texts: None),
    ):  # fmt: skip
        await find(x, label, RerankSettings(reranker=given, timeout=30))
    await find(x, "late", RerankSettings(reranker=lambda query, texts: time.sleep(0.5), timeout=0.01))
    await find(x, "as it is", by_length)
    for wrong in (3, Own, RerankSettings):
        await find(x, f"wrong {wrong!r:.20}", wrong)
