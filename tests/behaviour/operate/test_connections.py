"""`holdfast.connect` with a user of its own, with a key of a user, and with handles for another agent."""

from __future__ import annotations

import holdfast
from holdfast import Owner
from holdfast.errors import UserNotFound
from tests.behaviour.kit import assistant, gateway, refused, user
from tests.behaviour.kit.seams import bearer

NUTS = "I must not eat nuts, so please keep them out of every recipe."


async def test_the_user_of_a_connection_is_that_of_calls_that_name_none() -> None:
    """A memory of an agent stays the agent's."""
    async with gateway() as served, holdfast.connect(served.url, user_id="ada") as hf:
        for owner in ("ada", "bob"):
            await hf.create("s", user_id=owner)
        assert [one.user_id for one in (await hf.sessions()).sessions] == ["ada"]
        assert [one.user_id for one in (await hf.sessions(user_id="bob")).sessions] == ["bob"]
        made = [await hf.memories.remember("Ada likes tea", **more) for more in ({}, {"agent": "clerk"}, {"app": True})]
        assert [one.memory.owner for one in made] == [Owner("user", "ada"), Owner("agent", "clerk"), Owner("app")]


async def test_with_a_key_of_a_user_calls_that_name_none_are_of_this_user() -> None:
    async with gateway() as served:
        admin = (await served.http.post("/v1/keys", json={"role": "admin"})).json()["key"]
        made = await served.http.post("/v1/keys", json={"user_id": "ada"}, headers=bearer(admin))
        async with holdfast.connect(served.url, api_key=made.json()["key"], max_retries=0) as hf:
            assert (await hf.session("s")).user_id == (await hf.get("s")).user_id == "ada"
            with refused(UserNotFound.code):
                await hf.get("s", user_id="bob")


async def test_a_handle_for_an_agent_has_its_prompts_and_facts() -> None:
    config = "agents: {brief: {instruction: Be brief., context: {strategy: none}}}"
    said = [user("Let us plan the trip."), user(NUTS), *[assistant("The weather was mild. " * 60)] * 12, user("Go on.")]
    settings = ("context: {strategy: digest, budget: 1200}", config)
    async with gateway((), *settings) as served, holdfast.connect(served.url) as hf:
        session = await hf.session("s")
        await session.append(said)
        brief = hf.handle(await session.info(), agent="brief")
        assert (await brief.context()).messages[0]["content"] == "Be brief."
        found = [[one.source for one in await each.facts() if one.text == NUTS] for each in (session, brief)]
        assert found == [["block"], ["message"]]
