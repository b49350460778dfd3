"""Built-in tools for artifacts: what the model saves and loads, who has them, and what of a session's own log comes back."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agents import Agent
from holdfast.artifacts import ArtifactSettings
from holdfast.context.settings import parse
from holdfast.errors import InvalidRequest, ModelUnavailable
from holdfast.holdfast import Holdfast
from holdfast.limits import LISTED_ARTIFACTS, LOADED_IMAGE_BYTES
from holdfast.secrets import Guard, make_redactor
from holdfast.tools.artifacts import ArtifactTools
from holdfast.tools.context import State, ToolContext, TurnState
from holdfast.tools.python.settings import PythonSettings
from holdfast.tools.tool import ToolLimits
from holdfast.turns.respond import respond
from tests.amounts import examples
from tests.made_up import KEY
from tests.markers import unmarked
from tests.service.told_model import REF
from tests.service.tools_kit import Bench, bench, said
from tests.service.workflow_kit import agents, benched

ALL = ("save_artifact", "load_artifact", "list_artifacts")
AGENTS = {"a": Agent(name="a", tools=ALL), "b": Agent(name="b"), "c": Agent(name="c", tools=("load_artifact",))}
PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


async def used(made: Bench, *calls: tuple[str, Any], agent: str = "a", text: str = "Hi") -> list[str]:
    """What the model is told of some calls, one a message; the bench's script has them."""
    await made.ask(text, agent=agent)
    return [entry.message.text for entry in (await made.log()) if entry.message.role == "tool"][-len(calls) :]


def script(*calls: tuple[str, Any]) -> list[Any]:
    """A reply that makes each of these calls in a message of its own."""
    return [*(said(None, (f"c{at}", name, given)) for at, (name, given) in enumerate(calls)), said("done")]


async def results(*calls: tuple[str, Any], **how: Any) -> list[str]:
    """What the model is told of calls in a new session."""
    async with bench(script(*calls), agents=AGENTS, **how) as made:
        return await used(made, *calls)


# -- who has them --------------------------------------------------------------------


def offered(made: Bench) -> list[str]:
    return [tool["function"]["name"] for tool in made.model.bodies[-1].get("tools", ())]


@pytest.mark.parametrize(("agent", "there"), [("a", ALL), ("b", ()), ("c", ("load_artifact",)), (None, ())])
async def test_agents_that_name_them_have_them(agent: str | None, there: tuple[str, ...]) -> None:
    async with bench(["ok"], agents=AGENTS) as made:
        await made.ask("Hi", agent=agent)
        assert tuple(offered(made)) == there


@pytest.mark.parametrize("agent", ["a", "b", None])
async def test_everybody_has_them_where_that_is_wanted(agent: str | None) -> None:
    async with bench(["ok"], agents=AGENTS, artifact_tools=True) as made:
        await made.ask("Hi", agent=agent)
        assert tuple(offered(made)) == ALL


async def test_a_tool_of_the_programs_own_stands_in_place_of_one() -> None:
    def load_artifact(name: str) -> str:
        """Load it from elsewhere."""
        return f"own {name}"

    async with bench(script(("load_artifact", {"name": "x"})), load_artifact, agents=AGENTS) as made:
        assert await used(made, ("load_artifact", {})) == ["own x"]
    with pytest.raises(InvalidRequest, match="two tools are named 'load_artifact'"):
        Holdfast(tools=[load_artifact], artifact_tools=True)


# -- saving and loading ----------------------------------------------------------------


async def test_what_is_saved_can_be_loaded_and_listed() -> None:
    saved, again, loaded, old, listed = await results(
        ("save_artifact", {"name": "report.md", "content": "# Lisbon"}),
        ("save_artifact", {"name": "report.md", "content": "# Lisboa", "expect": 0}),
        ("load_artifact", {"name": "report.md"}),
        ("load_artifact", {"name": "report.md", "version": 0}),
        ("list_artifacts", {}),
    )
    assert json.loads(saved) == {"name": "report.md", "version": 0, "media_type": "text/markdown", "bytes": 8}
    assert json.loads(again)["version"] == 1
    assert (loaded, old) == ("# Lisboa", "# Lisbon")
    assert json.loads(listed) == {"artifacts": [json.loads(again)]}


