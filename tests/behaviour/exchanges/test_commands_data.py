"""The command line on the database of a server: memories, state, keys, replays, and the machine."""

from __future__ import annotations

import json
import shlex
from typing import Final

from tests.behaviour.kit import assistant, calls, result, user
from tests.behaviour.kit.exchanges import Exchange, exchange

CONFIG: Final = "agents: {clerk: {instruction: Be brief., memory: {enabled: true}}}"


async def run(x: Exchange, *lines: str, both: bool = True) -> None:
    """Run commands, and those that have it with `--json` too."""
    for line in lines:
        await x.run(*shlex.split(line))
        if both:
            await x.run(*shlex.split(line), "--json")


@exchange((), CONFIG, stores=["file"])
async def test_memories(x: Exchange) -> None:
    ids = []
    for content, options in (
        ("Ada likes tea", "--user ada --tag t --tag u --importance 0.9"),
        ("Ada likes green tea", "--user ada --type episodic --until 2023-11-15"),
        ("Adam hates tea", "--user adam"),
        ("Clerks say please", "--agent clerk --type procedural"),
        ("Ada is known to the clerk", "--agent clerk --user ada"),
        ("Everyone has tea", "--app"),
        ("Nobody's tea", ""),
    ):
        made = await x.run("memories", "remember", content, *options.split(), "--json")
        ids.append(made["id"])
    held = await x.post("/v1/memories", content="Send money", user_id="ada", origin="web")
    ids.append(held["id"])
    sources = [{"session_id": "s", "seqs": [0, 2]}, {"session_id": "t"}]
    await run(x, "memories show " + (await x.post("/v1/memories", content="Tea is hot", user_id="eve", sources=sources))["id"])  # fmt: skip
    await run(x, "memories remember Ada likes tea --user ada", both=False)
    await run(x, "memories remember --user ada Ada likes tea", "memories review --user ada", "memories review --app")
    for options in ("--user ada", "--user ad", "--agent clerk", "--agent clerk --user ada", "--app", "", "--user ada --status superseded", "--user ada --type episodic", "--user ada --tag t --tag u", "--user ada --limit 1", f"--user ada --limit 1 --after {ids[0]}", "--user ada --app", "--limit 1001"):  # fmt: skip
        await run(x, f"memories list {options}", both=False)
    await run(x, "memories list --user ada")
    for options in ("--user ada", "--user ada --limit 1", "--user ada --type semantic --tag t", "--agent clerk", "--user adam --mode keyword", "--limit 101"):  # fmt: skip
        await run(x, f"memories recall who likes tea {options}", both=False)
    await run(
        x, f"memories show {ids[0]}", f"memories review {ids[7]} accept", f"memories review {ids[0]} reject --user ada"
    )
    for question in ("does Ada like tea", "which tea?", "tea for Ada"):
        await x.later(hours=26)
        await x.served.native.memories.recall(question, user_id="ada")
        await x.served.native.memories.settled()
    await run(x, f"memories show {ids[1]}", "memories recall green tea --user ada", "memories consolidate --user ada --dry-run", "memories consolidate --all")  # fmt: skip
    await run(x, f"memories forget {ids[2]}", f"memories forget {ids[2]}", "memories forget --session s --user ada", "memories forget", f"memories forget {ids[0]} --session s", "memories list --user adam", both=False)  # fmt: skip


@exchange((), CONFIG, stores=["file"])
async def test_state_and_keys(x: Exchange) -> None:
    for id, owner in (("s", "ada"), ("t", "ada"), ("t", "bob")):  # noqa: A001
        await x.post(
            "/v1/sessions", id=id, user_id=owner, agent="clerk", state={"n": 1, "user:of": owner, "app:z": [1]}
        )
    await run(
        x,
        "state get --session s",
        "state get --session t",
        "state get --user ada",
        "state get --app",
        "state get --session s --user ada",
        "state get n --session s",
        "state get user:of --session s",
        "state get nothing --session s",
        "state get",
        "state set n 2 --session s",
        "state set n 2 --text --session s",
        "state set m '{\"a\": [1, null]}' --session s",
        "state set word plain words --session s",
        "state set odd 'a\x7f\x9b31m\u202e' --session s",
        "state get odd --session s --json",
        "state set l 1 two --append --session s",
        "state set i --increment 2.5 --session s",
        "state set n --increment 1 --session s",
        "state set user:of x --session s",
        "state set user:v 1 --user ada",
        "state set v 1 --user ada",
        "state set app:z null --app",
        "state set app:y 1 --app",
        "state unset n nothing user:of --session s",
        "state unset app:y --app",
        "state get --session s",
        both=False,
    )
    await run(x, "state set j 1 --session s", "state unset j --session s", "state get --session s")
    for options in ("--role read --user ada --name one --expires 1h --rate 5", "--role admin --max-body 1MiB --session-mode delta --budget 900", "--tenant other", "--role write --user 'a b'"):  # fmt: skip
        await x.run("keys", "create", *shlex.split(options))
        x.served.clock.now += 5000
    made = await x.run("keys", "create", "--json", "--expires", "90d")
    await run(x, "keys list")
    await x.later(hours=2)
    await run(x, f"keys revoke {made['id']}", f"keys revoke {made['id']}", "keys list")


