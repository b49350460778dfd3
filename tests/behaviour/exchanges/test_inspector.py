"""Pages of the inspector, as text: their rows, figures and orders."""

from __future__ import annotations

import base64
import html
import re
from typing import Final
from urllib.parse import quote

from tests.behaviour.kit import assistant, bearer, calls, result, user
from tests.behaviour.kit.exchanges import Exchange, exchange
from tests.behaviour.kit.inspector import PNG, answer, fill, sign_in
from tests.behaviour.kit.inspector_pages import PAGES


@exchange(answer)
async def test_each_page(x: Exchange) -> None:
    await fill(x.served)
    await x.settle()
    x.lines = []
    for path in PAGES:
        await x.page(path)
    for filters in ("status=quarantined", "tag=taste", "tag=none"):
        await x.page(f"/inspect/memories?scope=user&owner=default&{filters}")
    memories = await x.rows("/v1/memories", "id", "content", user_id="default")
    for _ in range(2):
        for memory in memories:
            await x.page(f"/inspect/memories/{memory['id']}?q=favourite+colour")
        await x.served.http.delete("/v1/sessions/s")
    await x.served.rest.delete_user("ada")
    for query in ("", "?session_id=s", "?user_id=nobody"):
        await x.page(f"/inspect/deletions{query}")


async def fill_lists(x: Exchange) -> None:
    """Make sessions, memories, state and artifacts of several owners, whose names begin alike."""
    for at, (id, owner, agent) in enumerate((("s", "ada", "clerk"), ("s", "bob", None), ("S", "ada", "chief"), ("s2", "adam", "clerk"), ("ü/1", "Ada", None))):  # noqa: A001  # fmt: skip
        await x.post(
            "/v1/sessions",
            id=id,
            user_id=owner,
            agent=agent,
            ttl=3_600_000 * (at + 1),
            state={"n": at, "user:of": owner},
        )
        for n in range(at + 1):
            said = [user(f"Word{n} of {owner}"), calls((f"c{n}", "find", {"n": n})), result(f"c{n}", "{}"), assistant(f"Reply {n}.")]  # fmt: skip
            await x.post(f"/v1/sessions/{quote(id, safe='')}/messages?user_id={owner}", messages=said)
        await x.post("/v1/memories", content=f"{owner} likes Word{at}", user_id=owner, type=("semantic", "episodic")[at % 2], tags=["t", owner], importance=at / 4)  # fmt: skip
    await x.post("/v1/memories", content="All like Word1", scope="app")
    await x.post("/v1/sessions/S/close?user_id=ada")
    for name in ("b.txt", "a.txt", "B.txt"):
        await x.served.http.put(f"/v1/sessions/s/artifacts/{name}?user_id=bob", content=name.encode(), headers={"content-type": "text/plain"})  # fmt: skip
    for n, (id, owner) in enumerate((("s", "bob"), ("s2", "adam"), ("s2", "adam"))):  # noqa: A001
        await x.post("/v1/chat/completions", session_id=id, user_id=owner, messages=[user(f"Asked {n}")])
    x.lines = []