@pytest.mark.parametrize(
    ("given_", "kind"),
    [
        ({"name": "notes"}, "text/plain"),
        ({"name": "rows.csv"}, "text/csv"),
        ({"name": "rows.csv", "media_type": "text/plain"}, "text/plain"),
        ({"name": "rows.csv", "media_type": None, "expect": None}, None),
    ],
)
async def test_the_type_is_what_is_said_or_what_the_name_says(given_: dict[str, Any], kind: str | None) -> None:
    (told,) = await results(("save_artifact", {**given_, "content": "a,b"}))
    if kind is None:
        assert "wrong arguments" in told
    else:
        assert json.loads(told)["media_type"] == kind


async def test_what_the_users_sessions_share() -> None:
    calls = [("save_artifact", {"name": "user:style.txt", "content": "brief"}), ("list_artifacts", {"prefix": "user:"})]
    async with bench([*script(*calls), *script(("load_artifact", {"name": "user:style.txt"}))], agents=AGENTS) as made:
        assert [one["name"] for one in json.loads((await used(made, *calls))[1])["artifacts"]] == ["user:style.txt"]
        other = await made.hf.session("t", agent="a")
        await other.send("Hi")
        assert [one["content"] for one in await other.messages() if one["role"] == "tool"] == ["brief"]


async def test_binary_contents() -> None:
    """What is no text is told as what it is; a picture is shown."""
    async with bench(
        script(
            (
                "save_artifact",
                {"name": "a.bin", "content": base64.b64encode(b"\0\xff" * 10).decode(), "encoding": "base64"},
            ),
            ("load_artifact", {"name": "a.bin"}),
            ("save_artifact", {"name": "p.png", "content": base64.b64encode(PNG).decode(), "encoding": "base64"}),
            ("load_artifact", {"name": "p.png"}),
        ),
        agents=AGENTS,
    ) as made:
        saved, binary, _, picture = await used(made, *[("", 0)] * 4)
        assert json.loads(saved)["media_type"] == "application/octet-stream"
        assert json.loads(binary) == json.loads(saved) | {"note": "it is not text and cannot be shown"}
        assert json.loads(picture)["media_type"] == "image/png"
        shown = [part for one in made.model.prompts[-1] if isinstance(one["content"], list) for part in one["content"]]
        url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
        assert {"type": "image_url", "image_url": {"url": url}} in shown


async def test_a_picture_that_is_too_large_is_described() -> None:
    async with bench(script(("load_artifact", {"name": "p.png"})), agents=AGENTS) as made:
        await made.session.artifacts.save("p.png", PNG + bytes(LOADED_IMAGE_BYTES))
        (told,) = await used(made, ("", 0))
        assert "4,194,304 bytes" in json.loads(told)["note"]


async def test_a_text_in_another_charset_is_read_whole_or_not_at_all() -> None:
    calls = [("load_artifact", {"name": "a.txt"}), ("load_artifact", {"name": "b.txt"})]
    async with bench(script(*calls), agents=AGENTS, limits=ToolLimits(result=1024)) as made:
        kind = "text/plain; charset=utf-16"
        await made.session.artifacts.save("a.txt", "Olá".encode("utf-16"), mime_type=kind)
        await made.session.artifacts.save("b.txt", ("Olá" * 900).encode("utf-16"), mime_type=kind)
        short, long = await used(made, *calls)
        assert short == "Olá"
        assert "save it in UTF-8" in json.loads(long)["note"]


# -- long ones -------------------------------------------------------------------------


