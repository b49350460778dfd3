"""Access: keys, roles, users and tenants of keys, rates, and keys of models."""

from __future__ import annotations

from typing import Any

from tests.behaviour.kit import bearer, gateway, user
from tests.behaviour.kit.exchanges import Exchange, exchange
from tests.behaviour.kit.seams import numbered_keys

DAY = 86_400_000


def memory(text: str) -> str:
    """A tool of the name that the server's own has."""
    return text


async def make(x: Exchange, by: str | None = None, **fields: Any) -> str:
    """Create a key, without writing that down; return it."""
    answer = await x.served.http.post("/v1/keys", json=fields, headers=bearer(by) if by else {})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["key"])


async def try_all(
    x: Exchange, label: str, headers: dict[str, str], *requests: tuple[str, str] | tuple[str, str, Any]
) -> None:
    """Write down status and error code of each request."""
    found = []
    for method, path, *body in requests:
        x.served.clock.now += 1
        answer = await x.served.http.request(method, path, json=body[0] if body else None, headers=headers)
        error = answer.json()["error"] if answer.status_code >= 400 else {}
        code = error.get("code", error.get("type", ""))
        found.append(f"{method} {path} {answer.status_code} {code}".strip())
    x.note(label, found)


async def list_keys(x: Exchange, key: str, *more: str, **query: Any) -> None:
    fields = ("id", "name", "tenant", "user_id", "role", "status", "expires_at", "revoked_at")
    await x.rows("/v1/keys", *fields, *more, headers=bearer(key), **query)


@exchange()
async def test_keys_over_http(x: Exchange) -> None:
    with numbered_keys():
        await x.post("/v1/keys", name="first", role="admin")
        await x.get("/v1/keys")
        root = bearer("hf_aaaaaaaaaaaaaaab_" + "a" * 52)
        every = {"rate": 60, "max_body": 5000, "budget": 900, "session_mode": "delta", "expires": "2d"}
        await x.post("/v1/keys", root, name="whole", user_id="ada", role="read", **every)
        await x.post("/v1/keys", root, name="capped", role="admin", **every)
        await x.post("/v1/keys", root, name="other", tenant="acme", role="admin", expires=1)
        capped = bearer(await make(x, root["authorization"].partition(" ")[2], role="admin", **every))
        for fields in (
            {}, {"rate": 60}, {"rate": 61}, {"max_body": 5001}, {"budget": 901}, {"budget": 1}, {"expires": "2d"}, {"expires": "3d"},
            {"expires": 1000}, {"tenant": "acme"}, {"session_mode": "auto", "role": "read"},
        ):  # fmt: skip
            x.served.clock.now += 7000
            await x.post("/v1/keys", capped, **fields)
        wrong: Any = (
            {"rate": 0}, {"rate": 1.5}, {"rate": True}, {"expires": 0}, {"expires": "soon"}, {"expires": "36501d"}, {"expires": -1},
            {"role": "king"}, {"user_id": ""}, {"user_id": "a\nb"}, {"tenant": "a\tb"}, {"session_mode": "new"}, {"unknown": 1},
        )  # fmt: skip
        for fields in wrong:
            await x.post("/v1/keys", root, **fields)
        for first in ({"role": "write"}, {"role": "admin", "user_id": "ada"}):
            async with gateway() as other:
                await Exchange(other, x.hook, x.lines).post("/v1/keys", **first)


@exchange((), stores=("memory", "postgres", "mysql"))
async def test_lists_of_keys(x: Exchange) -> None:
    with numbered_keys():
        root = await make(x, name="root", role="admin")
        acme = await make(x, root, name="acme", role="admin", tenant="acme")
        for name, fields in (
            ("ada", {"user_id": "ada", "expires": "1d"}),
            ("acme-2", {"tenant": "acme"}),
            ("last", {"role": "read"}),
        ):
            await make(x, root, name=name, **fields)
    a, b, c = (f"aaaaaaaaaaaaaaa{letter}" for letter in "bcd")
    for query in ({}, {"limit": 2}, {"limit": 5}, {"limit": 2, "after": b}, {"tenant": "acme"}, {"tenant": "acme", "limit": 1}, {"tenant": "acme", "after": b}, {"after": "zz"}):  # fmt: skip
        await list_keys(x, root, **query)
    await list_keys(x, acme)
    await list_keys(x, acme, limit=1)
    await list_keys(x, acme, tenant="acme")
    await x.get("/v1/keys", bearer(acme), tenant="default")
    for key, name in ((acme, a), (acme, "unknown"), (root, c), (root, c), (acme, "aaaaaaaaaaaaaaae")):
        await x.delete(f"/v1/keys/{name}", bearer(key))
    x.served.clock.now += DAY
    await list_keys(x, root)


