"""The similarity floor: a question about something never mentioned finds nothing by vector, in search, prompts, tools
and memories.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents import Agent
from holdfast.context.recalled import OPENING, RecallSettings
from holdfast.embedders import EmbedderSettings, embedder_of, weights
from holdfast.errors import EmbeddingFailed
from holdfast.indexes.settings import IndexSettings
from holdfast.recall.vectors import to_vector
from holdfast.search.conversations import search_conversations
from holdfast.search.queries import SearchOptions
from holdfast.tools.search import NOTHING
from tests.markers import strip_markers
from tests.service.search_kit import DAY, Talks, open_talks
from tests.service.tools_kit import make_reply

MODES = ("vector", "hybrid")
MANY = "Which admiral of the northern fleet sold his tin, furniture and lighthouse before the war?"
"""A question that has one word of many in common with what was said."""
CONVERSATIONS = Path(__file__).parents[2] / "benchmarks" / "conversations"


class Themes:
    """Makes vectors from the themes of a text; a text without a theme points away from all stored text. `floor` is
    its `min_similarity`.
    """

    name = "test/themes"
    dimension = 4
    THEMES = ({"kelp", "seaweed", "dulse"}, {"train", "trains", "railway"})

    def __init__(self, floor: float = 0.5) -> None:
        self.min_similarity = floor

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        return [to_vector(self._numbers(text)) for text in texts]

    async def close(self) -> None:
        """See `Embedder.close`."""

    def _numbers(self, text: str) -> list[float]:
        words = set(text.casefold().replace("?", " ").split())
        about = [float(bool(words & theme)) for theme in self.THEMES]
        return [*about, 0.1, 0.0] if any(about) else [0.0, 0.0, 0.1, 2.0 if "?" in text else -1.0]


def index_with(mode: Any, floor: float = 0.5) -> IndexSettings:
    return IndexSettings(embedder=Themes(floor), mode=mode)


async def store_both(at: Talks) -> None:
    """Store two earlier conversations."""
    await at.add_messages("sea", "I like seaweed", "So do many.", "Dulse above all", "Noted.")
    await at.add_messages("rail", "I like trains", "So do many.", "The slow ones", "Noted.")
    at.clock.now += DAY


# -- a search --------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_unrelated_question_finds_nothing(mode: Any) -> None:
    """A related one finds its conversation; without a floor the nearest is always returned."""
    async with open_talks(index=index_with(mode)) as at:
        await store_both(at)
        assert await at.find("Who won the cup?") == []
        assert (await at.find("kelp?"))[0].startswith("sea#")
        assert all(one.startswith("sea#") for one in await at.find("kelp?"))
    async with open_talks(index=index_with(mode, floor=0.0)) as at:
        await store_both(at)
        assert len(await at.find("Who won the cup?")) == 8


async def test_keyword_match_is_found_at_any_distance() -> None:
    """The floor applies to matches by vector alone."""
    async with open_talks(index=index_with("hybrid")) as at:
        await store_both(at)
        await at.add_messages("cup", "We drank from a tin cup")
        assert await at.find("Who won the cup?") == ["cup#0"]
        assert await at.find("Who won the cup?", mode="vector") == []


async def test_pages_end_at_the_floor() -> None:
    """Page by page the results are the same, and `has_more` is correct."""
    async with open_talks(index=index_with("hybrid")) as at:
        await store_both(at)
        whole = await at.hf.search("kelp?", "ada")
        assert not whole.has_more
        found, after = [], None
        while True:
            page = await at.hf.search("kelp?", "ada", limit=1, after=after)
            found += [hit.id for hit in page.hits]
            after = page.cursor
            if after is None:
                break
        assert len(found) > 1
        assert found == [hit.id for hit in whole.hits]


async def test_hit_reports_its_own_similarity() -> None:
    """The cosine is listed next to its part of the score, which helps to choose a floor."""
    async with open_talks(index=index_with("hybrid")) as at:
        await store_both(at)
        near = {hit.id: hit.parts["similarity"] for hit in (await at.hf.search("kelp?", "ada")).hits}
        assert near["sea#0"] == pytest.approx(1, abs=1e-3)
        assert near["sea#1"] < 0.5
        assert "similarity" not in (await at.hf.search("seaweed", "ada", mode="keyword")).hits[0].parts


# -- a prompt --------------------------------------------------------------------


def list_recalled(prompt: Sequence[dict[str, Any]]) -> list[str]:
    """Return the recalled texts in a prompt, or an empty list."""
    blocks = [text for one in prompt if (text := strip_markers(one["content"])).startswith(OPENING)]
    return [json.loads(one)["text"] for block in blocks for one in block.split("\n")[1:-1]]


async def recall_for(at: Talks, text: str) -> list[str]:
    """Return what is recalled into the prompt of a new, temporary conversation."""
    session = await at.hf.session(f"new {len(at.model.prompts)}", user_id="ada", agent="finder")
    await session.send(text)
    await session.delete()
    await at.settled()
    return list_recalled(at.model.prompts[-1])


@pytest.mark.parametrize("mode", MODES)
async def test_unrelated_message_recalls_nothing_into_the_prompt(mode: Any) -> None:
    async with open_talks(index=index_with(mode)) as at:
        await store_both(at)
        assert await recall_for(at, "Who won the cup?") == []
        assert "I like seaweed" in await recall_for(at, "Is there kelp?")


async def test_one_common_word_recalls_nothing_into_the_prompt() -> None:
    """Search returns it; a prompt includes it if the message says little else, if something is near, or without
    vectors.
    """
    for index, brings in (
        (index_with("hybrid"), False),
        (index_with("hybrid", floor=0.0), True),
        (IndexSettings(), True),
    ):
        async with open_talks(index=index) as at:
            await at.add_messages("cup", "We drank from a tin cup")
            at.clock.now += DAY
            assert await at.find(MANY) == ["cup#0"]
            assert (await recall_for(at, MANY) == ["We drank from a tin cup"]) is brings
    async with open_talks(index=index_with("hybrid")) as at:
        await at.add_messages("cup", "We drank from a tin cup")
        at.clock.now += DAY
        assert await recall_for(at, "Whose was the cup?") == ["We drank from a tin cup"]


async def test_text_already_in_the_prompt_does_not_make_other_text_relevant() -> None:
    """Excluded text may be near; the rest must qualify on its own."""
    asked = "Is kelp the plant that northern divers gather, dry and put into a cup of soup before winter?"
    async with open_talks(index=index_with("hybrid")) as at:
        await at.add_messages("sea", "I like seaweed")
        await at.add_messages("cup", "We drank from a tin cup")
        found = await search_conversations(at.hf.engine, "ada", asked, SearchOptions(sure=True))
        assert {hit.id for hit in found.hits} == {"sea#0", "cup#0"}
        left = await search_conversations(
            at.hf.engine, "ada", asked, SearchOptions(sure=True), leave_out=lambda name, _: name == "sea"
        )
        assert left.hits == ()


async def test_question_about_a_time_alone_recalls_everything_from_it() -> None:
    async with open_talks(index=index_with("hybrid")) as at:
        await store_both(at)
        assert "I like trains" in await recall_for(at, "What did I say yesterday?")


@pytest.mark.parametrize(
    ("query", "found"),
    [("Who won the race?", False), (MANY, False), ("kelp", True), ("what was said yesterday", True)],
)
async def test_search_tool_reports_that_nothing_was_found(query: str, *, found: bool) -> None:
    script = [make_reply(None, ("c", "search_conversations", {"query": query})), make_reply("So it is.")]
    async with open_talks(script, index=index_with("hybrid")) as at:
        await at.add_messages("cup", "I like my tin cup")
        await at.add_messages("sea", "I like seaweed")
        at.clock.now += DAY
        session = await at.hf.session("new", user_id="ada", agent="finder")
        await session.send("Hm.")
        (result,) = [one["content"] for one in at.model.prompts[-1] if one["role"] == "tool"]
        assert (result != NOTHING) is found
        assert ("like" in result) is found


# -- memories --------------------------------------------------------------------

KEEPER = {"finder": Agent(name="finder", recalls={"memory": RecallSettings()})}


async def remember_both(at: Talks) -> None:
    """Remember two facts, neither about a cup."""
    for fact in ("Ada likes seaweed", "Ada likes trains"):
        await at.hf.memories.remember(fact, user_id="ada")
    await at.settled()


async def facts(at: Talks, question: str, **asked: Any) -> list[str]:
    """Return the recalled memories."""
    return [one.memory.content for one in (await at.hf.memories.recall(question, user_id="ada", **asked)).found]


@pytest.mark.parametrize("mode", MODES)
async def test_unrelated_question_recalls_no_memory(mode: Any) -> None:
    """A related one recalls its memory; without a floor the nearest is always returned."""
    async with open_talks(index=index_with(mode)) as at:
        await remember_both(at)
        assert await facts(at, "Who won the cup?") == []
        assert await facts(at, "kelp?") == ["Ada likes seaweed"]
        assert sorted(await facts(at, "What do you have about me?")) == ["Ada likes seaweed", "Ada likes trains"]
    async with open_talks(index=index_with(mode, floor=0.0)) as at:
        await remember_both(at)
        assert len(await facts(at, "Who won the cup?")) == 2


async def test_memory_with_a_keyword_match_is_found_at_any_distance() -> None:
    async with open_talks(index=index_with("hybrid")) as at:
        await remember_both(at)
        await at.hf.memories.remember("We drank from a tin cup", user_id="ada")
        await at.settled()
        assert await facts(at, "Who won the cup?") == ["We drank from a tin cup"]
        assert await facts(at, "Who won the cup?", mode="vector") == []


@pytest.mark.parametrize("mode", MODES)
async def test_unrelated_message_recalls_no_memory_into_the_prompt(mode: Any) -> None:
    async with open_talks(index=index_with(mode), agents=KEEPER) as at:
        await remember_both(at)
        assert await recall_for(at, "Who won the cup?") == []
        assert await recall_for(at, "Is there kelp?") == ["Ada likes seaweed"]


async def test_one_common_word_recalls_no_memory_into_the_prompt() -> None:
    """Recall returns it; a prompt includes it if the message says little else or if something is near."""
    for floor, brings in ((0.5, False), (0.0, True)):
        async with open_talks(index=index_with("hybrid", floor=floor), agents=KEEPER) as at:
            await at.hf.memories.remember("We drank from a tin cup", user_id="ada")
            await at.settled()
            many = MANY.replace("tin", "cup")
            assert await facts(at, many) == ["We drank from a tin cup"]
            assert (await recall_for(at, many) == ["We drank from a tin cup"]) is brings
            assert await recall_for(at, "Whose was the cup?") == ["We drank from a tin cup"]


@pytest.mark.parametrize(("query", "found"), [("Who won the race?", False), ("kelp", True)])
async def test_memory_tool_reports_that_nothing_was_found(query: str, *, found: bool) -> None:
    script = [make_reply(None, ("c", "memory", {"action": "recall", "query": query})), make_reply("So it is.")]
    keeper = {"finder": Agent(name="finder", tools=("memory",))}
    async with open_talks(script, index=index_with("hybrid"), agents=keeper) as at:
        await remember_both(at)
        session = await at.hf.session("new", user_id="ada", agent="finder")
        await session.send("Hm.")
        (result,) = [one["content"] for one in at.model.prompts[-1] if one["role"] == "tool"]
        assert ("seaweed" in result) is found


# -- with the real weights -------------------------------------------------------

TALK = (
    "We adopted a golden retriever, his name is Bruno.",
    "What a lovely name! How is he settling in?",
    "He chews everything. Milk and cheese make me sick, so he gets mine.",
    "Poor you. And how is the new job at the children's hospital?",
    "Night shifts, but I like the other nurses.",
    "And your sister, does she still paint?",
    "She sold three landscapes at the market in May.",
    "Congratulations to her!",
)
ABOUT = {
    "Do I have any pets?": "s#0",
    "Am I intolerant to lactose?": "s#2",
    "What is my profession?": "s#3",
    "Who in my family is an artist?": "s#5",
}
ABOUT_NOTHING = (
    "Write a Python function that reverses a linked list.",
    "How do I configure nginx as a reverse proxy?",
    "What is the capital of Mongolia?",
    "Explain the difference between TCP and UDP.",
    "Generate a SQL query for duplicate rows.",
)


def local(**settings: Any) -> Any:
    """Return the local model, or skip the test if it is not installed."""
    pytest.importorskip("numpy", reason="NumPy is not installed")
    try:
        weights.find()
    except EmbeddingFailed:
        pytest.skip("the weights of the local embedder are not installed")
    return embedder_of(EmbedderSettings(provider="local", **settings))


@pytest.mark.parametrize("mode", MODES)
async def test_local_model_recognises_the_topics_of_a_conversation(mode: Any) -> None:
    """Its default floor passes related text and nothing else, in search and in prompts."""
    embedder = local()
    async with open_talks(index=IndexSettings(embedder=embedder, mode=mode)) as at:
        await at.add_messages("s", *TALK)
        at.clock.now += DAY
        for question, answer in ABOUT.items():
            assert answer in (await at.find(question))[:5], question
            assert await recall_for(at, question), question
        for question in ABOUT_NOTHING:
            assert await at.find(question) == [], question
            assert await recall_for(at, question) == [], question


@pytest.mark.parametrize("mode", MODES)
async def test_local_model_recognises_remembered_topics(mode: Any) -> None:
    async with open_talks(index=IndexSettings(embedder=local(), mode=mode), agents=KEEPER) as at:
        for fact in TALK[::2]:
            await at.hf.memories.remember(fact, user_id="ada")
        await at.settled()
        for question in ABOUT:
            assert await recall_for(at, question), question
        for question in ABOUT_NOTHING:
            assert await facts(at, question) == [], question
            assert await recall_for(at, question) == [], question
