"""Searches with a reranker: the order of hits and pages, what is sent where, and failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from aiohttp import web

from holdfast.errors import InvalidRequest
from holdfast.indexes.settings import IndexSettings
from holdfast.limits import RERANK_CHARS
from holdfast.rerankers import RerankSettings
from holdfast.search import ranked_search
from holdfast.search.queries import SearchResults
from tests.service.embeddings_stub import numbers
from tests.service.rerank_stub import serving
from tests.service.search_kit import DAY, Talks, open_talks

LINES = [("user", f"kelp {'soup ' * (at % 3)}number {at}") for at in range(12)]


class Recorder:
    """A reranker that records its input."""

    name = "recorder"

    def __init__(self, score: Callable[[str], float] = len) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self.score = score

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        self.calls.append((query, list(texts)))
        return [self.score(text) for text in texts]

    @property
    def texts(self) -> list[str]:
        return [text for _, texts in self.calls for text in texts]


def number(text: str) -> float:
    """Return the last number of a message as its score."""
    return float(text.rsplit(" ", 1)[-1])


def make_settings(reranker: Any) -> IndexSettings:
    return IndexSettings(rerank=RerankSettings(reranker=reranker))


@pytest.fixture
def rerank_few(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that lowers the number of hits that a reranker receives."""
    return lambda most: monkeypatch.setattr(ranked_search, "RERANK_TEXTS", most)


async def pages(at: Talks, query: str, limit: int, **asked: Any) -> list[SearchResults]:
    found = [await at.hf.search(query, "ada", limit=limit, **asked)]
    while found[-1].cursor is not None:
        found.append(await at.hf.search(query, "ada", limit=limit, after=found[-1].cursor, **asked))
        assert len(found) < 60
    return found


async def test_best_hits_are_in_the_order_of_the_reranker_and_the_others_follow(
    rerank_few: Callable[[int], None],
) -> None:
    rerank_few(5)
    recorder = Recorder(number)
    async with open_talks() as at:
        await at.add_messages("a", *LINES)
        plain = await at.find("kelp", limit=100)
    async with open_talks(index=make_settings(recorder)) as at:
        await at.add_messages("a", *LINES)
        results = await at.hf.search("kelp", "ada", limit=100)
        found = [hit.id for hit in results.hits]
        assert found[:5] == sorted(plain[:5], key=lambda id_: -int(id_.partition("#")[2]))
        assert found[5:] == plain[5:]
        assert found != plain
        assert [hit.position for hit in results.hits] == list(range(1, 13))
        assert [hit.parts.get("rerank") for hit in results.hits[:5]] == [float(hit.seq) for hit in results.hits[:5]]
        assert all("rerank" not in hit.parts for hit in results.hits[5:])
        assert results.notes == ()
        ((query, texts),) = recorder.calls
        assert (query, len(texts)) == ("kelp", 5)
        assert await at.find("kelp", limit=100, rerank=False) == plain
        assert len(recorder.calls) == 1


@pytest.mark.parametrize("limit", [1, 2, 5, 7, 100])
@pytest.mark.parametrize("top", [2, 5, 100])
async def test_pages_together_equal_one_long_page(limit: int, top: int, rerank_few: Callable[[int], None]) -> None:
    """Nothing twice, nothing missing, same scores; only the first page calls the reranker."""
    rerank_few(top)
    recorder = Recorder(number)
    async with open_talks(index=make_settings(recorder)) as at:
        for name in "ab":
            await at.add_messages(name, *LINES[:6])
        (whole,) = await pages(at, "kelp", 100)
        recorder.calls.clear()
        found = await pages(at, "kelp", limit)
        assert [hit.id for page in found for hit in page.hits] == [hit.id for hit in whole.hits]
        assert [hit.parts for page in found for hit in page.hits] == [hit.parts for hit in whole.hits]
        assert [hit.position for page in found for hit in page.hits] == list(range(1, 13))
        assert len(recorder.calls) == 1


async def test_pages_keep_their_order_if_the_reranker_changes_or_fails(rerank_few: Callable[[int], None]) -> None:
    rerank_few(8)
    recorder = Recorder(number)
    async with open_talks(index=make_settings(recorder)) as at:
        await at.add_messages("a", *LINES)
        (whole,) = await pages(at, "kelp", 100)
        first = await at.hf.search("kelp", "ada", limit=3)

        def fail(text: str) -> float:
            raise ValueError(text)

        recorder.score = fail
        rest = await at.hf.search("kelp", "ada", limit=100, after=first.cursor)
        assert [hit.id for hit in (*first.hits, *rest.hits)] == [hit.id for hit in whole.hits]
        assert rest.notes == ()


