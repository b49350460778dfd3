"""The floor: a question about nothing that was said gets nothing by its vector, in a search, in a prompt and by the tools; nor of memories."""

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
from holdfast.evaluation import Direct, Evaluator, read
from holdfast.indexes.settings import IndexSettings
from holdfast.recall.vectors import to_vector
from holdfast.search.conversations import search_conversations
from holdfast.search.queries import SearchOptions
from holdfast.tools.search import NOTHING
from tests.markers import unmarked
from tests.service.search_kit import DAY, Talks, open_talks
from tests.service.tools_kit import make_reply

MODES = ("vector", "hybrid")
MANY = "Which admiral of the northern fleet sold his tin, furniture and lighthouse before the war?"
"""A question that has one word of many in common with what was said."""
CONVERSATIONS = Path(__file__).parents[2] / "benchmarks" / "conversations"


class Themes:
    """Makes vectors by what a text is about: what is about none of its themes points away from all that was said.

    Args:
        floor: its `min_similarity`.
    """

    name = "test/themes"
    dimension = 4
    THEMES = ({"kelp", "seaweed", "dulse"}, {"train", "trains", "railway"})

    def __init__(self, floor: float = 0.5) -> None:
        self.min_similarity = floor

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """See `Embedder.embed`."""
        return [to_vector(self._numbers(text)) for text in texts]

    async def close(self) -> None:
        """See `Embedder.close`."""

    def _numbers(self, text: str) -> list[float]:
        words = set(text.casefold().replace("?", " ").split())
        about = [float(bool(words & theme)) for theme in self.THEMES]
        return [*about, 0.1, 0.0] if any(about) else [0.0, 0.0, 0.1, 2.0 if "?" in text else -1.0]


def by(mode: Any, floor: float = 0.5) -> IndexSettings:
    return IndexSettings(embedder=Themes(floor), mode=mode)


async def both_said(at: Talks) -> None:
    """Two conversations, of before."""
    await at.add_messages("sea", "I like seaweed", "So do many.", "Dulse above all", "Noted.")
    await at.add_messages("rail", "I like trains", "So do many.", "The slow ones", "Noted.")
    at.clock.now += DAY


# -- a search --------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_a_question_about_nothing_finds_nothing(mode: Any) -> None:
    """One about something finds it; without a floor something is always nearest."""
    async with open_talks(index=by(mode)) as at:
        await both_said(at)
        assert await at.found("Who won the cup?") == []
        assert (await at.found("kelp?"))[0].startswith("sea#")
        assert all(one.startswith("sea#") for one in await at.found("kelp?"))
    async with open_talks(index=by(mode, floor=0.0)) as at:
        await both_said(at)
        assert len(await at.found("Who won the cup?")) == 8


async def test_what_words_find_is_found_however_far_it_is() -> None:
    """The floor is for what vectors alone find."""
    async with open_talks(index=by("hybrid")) as at:
        await both_said(at)
        await at.add_messages("cup", "We drank from a tin cup")
        assert await at.found("Who won the cup?") == ["cup#0"]
        assert await at.found("Who won the cup?", mode="vector") == []


async def test_pages_end_where_the_floor_is() -> None:
    """Page by page the same as in one, and no more is promised than there is."""
    async with open_talks(index=by("hybrid")) as at:
        await both_said(at)
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


async def test_a_hit_says_how_near_it_is_itself() -> None:
    """To choose a floor by: the cosine, beside what became of it in the score."""
    async with open_talks(index=by("hybrid")) as at:
        await both_said(at)
        near = {hit.id: hit.parts["similarity"] for hit in (await at.hf.search("kelp?", "ada")).hits}
        assert near["sea#0"] == pytest.approx(1, abs=1e-3)
        assert near["sea#1"] < 0.5
        assert "similarity" not in (await at.hf.search("seaweed", "ada", mode="keyword")).hits[0].parts


# -- a prompt --------------------------------------------------------------------


def recalled(prompt: Sequence[dict[str, Any]]) -> list[str]:
    """What the block of a prompt says; nothing: it has none."""
    blocks = [text for one in prompt if (text := unmarked(one["content"])).startswith(OPENING)]
    return [json.loads(one)["text"] for block in blocks for one in block.split("\n")[1:-1]]


