"""REST: turns in which the client calls the model, appends with conditions, and sessions without their log."""

from __future__ import annotations

from typing import Any

from tests.edges.keys import bearer, create_stored_key
from tests.edges.rest_kit import HI, assert_error
from tests.edges.server import Served, gateway

TURNS, MESSAGES = "/v1/sessions/s/turns", "/v1/sessions/s/messages"
REPLY = {"role": "assistant", "content": "Hello."}


async def begin(served: Served, **body: Any) -> Any:
    response = await served.http.post(TURNS, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_turn_writes_its_messages_and_returns_the_working_set() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        await served.http.post("/v1/sessions", json={"id": "s", "system_messages": "Be kind."})
        begun = await begin(served, messages=[HI], strategy="token_window", budget=500)
        assert [one["role"] for one in begun["messages"]] == ["system", "user"]
        assert [one["seqs"] for one in begun["sources"]] == [[], [0]]
        assert (begun["turn_id"], begun["budget"]) == (0, 500)
        marker = begun["session"]["log_marker"]
        appended = await served.http.post(MESSAGES, json={"messages": [REPLY], "expect_log": marker})
        following = await begin(served)
        assert following["session"]["log_marker"] == appended.json()["log_marker"]
        assert following["messages"][1:] == [HI, REPLY]
        assert following["turn_id"] == 0


async def test_an_append_retires_and_changes_state_in_one_write() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        await served.http.put("/v1/sessions/s", json={"messages": [HI, REPLY]})
        info = (await served.http.get("/v1/sessions/s/info")).json()
        changes = [{"op": "increment", "key": "n"}, {"op": "set", "key": "temp:x", "value": 1}]
        body = {"retire_from": 1, "changes": changes, "expect_log": info["log_marker"], "return_session": True}
        answer = (await served.http.post(MESSAGES, json=body)).json()
        assert (answer["data"], answer["start"], answer["session"]["state"]) == ([], 2, {"n": 1})
        assert await served.log() == [("user", "hi")]
        error = assert_error(await served.http.post(MESSAGES, json=body), 412)
        assert error["code"] == "stale_session"
        wrong = {"changes": [{"op": "expect", "key": "n", "value": 2}, {"op": "set", "key": "n", "value": 3}]}
        assert assert_error(await served.http.post(MESSAGES, json=wrong), 412)["code"] == "stale_state"
        assert_error(await served.http.post(MESSAGES, json={"messages": []}), 400)


async def test_app_state_needs_a_key_that_may_change_it() -> None:
    async with gateway(lambda _: "ok", "auth: {required: true}") as (served, _):
        headers = bearer(await create_stored_key(served.hf, user_id="ada"))
        await served.http.post("/v1/sessions", json={"id": "s"}, headers=headers)
        body = {"changes": [{"op": "set", "key": "app:motd", "value": "x"}]}
        assert_error(await served.http.post(MESSAGES, json=body, headers=headers), 403)
        assert await served.hf.app_state().all() == {}