async def test_pages_of_a_search_without_reranking_continue_without_it() -> None:
    recorder = Recorder(lambda text: float("nan"))
    async with open_talks(index=make_settings(recorder)) as at:
        await at.add_messages("a", *LINES)
        plain = await at.find("kelp", limit=100, rerank=False)
        first = await at.hf.search("kelp", "ada", limit=5)
        assert first.notes == ("not reranked: the reranker failed",)
        recorder.score = number
        rest = await at.hf.search("kelp", "ada", limit=100, after=first.cursor)
        assert [hit.id for hit in (*first.hits, *rest.hits)] == plain


async def test_cursor_belongs_to_a_search_with_or_without_reranking() -> None:
    async with open_talks(index=make_settings(Recorder(number))) as at:
        await at.add_messages("a", *LINES)
        for rerank in (True, False):
            first = await at.hf.search("kelp", "ada", limit=5, rerank=rerank)
            with pytest.raises(InvalidRequest, match="not a cursor of this search"):
                await at.hf.search("kelp", "ada", after=first.cursor, rerank=not rerank)
        with pytest.raises(InvalidRequest, match="rerank"):
            await at.hf.search("kelp", "ada", rerank="no")  # type: ignore[arg-type]


async def test_message_erased_between_two_pages_is_left_out(rerank_few: Callable[[int], None]) -> None:
    rerank_few(8)
    async with open_talks(index=make_settings(Recorder(number))) as at:
        await at.add_messages("a", *LINES)
        (whole,) = await pages(at, "kelp", 100)
        first = await at.hf.search("kelp", "ada", limit=3)
        gone = whole.hits[4]
        await at.hf.erase(at.ref("a"), gone.seq)
        rest = await at.hf.search("kelp", "ada", limit=100, after=first.cursor)
        kept = [hit.id for hit in whole.hits[3:8] if hit.id != gone.id]
        assert [hit.id for hit in rest.hits[:4]] == kept
        assert gone.id not in {hit.id for hit in rest.hits}


# -- input of the reranker ---------------------------------------------------------


async def test_text_of_other_users_and_erased_text_is_not_sent() -> None:
    async with serving() as stub:
        rerank = RerankSettings(base_url=stub.url, model="m")
        async with open_talks(index=IndexSettings(rerank=rerank)) as at:
            await at.add_messages("a", "kelp of ada", "kelp answered", "kelp that is erased", "kelp more")
            await at.add_messages("a", "kelp of bob", "kelp for bob", user="bob")
            await at.hf.erase(at.ref("a"), 2)
            assert len(await at.find("kelp")) == 3
            assert sorted(stub.texts) == ["kelp answered", "kelp more", "kelp of ada"]
            async with at.hf.serve_tenant("t2") as elsewhere:
                session = await elsewhere.session("a", user_id="ada")
                await session.append([{"role": "user", "content": text} for text in ("kelp in t2", "kelp two in t2")])
                stub.bodies.clear()
                await elsewhere.search("kelp", "ada")
                assert sorted(stub.texts) == ["kelp in t2", "kelp two in t2"]


async def test_message_erased_during_reranking_is_not_shown() -> None:
    arrived, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(query: str, texts: Sequence[str]) -> list[float]:
        arrived.set()
        await goes_on.wait()
        return [number(text) for text in texts]

    async with open_talks(index=make_settings(slow)) as at:
        await at.add_messages("a", *LINES[:4])
        search = asyncio.create_task(at.hf.search("kelp", "ada"))
        await arrived.wait()
        await at.hf.erase(at.ref("a"), 3)
        goes_on.set()
        assert [hit.seq for hit in (await search).hits] == [2, 1, 0]