async def told(at: Talks, text: str) -> list[str]:
    """What comes into the prompt of a new conversation with that message, which leaves nothing behind."""
    session = await at.hf.session(f"new {len(at.model.prompts)}", user_id="ada", agent="finder")
    await session.send(text)
    await session.delete()
    await at.settled()
    return recalled(at.model.prompts[-1])


@pytest.mark.parametrize("mode", MODES)
async def test_a_message_about_nothing_brings_nothing_into_the_prompt(mode: Any) -> None:
    """One about something brings that."""
    async with open_talks(index=by(mode)) as at:
        await both_said(at)
        assert await told(at, "Who won the cup?") == []
        assert "I like seaweed" in await told(at, "Is there kelp?")


async def test_one_word_in_common_brings_nothing_into_the_prompt() -> None:
    """A search shows it; a prompt has it where the message says little else, where something is near, and where words are all there is."""
    for index, brings in ((by("hybrid"), False), (by("hybrid", floor=0.0), True), (IndexSettings(), True)):
        async with open_talks(index=index) as at:
            await at.add_messages("cup", "We drank from a tin cup")
            at.clock.now += DAY
            assert await at.found(MANY) == ["cup#0"]
            assert (await told(at, MANY) == ["We drank from a tin cup"]) is brings
    async with open_talks(index=by("hybrid")) as at:
        await at.add_messages("cup", "We drank from a tin cup")
        at.clock.now += DAY
        assert await told(at, "Whose was the cup?") == ["We drank from a tin cup"]


async def test_what_the_prompt_has_already_makes_nothing_else_an_answer() -> None:
    """What is left out, as it is there, may be near: the rest has to stand for itself."""
    asked = "Is kelp the plant that northern divers gather, dry and put into a cup of soup before winter?"
    async with open_talks(index=by("hybrid")) as at:
        await at.add_messages("sea", "I like seaweed")
        await at.add_messages("cup", "We drank from a tin cup")
        found = await search_conversations(at.hf.engine, "ada", asked, SearchOptions(sure=True))
        assert {hit.id for hit in found.hits} == {"sea#0", "cup#0"}
        left = await search_conversations(
            at.hf.engine, "ada", asked, SearchOptions(sure=True), leave_out=lambda name, _: name == "sea"
        )
        assert left.hits == ()


async def test_a_time_alone_is_asked_for_as_before() -> None:
    """All that was said then answers."""
    async with open_talks(index=by("hybrid")) as at:
        await both_said(at)
        assert "I like trains" in await told(at, "What did I say yesterday?")


@pytest.mark.parametrize(
    ("query", "found"),
    [("Who won the race?", False), (MANY, False), ("kelp", True), ("what was said yesterday", True)],
)
async def test_the_tool_says_that_nothing_was_found(query: str, *, found: bool) -> None:
    """Rather than what is nearest."""
    script = [make_reply(None, ("c", "search_conversations", {"query": query})), make_reply("So it is.")]
    async with open_talks(script, index=by("hybrid")) as at:
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


async def both_remembered(at: Talks) -> None:
    """Two facts, and nothing of a cup."""
    for fact in ("Ada likes seaweed", "Ada likes trains"):
        await at.hf.memories.remember(fact, user_id="ada")
    await at.settled()


async def facts(at: Talks, question: str, **asked: Any) -> list[str]:
    """What a recall finds."""
    return [one.memory.content for one in (await at.hf.memories.recall(question, user_id="ada", **asked)).found]


@pytest.mark.parametrize("mode", MODES)
async def test_a_question_about_nothing_recalls_nothing(mode: Any) -> None:
    """One about something recalls that; without a floor something is always nearest."""
    async with open_talks(index=by(mode)) as at:
        await both_remembered(at)
        assert await facts(at, "Who won the cup?") == []
        assert await facts(at, "kelp?") == ["Ada likes seaweed"]
        assert sorted(await facts(at, "What do you have about me?")) == ["Ada likes seaweed", "Ada likes trains"]
    async with open_talks(index=by(mode, floor=0.0)) as at:
        await both_remembered(at)
        assert len(await facts(at, "Who won the cup?")) == 2