@exchange(["Yes."] * 30)
async def test_what_each_role_may_do(x: Exchange) -> None:
    await x.served.rest.given("s", user("Hi."), user="ada")
    await x.served.rest.given("s", user("Hi."), user="bob")
    await x.served.rest.given("b", user("Hi."), user="bob")
    with numbered_keys():
        root = await make(x, role="admin")
        keys = {
            f"{role} of {owner}": await make(x, root, role=role, user_id=owner)
            for owner in (None, "ada")
            for role in ("read", "write", "admin")
        }
        keys["admin of acme"] = await make(x, root, role="admin", tenant="acme")
    for label, key in {"nobody": "", **keys}.items():
        await try_all(
            x, label, bearer(key) if key else {},
            ("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/openapi.json"), ("GET", "/"), ("GET", "/metrics"), ("GET", "/v1/status"),
            ("GET", "/v1/keys"), ("GET", "/v1/deletions"), ("POST", "/v1/keys", {"role": "read"}), ("DELETE", "/v1/keys/none"),
            ("GET", "/v1/sessions"), ("GET", "/v1/sessions/s"), ("GET", "/v1/sessions/b"), ("GET", "/v1/sessions?user_id=ada"),
            ("GET", "/v1/sessions?user_id=bob"), ("POST", "/v1/sessions/s/context?user_id=ada", {}),
            ("POST", "/v1/messages/count_tokens", {"model": "default", "messages": [user("Hi.")]}),
            ("POST", "/v1/sessions/s/messages?user_id=ada", {"messages": [user("Go.")]}), ("POST", "/v1/sessions", {"id": "new", "user_id": "bob"}),
            ("POST", "/v1/chat/completions", {"session_id": "s", "user_id": "ada", "messages": [user("Go.")]}),
            ("POST", "/v1/chat/completions", {"session_id": "s", "user_id": "bob", "messages": [user("Go.")]}),
            ("POST", "/v1/chat/completions", {"user": "bob", "messages": [user("Go.")]}),
            ("POST", "/v1/sessions/s/fork?user_id=ada", {"id": label}), ("POST", "/v1/sessions/s/move?user_id=ada", {"user_id": "eve"}),
            ("PUT", "/v1/sessions/i?user_id=bob", {"messages": [user("Hi.")]}), ("GET", "/v1/state?scope=tenant"),
            ("PATCH", "/v1/state?scope=tenant", {"app:a": 1}), ("PATCH", "/v1/state?user_id=bob", {"user:a": 1}),
            ("GET", "/v1/search?q=Hi&user_id=bob"), ("GET", "/v1/memories?user_id=bob"), ("POST", "/v1/memories", {"content": "Tea.", "user_id": "bob"}),
            ("POST", "/v1/memories", {"content": "Tea.", "scope": "app"}), ("GET", "/v1/agents/default/workspace/history"),
            ("DELETE", "/v1/users/nobody"), ("DELETE", "/v1/users/ada-2"), ("GET", "/v1/unknown"), ("DELETE", "/v1/sessions/s?user_id=bob"),
        )  # fmt: skip
        await x.served.http.delete("/v1/users/eve", headers=bearer(root))
        for owner in ("ada", "bob"):
            said = {"messages": [user("Hi.")], "user_id": owner}
            await x.served.http.put(f"/v1/sessions/s?user_id={owner}", json=said, headers=bearer(root))
    await x.rows("/v1/sessions", "id", "user_id", "message_count", headers=bearer(root), limit=100)
    await x.rows("/v1/sessions", "id", "user_id", headers=bearer(keys["admin of acme"]))


@exchange((), "auth: {rate: 8}")
async def test_credentials_and_rates(x: Exchange) -> None:
    with numbered_keys():
        root = await make(x, role="admin", rate=1_000_000)
        slow, fast = [await make(x, root, user_id="ada", rate=rate) for rate in (1, 10)]
        small = await make(x, root, max_body=100)
        short = await make(x, root, expires=5_000)
        usual = await x.served.create_key(user_id="ada")  # a key that another one makes has the other's rate
    one = ("GET", "/v1/sessions")
    for headers in (
        {}, {"authorization": root}, {"authorization": f"bearer   {root}"}, {"authorization": f"Basic {root}"}, {"x-api-key": f"{root}"},
        {"x-holdfast-key": root, "authorization": "Bearer sk-other"}, {"x-api-key": "sk-other", "authorization": f"Bearer {root}"},
        {"x-api-key": root, "authorization": "Bearer sk-other"}, {"x-holdfast-key": root[:-1] + "b", "authorization": f"Bearer {root}"},
        {"authorization": f"Bearer {root.upper()}"}, {"authorization": f"Bearer {root}a"}, {"cookie": f"holdfast_session={root}"},
        {"authorization": "Bearer a.b.c"}, {"authorization": "Bearer"}, {"x-api-key": root, "anthropic-version": "2023-06-01"},
    ):  # fmt: skip
        await try_all(x, str(headers), headers, one)
    await x.get("/v1/sessions")
    await x.get("/v1/sessions", key=root)
    for key, passed in ((slow, (0, 1, 58_999, 1_000)), (fast, (0, 0, 0, 0, 5_999, 1)), (usual, (0, 0, 0, 7_500))):
        for pause in passed:
            x.served.clock.now += pause - 1000
            await x.rows("/v1/sessions", "id", headers=bearer(key))
    for size in (100, 101):
        await x.send("POST", "/v1/sessions", b'{"id": "%s"}' % (b"a" * (size - 10)), None, bearer(small))
    for key in (short, short):
        await try_all(x, "short", bearer(key), one)
        x.served.clock.now += 5_000
    answer = await x.served.http.delete("/v1/keys/aaaaaaaaaaaaaaae", headers=bearer(root))
    x.note("revoked", answer.json()["status"])
    for _ in range(2):
        await try_all(x, "revoked", bearer(small), one)
        x.served.clock.now += 3_000
    await list_keys(x, root, "used_at")