async def test_long_messages_are_sent_as_the_matching_passage(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    filler = "the tide came in over the grey stones again. " * 400
    monkeypatch.setattr(ranked_search, "RERANK_CHARS", 300)
    async with open_talks(index=make_settings(recorder)) as at:
        await at.add_messages(
            "a", ("user", f"{filler} The gate code of the harbour is 4711. {filler}"), ("user", "gate code?")
        )
        await at.find("gate code harbour")
        assert all(len(text) <= 300 for text in recorder.texts)
        assert any("The gate code of the harbour is 4711" in text for text in recorder.texts)
    monkeypatch.undo()
    recorder = Recorder()
    async with open_talks(index=make_settings(recorder)) as at:
        await at.add_messages("a", ("user", f"{filler} The gate code is 4711. {filler}"), ("user", "the gate code"))
        await at.find("gate code")
        assert RERANK_CHARS / 2 < max(len(text) for text in recorder.texts) <= RERANK_CHARS


async def test_query_for_a_time_alone_and_a_single_hit_are_not_reranked() -> None:
    recorder = Recorder()
    async with open_talks(index=make_settings(recorder)) as at:
        await at.add_messages("a", *LINES)
        await at.add_messages("b", "the ferry leaves at noon")
        at.clock.now += DAY
        assert len(await at.find("what did I say yesterday?", limit=100)) > 2
        assert await at.find("ferry") == ["b#0"]
        assert recorder.calls == []


async def embed(texts: Sequence[str]) -> list[list[float]]:
    return [numbers(text) for text in texts]


@pytest.mark.parametrize("mode", ["keyword", "vector", "hybrid"])
async def test_every_mode_is_reranked(mode: Any) -> None:
    settings = IndexSettings(embedder=embed, mode="hybrid", rerank=RerankSettings(reranker=Recorder(number)))
    async with open_talks(index=settings) as at:
        await at.add_messages("a", *LINES)
        hits = (await at.hf.search("kelp", "ada", mode=mode)).hits
        assert [hit.seq for hit in hits] == sorted((hit.seq for hit in hits), reverse=True)
        assert all("rerank" in hit.parts for hit in hits)


async def test_best_hits_of_each_session_are_reranked() -> None:
    async with open_talks(index=make_settings(Recorder(number))) as at:
        for name in "abc":
            await at.add_messages(name, ("user", "kelp 1"), ("user", f"kelp kelp {ord(name)}"))
        hits = (await at.hf.search("kelp", "ada", session_level=True)).hits
        assert [hit.session_id for hit in hits] == ["c", "b", "a"]


# -- failures -------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        '{"results": [{"index": 0, "relevance_score": 1}]}',
        '{"results": [{"index": 0, "relevance_score": NaN}]}',
        "no",
        '{"error": {"message": "kelp soup number 1 is refused"}}',
    ],
)
async def test_wrong_answer_keeps_the_order_and_is_noted(body: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(always=lambda: web.Response(text=body)) as stub:
        rerank = RerankSettings(base_url=stub.url, model="m", api_key="sk-very-secret")
        async with open_talks(index=IndexSettings(rerank=rerank)) as at:
            await at.add_messages("a", *LINES)
            plain = await at.find("kelp", limit=100, rerank=False)
            with caplog.at_level(logging.DEBUG, "holdfast"):
                results = await at.hf.search("kelp", "ada", limit=100)
            assert [hit.id for hit in results.hits] == plain
            assert results.notes == ("not reranked: the reranker failed",)
            assert "the reranker failed" in caplog.text
            assert "soup" not in caplog.text
            assert "very-secret" not in caplog.text


async def test_unreachable_reranker_keeps_the_order() -> None:
    rerank = RerankSettings(base_url="http://127.0.0.1:9/v2", model="m")
    async with open_talks(index=IndexSettings(rerank=rerank)) as at:
        await at.add_messages("a", *LINES)
        results = await at.hf.search("kelp", "ada")
        assert len(results.hits) == 10
        assert results.notes[0].startswith("not reranked: the reranker")


async def test_late_reranker_keeps_the_order() -> None:
    async with serving(hold=asyncio.Event()) as stub:
        rerank = RerankSettings(base_url=stub.url, model="m", timeout=0.1)
        async with open_talks(index=IndexSettings(rerank=rerank)) as at:
            await at.add_messages("a", *LINES)
            plain = await at.find("kelp", rerank=False)
            async with asyncio.timeout(5):
                results = await at.hf.search("kelp", "ada")
            assert [hit.id for hit in results.hits] == plain
            assert len(results.notes) == 1
            assert results.notes[0] in {"not reranked: the reranker took too long", "not reranked: the reranker failed"}
        assert stub.hold is not None
        stub.hold.set()


# -- prompts --------------------------------------------------------------------


def read_last_prompt(at: Talks) -> str:
    return "\n".join(str(message) for message in at.model.prompts[-1])


async def test_prompts_are_not_reranked() -> None:
    recorder = Recorder(number)
    async with open_talks(index=make_settings(recorder)) as at:
        await at.add_messages("a", *LINES)
        session = await at.hf.session("b", user_id="ada", agent="finder")
        await session.send("kelp soup?")
        assert recorder.calls == []
        assert "kelp" in read_last_prompt(at)


async def test_reranker_is_closed_with_the_holdfast() -> None:
    closed: list[bool] = []

    class Own(Recorder):
        def close(self) -> None:
            closed.append(True)

    async with open_talks(index=make_settings(Own())) as at:
        await at.add_messages("a", *LINES)
        await at.find("kelp")
    assert closed == [True]
