"""The command line on the database of a server: what commands about sessions and their prompts print."""

from __future__ import annotations

import json
import shlex
from typing import Final

from holdfast.testing import Reply
from tests.behaviour.kit import assistant, calls, result, user
from tests.behaviour.kit.exchanges import Exchange, exchange

AGENTS: Final = "agents: {clerk: {instruction: Be brief.}, c: {greeting: Welcome.}}"


async def run(x: Exchange, *lines: str, both: bool = True) -> None:
    """Run commands, and those that have it with `--json` too."""
    for line in lines:
        await x.run(*shlex.split(line))
        if both:
            await x.run(*shlex.split(line), "--json")


async def fill(x: Exchange) -> None:
    """Make sessions of two users, of which two have one id, with turns, calls, a note, a replaced turn and a pinned message."""
    x.lines.append("(sessions are made)")
    at = len(x.lines)
    for id, owner, agent in (("s", "ada", "clerk"), ("s", "bob", None), ("S", "ada", "c"), ("s2", "ada", "clerk"), ("ü", "adam", None)):  # noqa: A001  # fmt: skip
        await x.post("/v1/sessions", id=id, user_id=owner, agent=agent, state={"n": 1, "user:theme": "dark"})
        said = [user(f"I live in {owner}ville.\nIt is <cold>."), assistant("Fine. " * 40)]
        await x.post(f"/v1/sessions/{id}/messages?user_id={owner}", messages=said)
    more = [user("Find it"), calls(("c1", "find_ferry", {"to": "Bergen"}), text="Wait"), result("c1", '{"hour": 12}'), assistant("At noon.")]  # fmt: skip
    await x.post("/v1/sessions/s/messages?user_id=ada", messages=[*more, user("I prefer tea."), assistant("Ok.")])
    await x.post("/v1/sessions/s2/close?user_id=ada")
    await x.post("/v1/chat/completions", session_id="s", user_id="ada", messages=[user("And back?")])
    del x.lines[at:]


BEYOND: Final = ("search noon --limit 101", "search noon --neighbours 11", "facts s --limit 1001", "sessions list --limit 1001", "explain s --limit 51", "memories review --limit 1001")  # fmt: skip
"""Commands that ask for one more than they list."""
ENDS: Final = "hooks: {webhooks: [{url: $HOOK, secret: s}]}\nsessions: {ttl: 1h}"


@exchange(["At one."], AGENTS, ENDS, "context: {strategy: digest}", stores=["file"])
async def test_commands_that_read_sessions(x: Exchange) -> None:
    await fill(x)
    await run(
        x,
        "sessions list",
        "sessions list --user ada --limit 2",
        "sessions list --agent clerk",
        "sessions list --user nobody",
        "sessions show s --user ada",
        "sessions show ü",
        "sessions verify s --user ada",
        "sessions verify --all --user ada",
        "sessions prune --older-than 1s --dry-run",
        "explain s --user ada",
        "explain s --user ada --seq 3",
        "explain s --user ada --text NOON --limit 1",
        "explain s --user ada --text e --before 2 --turn 1",
        "explain s --user ada --text zebra",
        "explain s --user ada --agent c --model gpt-4 --budget 100",
        "prompt s --user ada",
        "prompt s --user ada --format anthropic --agent c --budget 400 --strategy buffer_window",
        "search bergen --user ada",
        "search tea noon --user ada --limit 1 --neighbours 1",
        "search live --user ada --sessions --role user",
        "facts s --user ada",
        "facts s --user ada --limit 1",
    )
    await run(
        x,
        "sessions show s",
        "sessions show s --user eve",
        "sessions show s --user ada --full",
        "sessions show s --user ada --last 2",
        "sessions export s --user ada",
        "sessions export s --user ada --retired --calls --no-records",
        "sessions export --all --status closed",
        "prompt s call_9 --user ada",
        "explain s --user ada --seq 99",
        "search noon --user ada --limit 1 --mode keyword",
        "search noon --user ada --until 2023-11-14",
        *BEYOND,
        both=False,
    )
    x.lines.append("~ 2 hours later, without a sweep")
    x.served.clock.now += 7_200_000
    await run(x, "sessions export --all", "sessions prune --older-than 1s --dry-run", "sessions list", "sessions show s --user ada", "sessions verify --all", "keys list", "state get --session s2", "state set n 5 --session s2", "sessions list --user ada", both=False)  # fmt: skip
    await x.later(hours=1)