async def test_a_long_text_is_read_in_parts() -> None:
    text = "".join(f"line {at} é\n" for at in range(300))
    size = len(text.encode())
    async with bench(
        script(
            ("load_artifact", {"name": "long.txt"}),
            ("load_artifact", {"name": "long.txt", "offset": 512}),
            ("load_artifact", {"name": "long.txt", "offset": size - 10, "limit": 100}),
            ("load_artifact", {"name": "long.txt", "offset": size}),
        ),
        agents=AGENTS,
        limits=ToolLimits(result=1024),
    ) as made:
        await made.session.artifacts.save("long.txt", text)
        first, second, last, behind = await used(made, *[("", 0)] * 4)
        assert first.endswith(f"\n[bytes 0 to 512 of {size} of long.txt, version 0; continue with offset=512]")
        assert text.startswith(first.rpartition("\n[")[0] + second.partition("\n[")[0])
        assert last.endswith(f"of {size} of long.txt, version 0: its end]")
        assert f"offset {size:,} is past the end" in behind


@settings(max_examples=examples(25), deadline=None)
@given(st.text(min_size=1, max_size=200), st.integers(min_value=16, max_value=64))
async def test_parts_put_together_are_the_whole(text: str, limit: int) -> None:
    """Wherever a part ends: no character is lost or broken, and the offset that is told goes on."""
    text = text.encode("utf-8", "replace").decode()
    async with Holdfast("sqlite://:memory:", clock=lambda: 1) as hf:
        session = await hf.session("s")
        await session.artifacts.save("t.txt", text)
        state = State(TurnState({}, {}))
        context = ToolContext(session_id="s", user_id="default", agent=None, state=state, artifacts=session.artifacts)
        parts, offset = "", 0
        while True:
            told = await ArtifactTools(None, 4096).load(context, "t.txt", offset=offset, limit=limit)
            assert isinstance(told, str)
            part, marker, about = told.rpartition("\n[bytes ")
            parts += part if marker else about
            if "offset=" not in about:
                break
            offset = int(about.partition("offset=")[2].split()[0])
        assert parts == text


# -- what goes wrong -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("load_artifact", {"name": "plan"}, "there is no artifact 'plan'; available: plan.md"),
        ("load_artifact", {"name": "zzz"}, "available: plan.md"),
        ("load_artifact", {"name": "plan.md", "version": 3}, "has no version 3"),
        ("load_artifact", {"name": "../etc/passwd"}, "allowed are letters"),
        ("load_artifact", {"name": "result-0"}, "message 0 of this session is not a tool result"),
        ("load_artifact", {"name": "result-99"}, "message 99 of this session is not a tool result"),
        ("load_artifact", {"name": "plan.md", "limit": 1}, "wrong arguments"),
        ("save_artifact", {"name": "plan.md", "content": "x", "expect": 4}, "its newest version is 0"),
        ("save_artifact", {"name": "plan.md", "content": "x", "expect": -1}, "its newest version is 0"),
        ("save_artifact", {"name": "x.bin", "content": "no", "encoding": "base64"}, "not valid base64"),
        ("save_artifact", {"name": "x.bin", "content": "€", "encoding": "base64"}, "not valid base64"),
        ("save_artifact", {"name": "x", "content": "x", "media_type": "rubbish"}, "media type like"),
        ("save_artifact", {"name": "x.png", "content": "x", "media_type": "image/png"}, "does not have its signature"),
        ("save_artifact", {"name": "result-7", "content": "x"}, "is the name of a tool result"),
        ("save_artifact", {"name": "large", "content": "x" * 2000}, "storage.artifacts.max_bytes"),
        ("save_artifact", {"name": "x"}, "wrong arguments"),
    ],
)
async def test_the_model_is_told_what_it_can_do_about_it(tool: str, arguments: Any, told: str) -> None:
    async with bench(script((tool, arguments)), agents=AGENTS, artifacts=ArtifactSettings(max_bytes=1024)) as made:
        await made.session.artifacts.save("plan.md", "walk")
        (error,) = await used(made, ("", 0))
        assert told in json.loads(error)["error"]
        assert [one.name for one in await made.session.artifacts.list()] == ["plan.md"], "nothing was saved"