LISTS: Final = (
    *(f"sessions?{query}" for query in ("", "sort=turns", "sort=tokens&order=asc", "sort=sent_tokens", "sort=updated_at&order=asc", "sort=cached_share", "user_id=ada", "user_id=Ada", "agent=clerk", "status=closed", "status=active&user_id=ada", "since=2023-11-15", "until=2023-11-15&sort=turns&order=asc", "q=word1", "q=word1&user_id=ada", "q=word1&until=2023-11-14", "q=word1&since=2023-11-15", "q=word1&agent=clerk&since=2023-11-14", "q=nothing", "sort=zzz", "since=soon", "limit=2")),
    *(f"memories?{query}" for query in ("", "scope=user&owner=ada", "scope=user&owner=ad", "scope=user&owner=ada&q=word0", "scope=user&owner=bob&status=active&type=episodic", "scope=user&owner=bob&tag=bob", "scope=agent&owner=clerk", "q=word1")),
    "memories/held", "memories/diary?scope=user&owner=ada", "memories/diary?scope=all", "state?scope=user&user_id=ada", "state?session_id=s&user_id=bob", "state?session_id=s", "state?scope=zzz",
    "sessions/s", "sessions/s?user_id=bob", "sessions/s?user_id=ada&q=find", "sessions/%C3%BC%2F1?user_id=Ada&at=9", "sessions/S/manage?user_id=ada", "sessions/s2/delete?user_id=adam", "sessions/s2/prompt?user_id=adam&call=next", "sessions/s2/turns/1?user_id=adam", "sessions/s2/state?user_id=adam",
    "sessions/s/artifacts/a.txt?user_id=bob", "artifacts?session_id=s&user_id=bob", "artifacts?user_id=bob", "agents", "agents/clerk", "agents/nobody", "keys", "deletions", "retention", "playground?session_id=s2&user_id=adam", "nothing",
)  # fmt: skip
AGENTS: Final = "agents: {clerk: {instruction: Be brief., description: Writes., sub_agents: [chief], memory: {enabled: true}}, chief: {parallel: [left, right]}, left: {tools: []}, right: {llm: gpt-4o-mini, output_key: r}}"


@exchange(answer, AGENTS, "sessions: {ttl: 2h}", stores=["file"])
async def test_lists_of_sessions_memories_and_state(x: Exchange) -> None:
    await fill_lists(x)
    for path in LISTS:
        await x.page(f"/inspect/{path}")
    data = base64.b64encode(b"One, two").decode()
    parts = [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PNG).decode()}"}}, {"type": "file", "file": {"filename": "ü.csv", "file_data": f"data:text/csv;base64,{data}"}}]  # fmt: skip
    await x.post("/v1/sessions/s/messages?user_id=bob", messages=[user(parts)])
    await x.served.http.put("/v1/sessions/s/artifacts/user:p.png?user_id=bob", content=PNG, headers={"content-type": "image/png"})  # fmt: skip
    for at in (0, 1, 2, 3, "x"):
        for more in ("", "&download=true"):
            await x.get(f"/inspect/sessions/s/media/10/{at}?user_id=bob{more}")
    for path in (
        "sessions/s/artifacts/a.txt",
        "sessions/s/artifacts/user%3Ap.png",
        "artifacts/user%3Ap.png",
        "artifacts/a.txt",
    ):
        for more in ("", "&view=image", "&view=download", "&version=0", "&version=1"):
            await x.get(f"/inspect/{path}/content?user_id=bob{more}")
    await x.post("/v1/sessions/s/fork?user_id=bob", id="fork", at_turn=0)
    await x.post("/v1/sessions/fork/move?user_id=bob", id="moved", user_id="ada")
    turns = [one for n in range(150) for one in (user(f"More {n}"), calls((f"m{n}", "find", {})), result(f"m{n}", "{}"), assistant("Ok."))]  # fmt: skip
    await x.served.http.post("/v1/sessions", json={"id": "long"})
    for at in range(0, len(turns), 100):
        await x.served.http.post("/v1/sessions/long/messages", json={"messages": turns[at : at + 100]})
    for path in ("moved?user_id=ada", "long", "long?at=0", "long?at=200", "long?at=301", "long?at=599"):
        await x.page(f"/inspect/sessions/{path}")
    for kind in ("jsonl", "markdown"):
        export = (await x.served.http.get(f"/inspect/sessions/long/export?format={kind}")).text
        x.note(kind, [export.count("More 149"), len(export.splitlines())])
    (memory,) = await x.rows("/v1/memories", "id", user_id="bob")
    for query in ("", "?q=who+likes+word1", "?q=zebra", "?q=+", ""):
        await x.page(f"/inspect/memories/{memory['id']}{query}")
        await x.served.native.memories.settled()
    await x.later(hours=3)
    await x.page("/inspect/sessions?sort=turns")
    await x.page("/")
    await x.page("/inspect/retention")
    await x.served.http.delete("/v1/sessions/s?user_id=bob")
    await x.served.http.delete("/v1/users/ada")
    for path in ("deletions", "sessions", "memories", "memories?scope=user&owner=ada"):
        await x.page(f"/inspect/{path}")


