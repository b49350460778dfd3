"""What a client of one API sends comes back to it equal, whichever API its model has."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.kit import Served, gateway
from tests.behaviour.kit.trips import CLIENTS, UPSTREAMS, find_words, given, item

TRIPS = [
    pytest.param(*(client, upstream, kind), id=f"{client}-{upstream}-{kind}")
    for client, made in CLIENTS.items()
    for upstream in UPSTREAMS
    for kind in made.kinds
]


def through(upstream: str, script: Any = None) -> Any:
    """A gateway whose model has this API."""
    server, llm = UPSTREAMS[upstream]
    return gateway((), upstream=server(script or (lambda _: "zqreply")), llm=llm)


@pytest.mark.parametrize(("client", "upstream", "kind"), TRIPS)
async def test_histories_come_back(client: str, upstream: str, kind: str) -> None:
    """A client reads what it sent, resends it in the same session, and the model gets every word, twice with the same bytes."""
    async with through(upstream) as served:
        own = CLIENTS[client](served.http)
        history = own.kinds[kind]
        answer, session = await own.send(history)
        first = served.sent
        assert find_words(history) <= find_words(first)
        read = await own.read(session, answer)
        assert read[: len(history)] == own.normalize(history)
        resent = own.extend(history, answer)
        _, same = await own.send(resent)
        assert same == session
        second = served.sent
        field = "input" if upstream == "responses" else "messages"
        kept = [strip_marks(one) for one in first[field]]
        assert [strip_marks(one) for one in second[field]][: len(kept)] == kept
        assert find_words(resent) <= find_words(second)


@pytest.mark.parametrize("upstream", UPSTREAMS)
async def test_system_items_of_the_input_stay_in_the_conversation(upstream: str) -> None:
    """`instructions` are for one response. System and developer items of the input are for all that follow it."""
    async with through(upstream) as served:
        rules = [item("system", given("zqrule")), item("developer", given("zqhow")), item("user", given("zqone"))]
        first = await post(served, instructions="zqonce", input=rules)
        assert find_words(served.sent) >= {"zqonce", "zqrule", "zqhow", "zqone"}
        later = [item("developer", given("zqlater")), item("user", given("zqtwo"))]
        second = await post(served, input=later, previous_response_id=first["id"])
        await post(served, instructions="zqnow", input="zqthree", previous_response_id=second["id"])
        words = {"zqnow", "zqrule", "zqhow", "zqone", "zqlater", "zqtwo", "zqthree"}
        assert find_words(served.sent) == {*words, "zqreply"}


async def post(served: Served, **body: Any) -> Any:
    """Send a request of the Responses API; return the Response object."""
    answer = await served.http.post("/v1/responses", json={"model": "default", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def strip_marks(value: Any) -> Any:
    """Return a message without marks for the cache, which move with the end of a prompt."""
    if isinstance(value, list):
        return [strip_marks(one) for one in value]
    if isinstance(value, dict):
        return {name: strip_marks(one) for name, one in value.items() if name != "cache_control"}
    return value