@exchange(["Yes."] * 20, "gateway: {upstream_auth: passthrough}", llm={"api_key": None})
async def test_keys_of_the_model_from_clients(x: Exchange) -> None:
    asked = {"model": "default", "max_tokens": 9, "messages": [user("Hi.")]}
    version = {"anthropic-version": "2023-06-01"}
    chat, claude = ("POST", "/v1/chat/completions", asked), ("POST", "/v1/messages", asked)
    named = ("POST", "/v1/chat/completions", {**asked, "session_id": "s"})
    for headers in (
        {},
        bearer("sk-one"),
        bearer("sk-two"),
        {"x-api-key": "sk-three", **version},
        {"x-api-key": "sk-three"},
    ):
        await try_all(
            x,
            str(headers),
            headers,
            chat,
            claude,
            named,
            ("GET", "/v1/sessions"),
            ("GET", "/metrics"),
            ("DELETE", "/v1/users/a"),
        )
        await x.rows("/v1/sessions", "id", "user_id", headers=headers) if headers else None
    with numbered_keys():
        key = await x.served.create_key(role="admin")
    for headers in (
        bearer(key),
        {"x-holdfast-key": key, **bearer("sk-one")},
        bearer("sk-one"),
        {"x-holdfast-key": key},
    ):
        await try_all(x, "with a key", headers, chat, named, ("GET", "/v1/sessions"), ("GET", "/metrics"))
    x.note("keys that reached the model", [one.headers.get("authorization") for one in x.served.upstream.requests])


@exchange(["Yes."] * 20, "gateway: {user_headers: [X-User, X-Mail], require_user: true, session_headers: [X-Chat]}")
async def test_who_a_request_names(x: Exchange) -> None:
    async def ask(headers: dict[str, str] | None = None, path: str = "/v1/chat/completions", **fields: Any) -> None:
        said = {"model": "default", "max_tokens": 9, "messages": [user("Hi.")], **fields}
        x.served.clock.now += 1
        answer = (await x.served.http.post(path, json=said, headers=headers or {})).json()
        await x.settle() if "error" in answer else None
        x.note(f"{headers or ''} {fields}", answer.get("error", {}).get("message", "done"))

    await ask()
    await ask(session_id="s")
    for fields in (
        {"user_id": "ada"}, {"user": "ada"}, {"user": "ada", "safety_identifier": "h"}, {"user_id": "ada", "user": "bob"},
        {"user_id": "ada", "safety_identifier": "h"}, {"safety_identifier": "h"}, {"user_id": "default"}, {"user_id": ""}, {"user_id": 5},
        {"metadata": {"user_id": "ada"}},
    ):  # fmt: skip
        await ask(None, **fields)
    for headers in (
        {"x-user": "ada"}, {"x-user": "ada", "x-mail": "ada"}, {"x-user": "ada", "x-mail": "bob"}, {"x-mail": "b%C3%B6b"}, {"x-mail": "%ff"},
        {"x-user": "ada", "x-chat": "c"}, {"x-user": "ada", "x-chat": "c", "x-session-id": "c"}, {"x-user": "ada", "x-chat": "c", "x-session-id": "d"},
    ):  # fmt: skip
        await ask(headers)
    await ask({"x-user": "ada"}, user_id="bob")
    await ask({"x-user": "ada", "x-chat": "c"}, session_id="d")
    await ask(None, "/v1/messages", metadata={"user_id": "claude"})
    await ask(None, "/v1/messages", metadata={"user_id": "claude"}, user_id="ada")
    await x.rows("/v1/sessions", "id", "user_id", "message_count", limit=100)
    for path in ("/v1/sessions?user_id=", "/v1/sessions/s?user_id=", "/v1/memories?q="):
        await x.get(path)