@exchange(answer, AGENTS, stores=["file"])
async def test_pages_for_each_role(x: Exchange) -> None:
    await fill_lists(x)
    keys = [await x.served.create_key(role=role, user_id=owner, name=f"{role} {owner}") for role, owner in (("admin", None), ("write", None), ("read", None), ("read", "ada"), ("write", "adam"))]  # fmt: skip
    await x.page("/inspect/sessions")
    for key in keys:
        x.served.http.cookies.clear()
        await sign_in(x.served, key)
        for path in ("/", "/inspect/sessions", "/inspect/sessions/s", "/inspect/sessions/s2?user_id=adam", "/inspect/memories", "/inspect/state", "/inspect/keys", "/inspect/deletions", "/inspect/playground", "/inspect/retention"):  # fmt: skip
            await x.page(path)
        for path in ("/v1/sessions", "/v1/memories", "/v1/deletions"):
            await x.rows(path, "id", "user_id", headers=bearer(key))


async def turn_pages(x: Exchange, path: str) -> None:
    """Go through the pages of a list; write down how each begins and ends, and how many lines it has."""
    while path:
        at = len(x.lines)
        page = await x.page(path)
        x.lines[at + 14 : max(at + 14, len(x.lines) - 3)] = [f"    … of {len(x.lines) - at} lines"]
        more = re.search(r'<a href="([^"]+)" rel="next"', page)
        path = html.unescape(more[1]) if more else ""


@exchange()
async def test_lists_that_are_longer_than_a_page(x: Exchange) -> None:
    http, state = x.served.http, {f"{scope}k{n:03}": n for scope in ("", "user:", "app:") for n in range(202)}
    await http.post("/v1/sessions", json={"id": "s", "state": state})
    puts = [{"op": "put", "namespace": [space], "key": f"r{n:02}", "value": n} for n in range(51) for space in ("a", "b")]  # fmt: skip
    more = [*puts, *({"op": "put", "namespace": [f"n{n:03}", "x"], "key": "r", "value": "heron", "text": "heron"} for n in range(201))]  # fmt: skip
    for at in range(0, len(more), 100):
        await http.post("/v1/records?user_id=default", json={"changes": more[at : at + 100]})
    for n in range(103):
        for name in (f"f{n:03}", f"user:f{n:03}", "v"):
            await http.put(f"/v1/sessions/s/artifacts/{name}.txt", content=b"One.")
        await http.post("/v1/memories", json={"content": f"Fact {n} of {n * n}.", "user_id": "default"})
        await http.post("/v1/sessions", json={"id": f"gone{n}"})
        await http.post("/v1/sessions", json={"id": f"kept{n}"})
        await http.delete(f"/v1/sessions/gone{n}")
    for path in ("state?", "state?scope=user&", "state?scope=user&q=k1&", "sessions/s/state?", "state/records?scope=user&", "state/records?scope=user&namespace=a&order=desc&", "state/records?scope=user&namespace=b&prefix=r1&", "state/records?scope=user&q=heron&", "artifacts?", "artifacts?session_id=s&", "sessions/s/artifacts/v.txt?", "memories?scope=user&owner=default&", "memories?scope=user&owner=default&order=asc&", "deletions?", "sessions?", "sessions?sort=turns&"):  # fmt: skip
        await turn_pages(x, f"/inspect/{path.rstrip('&?')}")
    keys = [await x.served.create_key(role="admin", name=f"key {n}") for n in range(52)]
    await sign_in(x.served, keys[0])
    await turn_pages(x, "/inspect/keys")