async def test_of_very_many_the_first_are_listed() -> None:
    async with bench(script(("list_artifacts", {}), ("list_artifacts", {"prefix": "b"})), agents=AGENTS) as made:
        for at in range(LISTED_ARTIFACTS + 5):
            await made.session.artifacts.save(f"a{at:04}", "x")
        await made.session.artifacts.save("b", "x")
        every, some = (json.loads(one) for one in await used(made, *[("", 0)] * 2))
        assert (len(every["artifacts"]), every["more"]) == (LISTED_ARTIFACTS, 6)
        assert [one["name"] for one in some["artifacts"]] == ["b"]


async def test_secrets_are_replaced_before_they_are_saved() -> None:
    told, binary = await results(
        ("save_artifact", {"name": "a.txt", "content": f"the key is {KEY}"}),
        ("save_artifact", {"name": "b.txt", "content": base64.b64encode(KEY.encode()).decode(), "encoding": "base64"}),
        guard=(guard := Guard(make_redactor(), None)),
    )
    assert "secrets were removed" in json.loads(told)["note"]
    assert "secrets were removed" in json.loads(binary)["note"]
    calls = [("save_artifact", {"name": "a.txt", "content": f"{KEY} é"}), ("load_artifact", {"name": "b.txt"})]
    async with bench(script(*calls), agents=AGENTS, guard=guard) as made:
        await made.session.artifacts.save("b.txt", f"saved by somebody: {KEY}")
        _, loaded = await used(made, *calls)
        assert KEY.encode() not in (await made.session.artifacts.load("a.txt")).data
        assert "saved by somebody" in loaded
        assert KEY not in loaded
        assert all(KEY not in str(prompt) for prompt in made.model.prompts)


# -- what the prompt has no longer -----------------------------------------------------------


def clearing(tools: tuple[str, ...]) -> dict[str, Agent]:
    context = parse({"strategy": "clear_tool_results", "trigger": 200, "keep": 1, "clear_at_least": 50}, where="")
    return {"a": Agent(name="a", tools=tools, context=context)}


def many(text: str) -> str:
    """Say it many times."""
    return f"{text} " * 200


LOOKS = [said(None, (f"c{at}", "many", {"text": f"word{at}"})) for at in range(3)]


async def test_a_cleared_result_is_loaded_back_by_the_name_in_its_place() -> None:
    load = said(None, ("l", "load_artifact", {"name": "result-2"}))
    async with bench([*LOOKS, load, said("done")], many, agents=clearing(("many", "load_artifact"))) as made:
        await made.ask("Hi", agent="a")
        marker = next(unmarked(one["content"]) for one in made.model.prompts[-2] if one["role"] == "tool")
        assert marker.startswith("[result of many cleared: ")
        assert marker.endswith('; load_artifact("result-2") gives it back]')
        assert (await made.log())[-2].message.text == (await made.log())[2].message.text == "word0 " * 200


async def test_without_the_tool_the_marker_stays_as_it_was() -> None:
    async with bench([*LOOKS, said("done")], many, agents=clearing(("many",))) as made:
        await made.ask("Hi", agent="a")
        markers = [unmarked(one["content"]) for one in made.model.prompts[-1] if one["role"] == "tool"]
        assert markers[0].endswith("tokens, message 2 of the log]")


async def test_a_view_with_the_tool_is_another_one() -> None:
    async with bench([], agents={**clearing(("load_artifact",)), "b": clearing(())["a"]}) as made:
        responders = [made.hf.roster.find_responder(agent=name) for name in ("a", "b")]
        assert [responder.loads for responder in responders] == [True, False]
        assert responders[0].view_key != responders[1].view_key


