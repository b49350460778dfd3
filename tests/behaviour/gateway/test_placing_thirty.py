"""Half of the thirty sequences of `placing.md`, each named as its row there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from holdfast.testing import Gate, Reply
from tests.behaviour.kit import Served, assistant, gateway, user
from tests.behaviour.kit.placing import ByResponse, Client, Device, logs, prompt

Row = dict[str, Any]
ADA: Row = {"user": "ada"}
AGAIN = {"x-stainless-retry-count": "1"}


def num() -> Callable[[Row], str]:
    """Return a model with another reply each time: r0, r1 and so on."""
    numbers = count()
    return lambda body: f"r{next(numbers)}"


async def post(served: Served, messages: list[Row], headers: dict[str, str] | None = None, **fields: Any) -> Any:
    """Send a chat request; return the response."""
    body = {"model": "default", "messages": messages, **fields}
    return await served.http.post("/v1/chat/completions", json=body, headers=headers)


async def test_a1() -> None:
    async with gateway(num()) as served:
        c = Client(served, **ADA)
        await c.say("hi")
        h = list(c.history)
        one, two = await asyncio.gather(
            post(served, [*h, user("book it")], **ADA), post(served, [*h, user("book it")], **ADA)
        )
        r = one.json()["choices"][0]["message"]["content"]
        await post(served, [*h, user("book it"), assistant(r), user("thanks")], **ADA)
        assert two.status_code == 200
        assert len(await logs(served)) == 1
        assert prompt(served) == ["hi", "r0", "book it", r, "thanks"]


async def test_a9() -> None:
    async with gateway(lambda b: "positive") as served:
        ex = [user("ex1"), assistant("a1"), user("ex2"), assistant("positive")]
        for i in range(12):
            a = (await post(served, [*ex, user(f"classify {i}")], **ADA)).json()
            assert a["session"]["reconciled"] == "new", (i, a["session"])
            assert prompt(served) == ["ex1", "a1", "ex2", "positive", f"classify {i}"]


async def test_a10() -> None:
    async with gateway(lambda b: "ok") as served:
        cs = list[Client]()
        for k in ("x", "y"):
            c = Client(served, **ADA)
            await c.say(f"{k} start")
            await c.say("next")
            await c.say("next")
            cs.append(c)
        cs[0].keeps = lambda history: history[-5:]
        told = await cs[0].say("next")
        assert told["session"]["reconciled"] == "continued"
        assert "edited_at" not in told["session"]
        first = cs[0].session_id
        await cs[0].say("next")
        assert cs[0].session_id == first


async def test_b3() -> None:
    async with gateway(num()) as served:
        c = Client(served)
        for q in ("q1", "q2", "q3", "q4"):
            await c.say(q)
        sid = c.session_id
        c.history = c.history[:2] + c.history[4:]
        t = await c.say("q5")
        assert (c.session_id, t["session"]["reconciled"]) == (sid, "continued")
        assert "q2" in (await logs(served))[sid]
        t = await c.say("q6", session_mode="transcript")
        assert c.session_id == sid
        assert prompt(served) == ["q1", "r0", "q3", "r2", "q4", "r3", "q5", "r4", "q6"]


async def test_b4() -> None:
    async with gateway(lambda b: "ok" if b["messages"][-1]["content"] == "status?" else "re") as served:
        c = Client(served)
        for i in range(1, 10):
            await c.say("status?" if i in (2, 5, 9) else f"q{i}")
        before = (await logs(served))[c.session_id]
        m = [user("status?"), assistant("ok"), user("stop")]
        for _ in range(2):
            t = (await post(served, m)).json()
            assert t["session_id"] == c.session_id
        assert (await logs(served)) == {c.session_id: [*before, "stop", "re"]}


async def test_b10() -> None:
    async with gateway(num()) as served:
        q = user("q")
        a = (await post(served, [q])).json()
        sid = a["session_id"]
        seq = [[q, assistant("r0"), q], [q, assistant("r0"), q], [q, assistant("r0"), q, assistant("r2"), q]]
        for m in seq:
            assert (await post(served, m)).json()["session_id"] == sid
        assert await logs(served) == {sid: ["q", "r0", "q", "r2", "q", "r3"]}


async def test_c1() -> None:
    async with gateway([Reply(status=500), "paid"]) as served:
        k = {"idempotency-key": "k"}
        b: Row = {"session_id": "s"}
        assert (await post(served, [user("pay 10")], k, **b)).status_code == 502
        assert (await post(served, [user("pay 100")], k, **b)).status_code == 422
        assert (await post(served, [user("pay 10")], k, **b)).status_code == 200
        assert await logs(served) == {"s": ["pay 10", "paid"]}


async def test_c2() -> None:
    async with gateway(num()) as served:
        k = {"idempotency-key": "k"}
        b: Row = {"session_id": "s", **ADA}
        await post(served, [user("hi")], **b)
        await post(served, [user("draft")], k, **b)
        await post(served, [user("hi"), assistant("r0"), user("draft")], **b)
        a = await post(served, [user("draft")], k, **b)
        assert (a.status_code, a.json()["error"]["code"]) == (409, "turn_gone")
        assert await logs(served) == {"s": ["hi", "r0", "draft", "r2"]}


async def test_c4() -> None:
    gate = Gate()
    async with gateway(["r0", Reply(text="one two three four", hold=gate, hold_after=2), "done"]) as served:
        c = Client(served, **ADA)
        await c.say("hi")
        await c.lose("book it", gate, heard="one ")
        c.history.pop()
        await c.say("hello?")
        assert await logs(served) == {c.session_id: ["hi", "r0", "book it", "one two three four", "hello?", "done"]}


async def test_c5() -> None:
    async with gateway(num()) as served:
        x = ByResponse(served)
        await x.say("one")
        r1 = x.response_id
        await x.say("two")
        r2 = x.response_id

        async def after(r: str, t: str) -> tuple[str, list[Any]]:
            y = ByResponse(served)
            y.response_id = r
            await y.say(t)
            return y.response_id, prompt(served)

        r3, p = await after(r1, "other")
        assert p == ["one", "r0", "other"]
        _, p = await after(r2, "three")
        assert p == ["one", "r0", "two", "r1", "three"]
        _, p = await after(r3, "more")
        assert p == ["one", "r0", "other", "r2", "more"]
        _, p = await after(r1, "again")
        assert p == ["one", "r0", "again"]


async def test_b5() -> None:
    async with gateway(num()) as served:
        c = Client(served)
        for i in range(8):
            await c.say(f"q{i}")
        sid = c.session_id
        h = c.history
        for n in range(3):
            a = (
                await post(
                    served,
                    [
                        {"role": "system", "content": f"t{n}"},
                        user(f"Summary so far: {n}"),
                        assistant("Understood."),
                        *h[-4:],
                        user(f"new{n}"),
                    ],
                )
            ).json()
            assert (a["session_id"], a["session"]["reconciled"]) == (sid, "continued")
            h += [user(f"new{n}"), assistant(a["choices"][0]["message"]["content"])]
        assert len(await logs(served)) == 1


async def test_c3() -> None:
    async with gateway(num()) as served:
        d = Device(served, session_id="s", **ADA)
        await d.say("a", headers={"x-stainless-retry-count": "0"})
        await d.say("b", headers={"x-stainless-retry-count": "0"})
        await served.rest.session("s", "ada").rewind(at_turn=0)
        await post(served, [user("b")], AGAIN, session_id="s", **ADA)
        assert await logs(served) == {"s": ["a", "r0", "b", "r2"]}
        await post(served, [user("b")], AGAIN, session_id="s", **ADA)
        assert await logs(served) == {"s": ["a", "r0", "b", "r2"]}


async def test_a2() -> None:
    async with gateway(num()) as served:
        c = Client(served, **ADA)
        for q in ("q1", "q2", "q3"):
            await c.say(q)
        sid = c.session_id
        assert (await post(served, [user("Q1")], **ADA)).json()["session_id"] != sid
        t = await c.say("go on")
        assert (c.session_id, t["session"]["reconciled"]) == (sid, "continued")


async def test_b6() -> None:
    async with gateway(lambda b: f"re {b['messages'][-1]['content']}") as served:
        cs = [Client(served) for _ in range(3)]
        for c in cs:
            c.history = [assistant("Hello, how can I help?")]
            await c.say("hi")
        await cs[1].say("red")
        await cs[0].say("blue")
        cs[2].history.pop()
        await cs[2].send()
        await cs[0].say("on")
        assert prompt(served) == cs[0].seen[:-1]
        for log in (await logs(served)).values():
            assert not ("red" in log and "blue" in log)


async def test_a8() -> None:
    async with gateway(num()) as served:
        p = Device(served, session_id="s", **ADA)
        await p.say("1")
        laptop = Client(served, **ADA)
        laptop.history = [user("1"), assistant("r0")]
        await laptop.say("2")
        assert laptop.session_id == "s"
        await p.say("3")
        await laptop.say("4")
        assert laptop.session_id == "s"
        assert prompt(served) == ["1", "r0", "2", "r1", "4"]
