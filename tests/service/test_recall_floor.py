"""The similarity floor: a question about something never mentioned finds nothing by vector, in search, prompts, tools
and memories.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast.agents import Agent
from holdfast.context.recalled import OPENING, RecallSettings
from holdfast.indexes.settings import IndexSettings
from holdfast.recall.vectors import to_vector
from tests.markers import strip_markers
from tests.service.search_kit import DAY, Talks, open_talks

MANY = "Which admiral of the northern fleet sold his tin, furniture and lighthouse before the war?"
"""A question that has one word of many in common with what was said."""


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


# -- memories --------------------------------------------------------------------

KEEPER = {"finder": Agent(name="finder", recalls={"memory": RecallSettings()})}


async def facts(at: Talks, question: str, **asked: Any) -> list[str]:
    """Return the recalled memories."""
    return [one.memory.content for one in (await at.hf.memories.recall(question, user_id="ada", **asked)).found]


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