async def test_a_cut_result_says_how_it_is_loaded() -> None:
    context = parse({"strategy": "token_window", "budget": 400}, where="")
    load = said(None, ("l", "load_artifact", {"name": "result-2", "limit": 100}))
    for tools, told in (
        (("many", "load_artifact"), 'load_artifact("result-2")'),
        (("many",), "message 2 of the session"),
    ):
        replies = [LOOKS[0], load, said("done")] if "load_artifact" in tools else [LOOKS[0], said("done")]
        async with bench(replies, many, agents={"a": Agent(name="a", tools=tools, context=context)}) as made:
            await made.ask("Hi", agent="a")
            result = next(unmarked(one["content"]) for one in made.model.prompts[1] if one["role"] == "tool")
            assert f"characters cut, {told} …]" in result
            if "load_artifact" in tools:
                assert (
                    "[bytes 0 to 100 of 1200 of result-2; continue with offset=100]"
                    in (await made.log())[-2].message.text
                )


async def test_only_results_of_this_session_that_are_live_are_loaded() -> None:
    async with bench([LOOKS[0], "done", said(None, ("l", "load_artifact", {"name": "result-2"})), "ok"], many) as made:
        made.hf.roster.agents["a"] = AGENTS["c"]
        await made.ask("Hi")
        other = await made.hf.session("t", agent="a")
        await other.send("Hello")
        assert "is not a tool result" in next(one["content"] for one in await other.messages() if one["role"] == "tool")
    calls = ["first", LOOKS[0], "done", said(None, ("l", "load_artifact", {"name": "result-4"})), "ok"]
    async with bench(calls, many, agents={"a": Agent(name="a", tools=("many", "load_artifact"))}) as made:
        await made.ask("First", agent="a")
        await made.ask("Hi", agent="a")
        assert (await made.log())[4].message.text.startswith("word0")
        await made.session.rewind(0)
        await made.ask("Anew", agent="a")
        assert "is not a tool result" in (await made.log())[-2].message.text, "it is retired"


async def test_results_of_a_branch_are_loaded_in_it_alone() -> None:
    """Agents side by side do not see each other, and loading back is seeing."""
    names = ("hope", "doubt")
    roster = agents(
        Agent(name="panel", parallel=names),
        *(Agent(name=name, instruction=f"I am {name}", tools=("many", "load_artifact")) for name in names),
    )
    load = said(None, ("l", "load_artifact", {"name": "result-2"}))
    lines = {"hope": [LOOKS[0], said("a"), load, said("b")], "doubt": [said("c"), load, said("d")]}
    async with benched(lines, roster, many) as made:
        await made.ask("Hi", agent="panel")
        await made.ask("Again", agent="panel")
        told = {one.agent: one.message.text for one in await made.log() if one.message.tool_call_id == "l"}
        assert told["hope"] == "word0 " * 200
        assert "is not a tool result" in told["doubt"]