@exchange(
    lambda body: {"Call.": Reply(text="Wait.", tool_calls=[("find", {"to": "Bergen"})])}.get(body["messages"][-1]["content"], f"Yes to {body['messages'][-1]['content']} " * 9),
    AGENTS, "context: {strategy: token_window, budget: 260}", stores=["file"],
)  # fmt: skip
async def test_chats(x: Exchange) -> None:
    said = ["Hello.", "//etc", "/etc/hosts", "/pin 0", "Two.", *(f"{at}?" for at in range(9)), "/unpin 0", *"abcd", "/history 3", "/explain 1", "/explain", "/context"]  # fmt: skip
    await x.run("chat", "--session", "s", "--user", "ada", given="\n".join(said))
    more = ["/history", "/history 0", "/pin 99", "/pin x", "/unpin", "/zebra", "/help", "Call.", "/new", "New.", "/context", " ", "/quit", "Never."]  # fmt: skip
    await x.run("chat", "--session", "s", "--agent", "c", given="\n".join(more))
    await run(x, "sessions list", both=False)
    assert [*x.take_requests()]  # they are those of any turn


@exchange(["At one."], AGENTS, "context: {strategy: digest}", stores=["file"])
async def test_commands_that_change_sessions(x: Exchange) -> None:
    await fill(x)
    await x.patch("/v1/sessions/s/messages/2?user_id=ada", refused_by=["one", "two", "three"])
    await run(
        x,
        "sessions annotate s 0 --user ada --pin --importance 0.25",
        "sessions annotate s 0 --user ada --unpin",
        "sessions annotate s 2 --user ada --lift two",
        "sessions annotate s 2 --user ada --lift all",
        "sessions annotate s 99 --user ada --lift all",
        "facts s --user ada --pin 4.0",
        "facts s --user ada --drop 0.0",
        "facts s --user ada --reset 4.0",
        "sessions fork s --user ada --at-turn 1",
        "sessions rewind s --user ada --at-turn 1",
        "sessions rewind s --user ada --at-turn 1",
        "sessions move s --user bob --to-user cy --id moved --agent clerk",
        "sessions close s S --user ada",
        "sessions prune --older-than 0s --user ada",
        "sessions delete moved --yes",
        "sessions delete --user adam --yes",
    )
    await run(x, "sessions annotate s 0 --user ada", "sessions fork s --user ada --at-turn 0 --id S", "sessions rewind s --user ada --at-turn 9", "sessions prune --older-than 0s --status any", "sessions list", both=False)  # fmt: skip
    given = {"id": "in", "user_id": "ada", "agent": "c", "state": {"a": 1}, "messages": [user("One"), assistant("Two")]}
    lines = "\n".join(json.dumps(one) for one in (given, {**given, "id": "in2", "metadata": {"k": "v"}}))
    for options in ("--dry-run", "", "", "--user eve", "--json"):
        await x.run("sessions", "import", "-", *options.split(), given=lines)
    await x.run("sessions", "import", "-", given=json.dumps({**given, "messages": [user("Other")]}))
    await x.run("sessions", "import", "-", "--replace", given=json.dumps({**given, "messages": [user("Other")]}))
    await x.run("sessions", "import", "-", given='{"id": "x"\n{"id": 7}')
    await x.run("sessions", "delete", "in", "--user", "ada", given="n\n")
    await x.run("sessions", "delete", "in", "--user", "ada", given="y\n")
    for typed, *rest in (("n\n", "in", "--user", "eve"), ("\n", "in", "--user", "eve"), ("y\n", "in", "--user", "eve"), ("n\n", "--user", "eve"), ("y\n", "--user", "eve")):  # fmt: skip
        await x.run("sessions", "delete", *rest, given=typed, terminal="utf-8")
    await run(x, "sessions export --all", "sessions list", both=False)