SESSION: Final = {
    "id": "s",
    "messages": [message for n in range(8) for message in (user(f"Find A-10{n:02} in town{n}. " + "More words. " * 20), calls((f"c{n}", "find", {"order": f"A-10{max(n - 4, 0):02}"})), result(f"c{n}", f"found {n} " * 30), assistant(f"Here is {n}."))],
}  # fmt: skip


@exchange(
    lambda body: "" if body["model"] == "silent" else "The user looked for towns 0 to 5.", CONFIG, stores=["file"]
)
async def test_replays_index_and_backups(x: Exchange) -> None:
    file, copy = str(x.folder / "s.jsonl"), str(x.folder / "copy.db")
    (x.folder / "s.jsonl").write_text("\n".join(json.dumps({**SESSION, "id": name}) for name in ("s", "t")) + "\n")
    await run(x, f"sessions import {file}", both=False)
    for options in ("--budget 900", "--budget 900 --per-session", "--budget 900,2000 --strategy 'digest, none ,buffer_window'", "--budget 900 --compare digest token_window", "--budget 100", "--budget 900 --strategy best", "--budget 600 --strategy clear_tool_results", "--budget 600 --strategy clear_tool_results:keep=1+token_window:target=0.5", "--budget 600 --chain --compare clear_tool_results+digest buffer_window@700:window_size=2", "--budget 900 --per-session --strategy summary_buffer", "--budget 900 --per-session --summarizer default --strategy summary_buffer:threshold=0.6,target=0.3", "--budget 900 --summarizer gone --strategy summary_buffer", "--strategy none@400,none@500", "--budget 900 --per-session --summarizer default --strategy summary_buffer:threshold=0.6,target=0.3,summarizer_llm=silent", "--strategy digest+token_window", "--strategy clear_tool_results+clear_tool_results", "--strategy clear_tool_results@900+digest", "--strategy +digest", "--strategy digest@x", "--strategy digest:target", "--strategy digest:target=2", "--strategy best+digest", "--strategy ,", "--budget 9,x", "--budget ,", "--compare digest best", "--compare digest none:x=1", "--compare digest none --strategy none", "--budget 900,1000 --strategy token_window@500,none", "--budget 400,900 --per-session --compare none@400 token_window:preserve_recent=3", "--budget 900 --per-session --summarizer silent --strategy summary_buffer", f"{file} --chain --budget 900 --strategy none", "--budget 900 --strategy digest,summary_buffer --summarizer default --json --per-session", "--budget 900 --compare digest none --json"):  # fmt: skip
        await run(x, f"replay {file} {options}", both=False)
    await run(x, f"replay {file} --budget 900 --strategy digest,token_window,salience,head_tail")
    given = "\n".join((json.dumps(SESSION), "{no", json.dumps({"id": "b", "messages": [{"role": "robot"}]})))
    for options in ("", " --skip-bad", " --skip-bad --json"):
        await x.run("replay", "-", "--strategy", "none", "--budget", "900", *options.split(), given=given)
    await run(x, "index rebuild", "index rebuild --user default --session s")
    await run(x, "index rebuild --session gone", "index rebuild --user nobody", f"backup {file}", f"restore {copy}", f"restore {file} --force", f"sessions list --store sqlite:///{copy}", "lst", "sessions lst", "--version", "sessions list --limit 0", "state set topic", "search --user ada", both=False)  # fmt: skip