@exchange((), stores=["file"])
async def test_keys_on_the_command_line(x: Exchange) -> None:
    with numbered_keys():
        await x.run("keys", "list")
        await x.run("keys", "create", "--name", "laptop", "--user", "ada", "--expires", "90d", "--rate", "5", "--max-body", "1KiB", "--session-mode", "delta", "--budget", "9", "--json")  # fmt: skip
        await x.run("keys", "create", "--role", "admin")
        await x.run("keys", "create", "--tenant", "acme", "--role", "read", "--json")
        for option, value in (("--expires", "soon"), ("--expires", "0s"), ("--max-body", "0"), ("--max-body", "big"), ("--rate", "0"), ("--role", "king"), ("--user", "")):  # fmt: skip
            await x.run("keys", "create", option, value)
    await x.run("keys", "revoke", "aaaaaaaaaaaaaaab")
    await x.run("keys", "revoke", "hf_aaaaaaaaaaaaaaad_" + "a" * 52, "--json")
    await x.run("keys", "revoke", "aaaaaaaaaaaaaaad", "--json")
    await x.run("keys", "revoke", "none")
    await x.run("keys", "list", "--json")


@exchange((), "gateway: {allowed_hosts: [chat.example], cors_origins: ['https://app.example']}")
async def test_hosts_and_origins(x: Exchange) -> None:
    one = ("GET", "/v1/sessions")
    tried: Any = (
        {"host": "localhost"}, {"host": "127.0.0.1:8377"}, {"host": "[::1]:80"}, {"host": "CHAT.example:1"}, {"host": "evil.example"},
        {"host": "chat.example.evil"}, {"origin": "https://app.example"}, {"origin": "http://app.example"}, {"origin": "null"},
        {"origin": "http://localhost:3000"}, {"origin": "https://chat.example"}, {"host": "evil.example", "origin": "https://app.example"},
    )  # fmt: skip
    for headers in tried:
        await try_all(x, str(headers), headers, one, ("GET", "/healthz"), ("GET", "/readyz"))
    with numbered_keys():
        key = await make(x, role="admin")
    for headers in tried:
        await try_all(x, f"with a key {headers}", {**headers, **bearer(key)}, one)
    async with gateway() as other:
        y = Exchange(other, x.hook, x.lines)
        for headers in tried:
            await try_all(y, f"no hosts {headers}", headers, one)
        key = await make(y, role="admin")
        for headers in tried:
            await try_all(y, f"no hosts, with a key {headers}", {**headers, **bearer(key)}, one)


@exchange(["Yes."] * 9, "agents: {clerk: {memory: {enabled: true}, tools: [memory]}}", tools=[memory])
async def test_wrong_addresses_and_fields(x: Exchange) -> None:
    fields: dict[str, Any]
    await x.post("/v1/sessions", id="s")
    pages = "&".join(f"p{n}=1" for n in range(51))
    for path in (
        "sessions?limit=1&limit=1", f"sessions?{pages}", "sessions?user_id=%FF", "sessions?user_id=", "sessions?text=a", "search?text=a", "search?q=%20", "search?q=" + "q" * 8_001,
        "sessions/%FF", "responses/r?include[]=a&include[]=b", "responses/r?include[]=reasoning.encrypted_content&stream=odd", "status?since=2023-11-15&until=2023-11-14",
        "status?since=2023-01-01&step=5m", "status?since=2023-11-14&until=2023-11-14&step=1d", "status?step=2d", "sessions/s/messages/1e3", "sessions/s/explain?q=" + "q" * 2_001,
        "workspaces/clerk/history", "memories/none", "deletions?limit=0",
    ):  # fmt: skip
        await x.get(f"/v1/{path}")
    for fields in ({"request": {"model": "m"}}, {"request": {"odd": 1}}, {"request": {"temperature": 0}}, {"messages": "Hi."}, {"messages": [user("Hi.")], "budget": 300, "recall": "off"}):  # fmt: skip
        await x.post("/v1/sessions/s/turns", **fields)
    for fields in ({"sources": [{"session_id": "s"}] * 51}, {"sources": [{"session_id": "s", "seqs": [-1]}]}, {"importance": 2}):  # fmt: skip
        await x.post("/v1/memories", content="Tea.", **fields)
    for fields in ({"interrupt": {"chars": 1}}, {"memory": "server", "model": "clerk"}, {"session_id": "%2F"}):  # fmt: skip
        await x.post("/v1/chat/completions", messages=[user("Hi.")], session_match="off", **fields)
    await x.send("POST", "/v1/chat/completions", rb'{"messages": [{"role": "user", "content": "Hi \ud83d"}]}')
    await x.post("/v1/workspaces/clerk/checkpoint", note="Now.")
