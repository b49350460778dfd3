"""Voice records in the form that `/history` returns: an object with `contents`."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.errors import InvalidMessage, InvalidMetadata, InvalidRequest
from tests.unit.seed_voice import CONTENTS


@pytest.mark.parametrize("way", ["append", "send", "turn"])
async def test_history_object_is_accepted_as_input(way: str) -> None:
    """Every input API accepts it, with turn ids and times."""
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        given = {"contents": CONTENTS[:4]}
        if way == "append":
            await session.append(given)
        elif way == "send":
            await session.send(given)
        else:
            async with session.turn(given) as turn:
                turn.add({"role": "assistant", "content": "Hm."})
        told = await session.history()
        assert told[:4] == CONTENTS[:4]
        assert [one["turn_id"] for one in told[4:]] == ([] if way == "append" else [3])
        with pytest.raises(InvalidMetadata, match=r"contents\[1\]\.metadata\.source"):
            await session.append({"contents": [CONTENTS[0], {**CONTENTS[1], "metadata": {"source": "llm"}}]})
        with pytest.raises(InvalidMessage, match=r"contents\[1\]\.turn_id"):
            await session.send({"contents": [CONTENTS[3], CONTENTS[2]]})
        with pytest.raises(InvalidRequest, match="two names of one list"):
            await session.append({"contents": CONTENTS, "messages": CONTENTS})


@pytest.mark.parametrize("way", ["send", "turn"])
async def test_turn_ids_that_the_log_already_has_are_renumbered(way: str) -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        for text in ("One", "Two"):
            message = {**CONTENTS[1], "turn_id": 7, "content": text}
            if way == "send":
                await session.send(message)
            else:
                async with session.turn(message) as turn:
                    turn.add({"role": "assistant", "content": "Hm."})
        assert [one["turn_id"] for one in await session.history()] == [7, 7, 8, 8]