ODD: Final = {"many": {f"n{n}": n for n in range(13)}, "deep": [[[[1]]]], "none": [], "no": {}, "long": "x" * 2_001, "off": "\x1b[2J", "p": 1.5, "list": [*range(320)]}  # fmt: skip
ODD_PARTS: Final = [{"type": "text", "text": "See"}, {"type": "refusal", "refusal": "I cannot."}, {"type": "odd", "a": 1}, {"type": "thinking", "thinking": "Hm."}, {"type": "redacted_thinking", "data": "x"}, {"type": "video_frames", "frames": []}, {"type": "image_url", "image_url": {"url": "https://a.example/p.png"}}]  # fmt: skip


@exchange(answer, 'agents: {"c d": {context: {strategy: token_window, budget: 300}}}')
async def test_odd_contents_and_addresses(x: Exchange) -> None:
    await x.post("/v1/sessions", id="s", agent="c d", system_messages=["Be brief."])
    said = [user(ODD_PARTS), {**calls(("c1", "find", ODD), ("c2", "look", {})), "reasoning_content": "Let me see."}, result("c1", "y" * 5_001), result("c2", '[{"a": "' + "z" * 150 + '"}]'), assistant("Found."), user("And now?"), calls(("c3", "find", {}))]  # fmt: skip
    await x.served.http.post("/v1/sessions/s/messages", json={"messages": said})
    for path in ("", "?view=raw", "/messages/0", "/messages/1", "/messages/2", "/turns/0", "/turns/9", "?at=x", "/nothing"):  # fmt: skip
        await x.page(f"/inspect/sessions/s{path}")
    for path in ("sessions/s?go=3", "sessions/s?go=3&view=raw", "sessions/s?go=99", "sessions/s/messages/1/raw", "sessions/s/messages/9/raw", "sessions/s/export?format=markdown"):  # fmt: skip
        await x.get(f"/inspect/{path}")
    await x.served.http.post("/v1/sessions/s/messages", json={"messages": [result("c3", "{}"), assistant("There, " * 200)]})  # fmt: skip
    for path in ("forgotten", "forgotten?q=brief", "forgotten?seq=0", "forgotten?q=there", "prompt?call=7"):  # fmt: skip
        await x.page(f"/inspect/sessions/s/{path}")
    for path in ("sessions?q=" + "q" * 8_001, "memories?scope=agent", "memories?scope=app&q=a&status=rejected", "memories?scope=app&q=a&status=quarantined", "playground?session_id=none&agent=c+d&budget=900&strategy=digest", "agents/c%20d", "sessions/gone", "sessions/s/messages/99", "sessions/s/messages/x", "sessions/s/prompt?strategy=best", "sessions/s/artifacts/gone.md", "sessions/s/media/0/0", "memories/mem_0", "keys/none", "sessions?sort=colour", "nowhere"):  # fmt: skip
        await x.page(f"/inspect/{path}")
    for name, content in (("cut.txt", b"a" * 79_999 + "\u00fc".encode()), ("odd.txt", b"a\xff"), ("zero.txt", b"a\0"), ("none.txt", b"")):  # fmt: skip
        await x.served.http.put(f"/v1/sessions/s/artifacts/{name}", content=content, headers={"content-type": "text/plain"})  # fmt: skip
        await x.page(f"/inspect/sessions/s/artifacts/{name}")
    await x.get("/inspect/sessions/s/artifacts/none.txt/content")
    history = [user("One."), assistant((await x.served.chat([user("One.")], "t"))["choices"][0]["message"]["content"])]
    await x.served.chat([*history, user("Two.")], "t")
    await x.served.chat([*history, user("Two!")], "t")
    await x.served.http.post("/v1/sessions/t/interrupt", json={"chars": 1})
    await x.served.http.post("/v1/sessions/t/rewind", json={"at_turn": 0})
    await x.page("/inspect/sessions/t")
    for kind in ("markdown", "jsonl", "json"):
        await x.get(f"/inspect/sessions/t/export?format={kind}")
