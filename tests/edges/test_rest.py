"""The REST API of sessions over a socket, with valid input."""

from __future__ import annotations

from tests.edges.rest_kit import append_messages, create_session, user
from tests.edges.server import gateway

# -- sessions ----------------------------------------------------------------


async def test_session_of_a_removed_agent_stays_usable() -> None:
    """Its log can be read, written, exported and deleted; only turns need the agent."""
    async with gateway([]) as (served, _):
        await served.http.put("/v1/sessions/s", json={"messages": [user("a")], "agent": "gone"})
        assert (await append_messages(served, user("b"))).status_code == 200
        for url in ("/v1/sessions/s", "/sessions/s", "/v1/sessions/s/messages", "/v1/sessions/s/history"):
            assert (await served.http.get(url)).status_code == 200
        answer = await served.chat("c")
        assert (answer["status"], answer["error"]["param"]) == (400, "agent")
        assert (await served.http.patch("/v1/sessions/s", json={"agent": None})).status_code == 200


# -- export and import -------------------------------------------------------


async def test_log_beginning_with_a_system_message_round_trips() -> None:
    """An export names the system prompt; a system message in the log is a message."""
    async with gateway([]) as (served, _):
        await create_session(served, system_messages=["Beside."])
        await append_messages(served, {"role": "system", "content": "inside"}, user("a"))
        for _ in range(2):
            exported = (await served.http.get("/v1/sessions/s")).json()
            assert [entry["content"] for entry in exported["messages"]] == ["inside", "a"]
            assert [message["content"] for message in exported["system_messages"]] == ["Beside."]
            await served.http.put("/v1/sessions/s", json=exported)


# -- working sets and history ------------------------------------------------


"""Up to here the provider is asked to keep a prompt for the next one."""