async def test_a_result_with_parts_and_an_erased_one() -> None:
    calls = [said(None, ("l", "load_artifact", {"name": "result-2"})), "ok"] * 2
    async with bench(calls, agents=AGENTS) as made:
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PNG).decode()}"}}
        await made.session.append(
            [
                {"role": "user", "content": "Look"},
                {"role": "assistant", "tool_calls": [_call()]},
                {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a map"}, picture]},
                {"role": "assistant", "content": "Seen."},
            ]
        )
        await made.ask("And?", agent="a")
        assert (await made.log())[-2].message.text == "a map\n[and 1 that are not text: images, recordings or files]"
        await made.hf.store.erase(REF, 2)
        await made.ask("Again?", agent="a")
        assert "is not a tool result" in (await made.log())[-2].message.text


def _call() -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


async def test_what_the_tool_python_makes_is_loaded_by_its_name() -> None:
    code = "open('out.csv', 'w').write('a,b\\n1,2\\n')"
    agents = {"a": Agent(name="a", tools=("python", "load_artifact"))}
    calls = [said(None, ("p", "python", {"code": code})), said(None, ("l", "load_artifact", {"name": "out.csv"})), "ok"]
    async with bench(calls, agents=agents, python=PythonSettings(unsandboxed=True)) as made:
        turn = made.turn("Hi", agent="a")
        async for _ in respond(turn):
            pass
        log = await made.log()
        assert log[-2].message.text == "a,b\n1,2\n"
        assert turn.summarize()["artifacts"] == [{"name": "out.csv", "version": 0}]


# -- what a reply is about -------------------------------------------------------------------


async def asked(made: Bench, text: str = "Hi", **fields: Any) -> tuple[dict[str, Any], Any]:
    """What the response tells of the session, and the metadata of the reply's entry."""
    turn = made.turn(text, agent="a", **fields)
    async for _ in respond(turn):
        pass
    return turn.summarize(), (await made.log())[-1].metadata


async def test_a_reply_tells_what_its_turn_has_saved() -> None:
    def own(context: ToolContext) -> Any:
        """Save by a function."""
        return _save(context)

    agents = {"a": Agent(name="a", tools=(*ALL, "own"))}
    calls = [
        said(None, ("c", "save_artifact", {"name": "a.md", "content": "1"})),
        said(None, ("c", "save_artifact", {"name": "a.md", "content": "2"}), ("d", "own", {})),
        said("Saved."),
        said("Nothing new."),
    ]
    async with bench(calls, own, agents=agents) as made:
        told, metadata = await asked(made, idempotency_key="k", fingerprint=b"f")
        assert sorted(one["name"] for one in told["artifacts"]) == ["a.md", "own.txt"]
        assert {"name": "a.md", "version": 1} in told["artifacts"]
        assert metadata["artifacts"] == told["artifacts"]
        assert (await asked(made, idempotency_key="k", fingerprint=b"f"))[0]["artifacts"] == told["artifacts"]
        later, metadata = await asked(made, "And?")
        assert "artifacts" not in later
        assert not metadata


async def _save(context: ToolContext) -> str:
    await context.artifacts.save("own.txt", "x")
    return "saved"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("See artifact:plan.md.", ["plan.md"]),
        ("See artifact:plan.md, artifact:user:style.txt and artifact:none.md!", ["plan.md", "user:style.txt"]),
        ("[the plan](artifact:plan.md) and (artifact:map(1).md)", ["plan.md", "map(1).md"]),
        ("artifact:my%20plan.md `artifact:plan.md`", ["my plan.md", "plan.md"]),
        ("artifact:plan.md artifact:plan.md", ["plan.md"]),
        ("an artifact: plan.md, theartifact:plan.md, artifact:../etc artifact:", []),
    ],
)
async def test_a_reply_tells_which_ones_it_names(text: str, named: list[str]) -> None:
    async with bench([text], agents=AGENTS) as made:
        for name in ("plan.md", "user:style.txt", "map(1).md", "my plan.md", "other.md"):
            await made.session.artifacts.save(name, "x")
        await made.session.artifacts.save("plan.md", "y")
        told, metadata = await asked(made)
        versions = [{"name": name, "version": int(name == "plan.md")} for name in named]
        assert told.get("artifacts", []) == versions
        assert (metadata or {}).get("artifacts", []) == versions


async def test_a_failure_message_tells_what_was_saved_before() -> None:
    agents = {"a": Agent(name="a", tools=ALL, failure_message="Sorry.")}
    calls = [said(None, ("c", "save_artifact", {"name": "a.md", "content": "1"})), [ModelUnavailable("down")]]
    async with bench(calls, agents=agents) as made:
        told, metadata = await asked(made)
        assert told["artifacts"] == metadata["artifacts"] == [{"name": "a.md", "version": 0}]
        assert metadata["source"] == "llm_failure"