async def test_a_memory_that_words_find_is_found_however_far_it_is() -> None:
    """The floor is for what vectors alone find."""
    async with open_talks(index=by("hybrid")) as at:
        await both_remembered(at)
        await at.hf.memories.remember("We drank from a tin cup", user_id="ada")
        await at.settled()
        assert await facts(at, "Who won the cup?") == ["We drank from a tin cup"]
        assert await facts(at, "Who won the cup?", mode="vector") == []


@pytest.mark.parametrize("mode", MODES)
async def test_a_message_about_nothing_brings_no_memory_into_the_prompt(mode: Any) -> None:
    """One about something brings that."""
    async with open_talks(index=by(mode), agents=KEEPER) as at:
        await both_remembered(at)
        assert await told(at, "Who won the cup?") == []
        assert await told(at, "Is there kelp?") == ["Ada likes seaweed"]


async def test_one_word_in_common_brings_no_memory_into_the_prompt() -> None:
    """A recall shows it; a prompt has it where the message says little else, and where something is near."""
    for floor, brings in ((0.5, False), (0.0, True)):
        async with open_talks(index=by("hybrid", floor=floor), agents=KEEPER) as at:
            await at.hf.memories.remember("We drank from a tin cup", user_id="ada")
            await at.settled()
            many = MANY.replace("tin", "cup")
            assert await facts(at, many) == ["We drank from a tin cup"]
            assert (await told(at, many) == ["We drank from a tin cup"]) is brings
            assert await told(at, "Whose was the cup?") == ["We drank from a tin cup"]


@pytest.mark.parametrize(("query", "found"), [("Who won the race?", False), ("kelp", True)])
async def test_the_memory_tool_says_that_nothing_answers(query: str, *, found: bool) -> None:
    """Rather than what is nearest."""
    script = [make_reply(None, ("c", "memory", {"action": "recall", "query": query})), make_reply("So it is.")]
    keeper = {"finder": Agent(name="finder", tools=("memory",))}
    async with open_talks(script, index=by("hybrid"), agents=keeper) as at:
        await both_remembered(at)
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
    """The local model; skips the test where it is not installed."""
    pytest.importorskip("numpy", reason="NumPy is not installed")
    try:
        weights.find()
    except EmbeddingFailed:
        pytest.skip("the weights of the local embedder are not installed")
    return embedder_of(EmbedderSettings(provider="local", **settings))


async def test_the_local_models_floor_takes_nothing_that_answers() -> None:
    """On a conversation that it was tuned on: no answer leaves the first ten, hardly one the first fifty."""
    dataset = read([CONVERSATIONS / "dev" / "dev-1.json"])
    without, with_it = [
        (await Evaluator(dataset, Direct(dataset, embedder=local(**floor))).run("hybrid", ks=[10, 50])).turns
        for floor in ({"min_similarity": 0}, {})
    ]
    assert with_it["10"] >= without["10"] > 0.7
    assert with_it["50"] >= without["50"] - 0.005


@pytest.mark.parametrize("mode", MODES)
async def test_the_local_model_knows_what_was_spoken_of(mode: Any) -> None:
    """Its own floor lets pass what was meant, and nothing for what nobody spoke of; nothing of that is in a prompt."""
    embedder = local()
    async with open_talks(index=IndexSettings(embedder=embedder, mode=mode)) as at:
        await at.add_messages("s", *TALK)
        at.clock.now += DAY
        for question, answer in ABOUT.items():
            assert answer in (await at.found(question))[:5], question
            assert await told(at, question), question
        for question in ABOUT_NOTHING:
            assert await at.found(question) == [], question
            assert await told(at, question) == [], question


@pytest.mark.parametrize("mode", MODES)
async def test_the_local_model_knows_what_was_remembered(mode: Any) -> None:
    """The same of memories."""
    async with open_talks(index=IndexSettings(embedder=local(), mode=mode), agents=KEEPER) as at:
        for fact in TALK[::2]:
            await at.hf.memories.remember(fact, user_id="ada")
        await at.settled()
        for question in ABOUT:
            assert await told(at, question), question
        for question in ABOUT_NOTHING:
            assert await facts(at, question) == [], question
            assert await told(at, question) == [], question
