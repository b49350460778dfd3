"""Conversations and their items: what each call returns, in which order and on which page, and what the log keeps."""

from __future__ import annotations

from typing import Any, Final

from holdfast.testing import Reply
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange

ALL: Final = "/v1/conversations"


def text(role: str, said: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": said}


def call(call_id: str, place: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "look", "arguments": f'{{"at": "{place}"}}'}


def output(call_id: str, seen: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": seen}


PARTS: Final = [
    {"type": "input_text", "text": "See:"},
    {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
]
ITEMS: Final = [
    text("developer", "Be kind."), text("user", "One?"), call("c1", "sea"), call("c2", "sky"), output("c2", "blue"),
    output("c1", "grey"), {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "I think."}]},
    text("assistant", "Yes."), {"role": "user", "content": PARTS},
    {"type": "custom_tool_call", "call_id": "c3", "name": "run", "input": "print(1)"},
    {"type": "custom_tool_call_output", "call_id": "c3", "output": "1"}
]  # fmt: skip


@exchange([], stores=DATABASES)
async def test_items_on_pages_in_both_orders(x: Exchange) -> None:
    one = (await x.post(ALL, items=ITEMS, metadata={"topic": "sea"}))["id"]
    for count in (20, 21):
        await x.post(ALL, items=[text("user", "Hi.")] * count)
    items = f"{ALL}/{one}/items"
    ids = [item["id"] for item in (await x.get(items, order="asc", limit=100))["data"]]
    for order in ("asc", "desc", None):
        for limit, after in (
            (1, None), (3, ids[1]), (3, ids[2]), (5, ids[-4]), (20, ids[0]), (1, ids[-1]), (len(ids) - 1, None), (len(ids), None)
        ):  # fmt: skip
            await x.rows(items, "id", "type", order=order, limit=limit, after=after)
    for item in (ids[1], ids[3], ids[5], ids[1] + "x", "msg_xYQ_0en0", "rs_1"):
        await x.get(f"{items}/{item}")
    for wrong in (
        {"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "nothing"}, {"after": "msg_xYQ_0en0"},
        {"after": ids[2].replace("_2e", "_99e")}
    ):  # fmt: skip
        await x.get(items, **wrong)


@exchange([])
async def test_conversations_of_people_are_made_changed_and_deleted(x: Exchange) -> None:
    one = (await x.post(ALL, metadata={"a": "1", "b": "2"}, user_id="ada"))["id"]
    other = (await x.post(ALL))["id"]
    for fields in ({"user_id": "ada"}, {"user_id": "bob"}, {}):
        await x.get(f"{ALL}/{one}", **fields)
    await x.send("POST", f"{ALL}/{one}", {"metadata": {"b": "3", "c": "4"}}, {"user_id": "ada"})
    await x.send("POST", f"{ALL}/{other}", {"metadata": {"no": "thing"}}, {"user_id": "ada"})
    await x.send("POST", f"{ALL}/{one}", {"metadata": None}, {"user_id": "ada"})
    await x.post("/v1/sessions", id="s", user_id="ada", metadata={"count": 5, "name": "x"})
    await x.get(f"{ALL}/conv_xcw", user_id="ada")
    await x.send("POST", f"{ALL}/conv_xcw", {"metadata": {"count": "6"}}, {"user_id": "ada"})
    await x.send("POST", f"{ALL}/conv_xcw", {"metadata": {"mood": "good"}}, {"user_id": "ada"})
    await x.rows("/v1/sessions", "id", "user_id", "metadata", "version")
    for user in ("bob", "ada", "ada"):
        await x.delete(f"{ALL}/{one}", user_id=user)
    for path in ("conv_", "conv_x", f"{other}0", "s", "sess_s"):
        await x.get(f"{ALL}/{path}")
    long = {"k" * 65: "v"}
    for metadata in (
        long, {"k": "v" * 513}, {"k": 5}, {str(at): "v" for at in range(17)}, {"k" * 64: "v" * 512},
        {str(at): "v" for at in range(16)}
    ):  # fmt: skip
        await x.post(ALL, metadata=metadata)
    await x.rows("/v1/sessions", "id", "user_id", "status", limit=50)


@exchange([], stores=DATABASES)
async def test_items_are_added_and_taken_out(x: Exchange) -> None:
    one = (await x.post(ALL, items=ITEMS[:6]))["id"]
    items = f"{ALL}/{one}/items"
    for headers in ({"Idempotency-Key": "k1"}, {"Idempotency-Key": "k1"}, {}):
        await x.post(items, headers, items=[text("assistant", "Yes."), text("user", "Two?")])
    await x.post(items, {"Idempotency-Key": "k1"}, items=[text("user", "Three?")])
    await x.post(items, items=[text("user", f"{at}") for at in range(21)])
    for wrong in ([], [5], [{"type": "message", "role": "wizard", "content": "x"}], [output("c9", "?")], {"a": 1}):
        await x.post(items, items=wrong)
    await x.post(items, items=[call("c4", "bay"), call("c5", "fog")])
    ids = [item["id"] for item in (await x.get(items, order="asc", limit=100))["data"]]
    for at in (-1, 2, 7, 0, 0, -2):
        await x.delete(f"{items}/{ids[at]}")
        await x.rows(items, "id", "type", "call_id", order="asc")
    await x.rows(items, "id", after=ids[-3], order="asc")
    await x.rows(items, "id", after=ids[7], order="asc")
    await x.rows(items, "id", after=ids[7], order="desc")
    session = (await x.rows("/v1/sessions", "id", "version", "message_count", "metadata"))[0]["id"]
    await x.rows(f"/v1/sessions/{session}/messages", "seq", "role", "content", "retired_by", "erased", retired=True)
    alone = f"{ALL}/{(await x.post(ALL, items=ITEMS[8:]))['id']}/items"
    for item in await x.rows(alone, "id", "type", order="asc"):
        await x.delete(f"{alone}/{item['id']}")


@exchange(
    [
        "Blue.",
        Reply(text="Wait.", tool_calls=[("look", {"at": "sea"}), ("look", {"at": "sky"})]),
        "Grey.",
        "New.",
        "Last.",
    ],
    stores=DATABASES,
)
async def test_responses_in_a_conversation(x: Exchange) -> None:
    one = (await x.post(ALL, items=[text("user", "Zero."), text("assistant", "Nought.")]))["id"]
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]
    said: list[Any] = [
        "One?",
        [text("user", "Two?"), text("user", "Three?")],
        [output("call_2_1", "sky"), output("call_2_0", "sea")],
        [text("assistant", "Grey."), text("user", "Four?")],
    ]
    made = []
    for given in said:
        made.append(
            (await x.post("/v1/responses", conversation=one, input=given, tools=tools, instructions="Be brief."))["id"]
        )
    for made_id in made:
        await x.rows(f"/v1/responses/{made_id}/input_items", "id", "type", "role", "content", "output")
    items = [item["id"] for item in await x.rows(f"{ALL}/{one}/items", "id", "type", "role", "call_id", limit=100)]
    for order in ("asc", "desc"):
        await x.rows(f"{ALL}/{one}/items", "id", order=order, after=items[4], limit=2)
        await x.rows(f"/v1/responses/{made[1]}/input_items", "content", order=order, limit=1)
    inputs = [item["id"] for item in await x.rows(f"/v1/responses/{made[1]}/input_items", "id", order="asc")]
    for order in ("asc", "desc"):
        for after in (*inputs, items[0], "x"):
            await x.rows(
                f"/v1/responses/{made[1]}/input_items", "id", order=order, after=after
            ) if after in inputs else await x.get(f"/v1/responses/{made[1]}/input_items", order=order, after=after)
    await x.delete(f"/v1/responses/{made[0]}")
    for made_id in (*made[:2], made[-1]):
        await x.get(f"/v1/responses/{made_id}")
    await x.rows(f"{ALL}/{one}/items", "id", "type", "role", "call_id", limit=100)
    await x.delete(f"{ALL}/{one}/items/{items[3]}")
    await x.delete(f"{ALL}/{one}/items/{items[0]}")
    await x.get(f"/v1/responses/{made[-1]}")
    for fields in (
        {"conversation": {"id": one}, "previous_response_id": made[-1]},
        {"conversation": "conv_xYQ"},
        {"conversation": 5},
        {"conversation": one, "session_id": "s"},
    ):
        await x.post("/v1/responses", input="Hi.", **fields)
    await x.delete(f"{ALL}/{one}")
    await x.get(f"/v1/responses/{made[-1]}")
