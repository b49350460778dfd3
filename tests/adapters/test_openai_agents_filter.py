"""What reaches the model of each agent: nested runs, handoffs, callbacks, guardrails, shared sessions, resumed and streamed runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed here: make adapters")

from agents import (
    Agent,
    GuardrailFunctionOutput,
    HandoffInputData,
    InputGuardrail,
    RunConfig,
    RunContextWrapper,
    Runner,
    RunState,
    function_tool,
    handoff,
)
from agents.extensions import handoff_filters
from agents.run_config import CallModelData, ModelInputData
from agents.testing import ScriptedModel, assistant_message, function_call

import holdfast
from holdfast.adapters.openai_agents import HoldfastSession, working_set_filter
from tests.adapters.test_openai_agents import check_prompt, make_turn

MEMORY = "sqlite://:memory:"
SECRETS: list[Any] = [
    {"role": "user" if at % 2 == 0 else "assistant", "content": f"Secret {at}. " + "word " * 20} for at in range(30)
]
both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["run", "run_streamed"])
limits = pytest.mark.parametrize("limit", [None, 1, 5], ids=["all items", "one item", "five items"])


async def open_session(hf: holdfast.Holdfast, limit: int | None = None, items: list[Any] = SECRETS) -> HoldfastSession:
    session = HoldfastSession(hf, "s", session_settings={"limit": limit})
    await session.add_items(items)
    return session


def make_config(session: HoldfastSession, budget: int | None = 700, **options: Any) -> RunConfig:
    chosen = working_set_filter(session, budget=budget)
    return RunConfig(call_model_input_filter=chosen, tracing_disabled=True, **options)


async def run(agent: Agent[Any], question: Any, *, streamed: bool = False, **options: Any) -> Any:
    if not streamed:
        return await Runner.run(agent, question, **options)
    result = Runner.run_streamed(agent, question, **options)
    async for _ in result.stream_events():
        pass
    return result


def get_prompts(agent: Agent[Any]) -> list[list[Any]]:
    """Return the prompts that an agent's model got, after checking that they are valid."""
    calls = agent.model.calls  # type: ignore[union-attr]
    for call in calls:
        check_prompt(call)
    return [call.input for call in calls]


def make_agent(name: str, *replies: Any, **options: Any) -> Agent[Any]:
    return Agent(name, model=ScriptedModel([list(reply) for reply in replies]), **options)


def forbid_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test fail if a prompt is not built from the log."""
    monkeypatch.setattr(holdfast, "fit", None)


# -- agents as tools -------------------------------------------------------------


@both_ways
@limits
@pytest.mark.parametrize("asked", ["Where is it?", "Another question", SECRETS[-1]["content"], SECRETS[0]["content"]])
@pytest.mark.parametrize("history", [SECRETS, SECRETS[-1:], []], ids=["long", "one message", "none"])
async def test_an_agent_as_a_tool_gets_only_its_own_input(
    asked: str, history: list[Any], limit: int | None, streamed: bool
) -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await open_session(hf, limit, history)
        inner = make_agent("inner", [assistant_message("Found.")])
        tool = inner.as_tool("ask_inner", "Ask.", on_stream=(lambda event: None) if streamed else None)
        call = function_call("ask_inner", {"input": asked}, call_id="c1")
        outer = make_agent("outer", [call], [assistant_message("Here.")], tools=[tool])
        await run(outer, "Where is it?", streamed=streamed, session=session, run_config=make_config(session))
        assert get_prompts(inner) == [[{"role": "user", "content": asked}]]
        prompts = get_prompts(outer)
        assert len(prompts) == 2
        for prompt in prompts:
            assert (SECRETS[0] in prompt) == (history is SECRETS)


async def test_a_tool_loop_of_a_nested_agent_is_fitted_into_the_budget() -> None:
    @function_tool
    def look(page: int) -> str:
        """Read a page."""
        return f"Page {page}. " + "line " * 100

    async with holdfast.open(MEMORY) as hf:
        session = await open_session(hf)
        loop = [[function_call("look", {"page": page}, call_id=f"p{page}")] for page in range(8)]
        inner = make_agent("inner", *loop, [assistant_message("Read.")], tools=[look])
        call = function_call("ask_inner", {"input": "Read all pages."}, call_id="c1")
        outer = make_agent("outer", [call], [assistant_message("Done.")], tools=[inner.as_tool("ask_inner", "Ask.")])
        await run(outer, "Read it.", session=session, run_config=make_config(session))
        prompts = get_prompts(inner)
        assert len(prompts) == 9
        assert "Secret" not in str(prompts)
        assert prompts[-1][0] == {"role": "user", "content": "Read all pages."}
        assert len(str(prompts[-1])) < 4_500
        assert "Page 7." in str(prompts[-1])


async def test_an_agent_as_a_tool_with_a_session_of_its_own_gets_that_sessions_items() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await open_session(hf)
        own = HoldfastSession(hf, "notes")
        await own.add_items([{"role": "user", "content": "A note."}])
        inner = make_agent("inner", [assistant_message("Found.")])
        tool = inner.as_tool("ask_inner", "Ask.", session=own)
        outer = make_agent(
            "outer",
            [function_call("ask_inner", {"input": "Which note?"}, call_id="c1")],
            [assistant_message("Here.")],
            tools=[tool],
        )
        await run(outer, "Where is it?", session=session, run_config=make_config(session))
        assert [item["content"] for item in get_prompts(inner)[0]] == ["A note.", "Which note?"]


async def test_a_nested_run_in_the_same_session_does_not_change_the_outer_prompt() -> None:
    """The inner agent's items are stored between those of the outer run, which never read them."""
    async with holdfast.open(MEMORY) as hf:
        session = await open_session(hf)
        inner = make_agent("inner", [assistant_message("Inner thoughts.")])
        tool = inner.as_tool("ask_inner", "Ask.", session=session)
        outer = make_agent(
            "outer",
            [function_call("ask_inner", {"input": "Inner question?"}, call_id="c1")],
            [assistant_message("Here.")],
            tools=[tool],
        )
        config = make_config(session)
        await run(outer, "Where is it?", session=session, run_config=config)
        assert "Secret 0." in str(get_prompts(inner)[0])  # it was given the session
        last = get_prompts(outer)[-1]
        assert last[-1]["output"] == "Inner thoughts."
        assert "Inner question?" not in [item.get("content") for item in last]
        after = make_agent("after", [assistant_message("Yes.")])
        await run(after, "And now?", session=session, run_config=config)
        assert "Inner question?" in [item.get("content") for item in get_prompts(after)[0]]


# -- handoffs --------------------------------------------------------------------


@both_ways
async def test_a_handoff_without_a_filter_uses_the_log(monkeypatch: pytest.MonkeyPatch, streamed: bool) -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await open_session(hf, items=[*SECRETS, *SECRETS])
        other = make_agent("refunds", [assistant_message("Refunded.")])
        transfer = function_call("transfer_to_refunds", {}, call_id="h1")
        agent = make_agent("front", [transfer], handoffs=[other])
        if not streamed:  # a streamed run stores its input later
            forbid_fit(monkeypatch)
        await run(agent, "Refund me.", streamed=streamed, session=session, run_config=make_config(session))
        (prompt,) = get_prompts(other)
        assert prompt[0]["content"] == SECRETS[0]["content"]
        assert len(prompt) < 20
        assert [item.get("type") for item in prompt[-2:]] == ["function_call", "function_call_output"]


def drop_old(data: HandoffInputData) -> HandoffInputData:
    assert isinstance(data.input_history, tuple)
    return dataclasses.replace(data, input_history=data.input_history[-3:])


def drop_history(data: HandoffInputData) -> HandoffInputData:
    return dataclasses.replace(data, input_history=())


def drop_all_but_the_question(data: HandoffInputData) -> HandoffInputData:
    assert isinstance(data.input_history, tuple)
    return dataclasses.replace(data, input_history=data.input_history[-1:], pre_handoff_items=(), new_items=())


@both_ways
@limits
@pytest.mark.parametrize(
    ("chosen", "kept"),
    [
        (drop_old, [28, 29, "Refund me.", "call", "output"]),
        (drop_history, ["call", "output"]),
        (drop_all_but_the_question, ["Refund me."]),
        (handoff_filters.remove_all_tools, None),
    ],
)
async def test_a_handoff_that_drops_items_is_respected(
    chosen: Callable[[HandoffInputData], HandoffInputData], kept: list[Any] | None, limit: int | None, streamed: bool
) -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await open_session(hf, limit)
        other = make_agent("refunds", [assistant_message("Refunded.")])
        transfer = function_call("transfer_to_refunds", {}, call_id="h1")
        agent = make_agent("front", [transfer], handoffs=[handoff(other, input_filter=chosen)])
        await run(agent, "Refund me.", streamed=streamed, session=session, run_config=make_config(session))
        (prompt,) = get_prompts(other)
        read = SECRETS[-limit:] if limit else SECRETS
        contents = [item.get("content", item.get("type", "").rpartition("_")[2]) for item in prompt]
        if kept is None:
            assert not any(item.get("type") for item in prompt)
            assert contents[-1] == "Refund me."
            return
        wanted = [SECRETS[one]["content"] if isinstance(one, int) else one for one in kept]
        if limit == 1 and chosen is drop_old:
            wanted = wanted[1:]  # nothing was dropped, so the log is used
            assert contents[-len(wanted) :] == wanted
            assert contents[0] == SECRETS[0]["content"]
            return
        assert contents == wanted
        assert sum(item in prompt for item in read) == sum(isinstance(one, int) for one in kept)


# -- callbacks -------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("count", [0, 4])
@pytest.mark.parametrize("limit", [None, 10])
async def test_a_callback_that_drops_old_items_is_respected(count: int, limit: int | None, streamed: bool) -> None:
    @function_tool
    def find() -> str:
        """Find it."""
        return "Found. " * 10

    async with holdfast.open(MEMORY) as hf:
        session = await open_session(hf, limit)
        agent = make_agent("a", [function_call("find", {}, call_id="c1")], [assistant_message("Here.")], tools=[find])
        config = make_config(session, session_input_callback=lambda old, new: old[len(old) - count :] + new)
        await run(agent, "Where is it?", streamed=streamed, session=session, run_config=config)
        for prompt in get_prompts(agent):
            assert prompt[: count + 1] == [
                *(SECRETS[-count:] if count else []),
                {"role": "user", "content": "Where is it?"},
            ]
        assert len(await session.get_items(limit=1000)) == 34


@both_ways
@limits
async def test_a_callback_that_keeps_all_items_uses_the_log(limit: int | None, streamed: bool) -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await open_session(hf, limit)
        agent = make_agent("a", [assistant_message("Here.")])
        config = make_config(session, session_input_callback=lambda old, new: old + new)
        await run(agent, "Where is it?", streamed=streamed, session=session, run_config=config)
        (prompt,) = get_prompts(agent)
        assert prompt[0] == SECRETS[0]
        assert prompt[-1]["content"] == "Where is it?"


async def test_a_callback_that_changes_items_is_respected() -> None:
    def mask(old: list[Any], new: list[Any]) -> list[Any]:
        return [{**item, "content": item["content"].replace("Secret", "Masked")} for item in old] + new

    async with holdfast.open(MEMORY) as hf:
        session = await open_session(hf)
        agent = make_agent("a", [assistant_message("Here.")])
        config = make_config(session, session_input_callback=mask)
        await run(agent, "Where is it?", session=session, run_config=config)
        (prompt,) = get_prompts(agent)
        assert "Secret" not in str(prompt)
        assert "Masked 0." in str(prompt)


@both_ways
async def test_items_that_a_callback_adds_count_against_the_budget(streamed: bool) -> None:
    documents = [{"role": "user", "content": f"Document {at}. " + "text " * 150} for at in range(3)]
    async with holdfast.open(MEMORY) as hf:
        session = await open_session(hf)
        agent = make_agent("a", [assistant_message("Here.")])
        filtered = working_set_filter(session, budget=700)

        async def watch(data: CallModelData[Any]) -> ModelInputData:
            data.model_data.input.extend(documents)  # type: ignore[arg-type]
            return await filtered(data)

        config = RunConfig(call_model_input_filter=watch, tracing_disabled=True)
        await run(agent, "Where is it?", streamed=streamed, session=session, run_config=config)
        (prompt,) = get_prompts(agent)
        assert prompt[-1] == documents[-1]
        tokens = holdfast.fit([{"role": "user", "content": str(prompt)}], budget=10**6).conversation_tokens
        assert tokens < 900


# -- the strategy of calls that are not built from the log -------------------------


async def test_a_call_without_the_log_uses_the_strategy_and_budget_of_the_holdfast() -> None:
    items = [{"role": "user", "content": f"Question {at}. " + "word " * 30} for at in range(40)]
    async with holdfast.open(MEMORY, strategy="token_window", budget=400) as hf:
        chosen = working_set_filter(HoldfastSession(hf, "s"))
        data: Any = CallModelData(ModelInputData(items, None), Agent("a"), None)  # type: ignore[arg-type]
        made = (await chosen(data)).input
        assert 1 < len(made) < 15
        assert made == [items[0], *items[1 - len(made) :]]
        named = working_set_filter(HoldfastSession(hf, "s"), strategy="digest", budget=400)
        assert not all(item in items for item in (await named(data)).input)  # there is a digest


# -- guardrails, shared sessions, resumed runs ------------------------------------------


@both_ways
async def test_a_guardrails_own_run_gets_only_its_own_input(streamed: bool) -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await open_session(hf)
        config = make_config(session)
        guard = make_agent("guard", [assistant_message("Fine.")])

        async def check(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
            await Runner.run(guard, "Where is it?", run_config=config)
            return GuardrailFunctionOutput(None, tripwire_triggered=False)

        agent = make_agent("a", [assistant_message("Here.")], input_guardrails=[InputGuardrail(check)])
        await run(agent, "Where is it?", streamed=streamed, session=session, run_config=config)
        assert get_prompts(guard) == [[{"role": "user", "content": "Where is it?"}]]
        assert "Secret 0." in str(get_prompts(agent)[0])


@both_ways
async def test_two_agents_take_turns_in_one_session(monkeypatch: pytest.MonkeyPatch, streamed: bool) -> None:
    if not streamed:
        forbid_fit(monkeypatch)
    async with holdfast.open(MEMORY) as hf:
        session = await open_session(hf, 10)
        config = make_config(session)
        agents = [make_agent(name, *[[assistant_message(f"{name}.")]] * 5) for name in ("one", "two")]
        for number in range(10):
            await run(agents[number % 2], f"Question {number}?", streamed=streamed, session=session, run_config=config)
        for number in range(2, 10):
            prompt = get_prompts(agents[number % 2])[number // 2]
            assert prompt[0] == SECRETS[0]
            asked = [item["content"] for item in prompt if str(item.get("content")).startswith("Question")]
            assert asked[-2:] == [f"Question {number - 1}?", f"Question {number}?"]


async def test_items_that_another_run_stores_meanwhile_reach_no_prompt() -> None:
    @function_tool
    async def find() -> str:
        """Find it."""
        await HoldfastSession(hf, "s").add_items([{"role": "user", "content": "From elsewhere."}])
        return "Found."

    async with holdfast.open(MEMORY) as hf:
        session = await open_session(hf)
        calls = [[function_call("find", {}, call_id=f"c{at}")] for at in range(3)]
        agent = make_agent("a", *calls, [assistant_message("Here.")], tools=[find])
        await run(agent, "Where is it?", session=session, run_config=make_config(session))
        prompts = get_prompts(agent)
        assert "From elsewhere." not in str(prompts)
        assert [prompt[-1].get("call_id") for prompt in prompts] == [None, "c0", "c1", "c2"]


@both_ways
@pytest.mark.parametrize("stored", [False, True], ids=["in this process", "as JSON"])
async def test_a_run_continues_after_an_approval(stored: bool, streamed: bool) -> None:
    @function_tool(needs_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return f"Paid {amount}."

    async with holdfast.open(MEMORY) as hf:
        session = await open_session(hf)
        config = make_config(session)
        call = function_call("pay", {"amount": 5}, call_id="c1")
        agent = make_agent("a", [call], [assistant_message("Done.")], tools=[pay])
        result = await run(agent, "Pay 5.", streamed=streamed, session=session, run_config=config)
        state = result.to_state()
        state.approve(result.interruptions[0])
        if stored:
            text = state.to_string()
            del result, state
            session = HoldfastSession(hf, "s")
            config = make_config(session)
            state = await RunState.from_string(agent, text)
            state.approve(state.get_interruptions()[0])
        result = await run(agent, state, streamed=streamed, session=session, run_config=config)
        assert result.final_output == "Done."
        last = get_prompts(agent)[-1]
        assert last[0] == SECRETS[0]
        assert len(last) < 20
        assert last[-1]["output"] == "Paid 5."
        types = [item.get("type") for item in await session.get_items()][30:]
        assert types == [None, "function_call", "function_call_output", "message"]


# -- changes of the log while a prompt is built ----------------------------------------


class ChangingSession(HoldfastSession):
    """A session that another process changes after each call of a method."""

    after: str
    change: Callable[[Any], Any]

    async def run(self, method: str, *args: Any, **kwargs: Any) -> Any:
        result = await super().run(method, *args, **kwargs)
        if method == self.after:
            await self.change(await self._hf.session("s"))  # type: ignore[union-attr]
        return result


async def pop(handle: Any) -> None:
    await handle.pop()


async def append(handle: Any) -> None:
    await handle.append({"role": "user", "content": "From elsewhere."})


async def clear(handle: Any) -> None:
    await handle.clear()


@pytest.mark.parametrize("change", [pop, append, clear])
@pytest.mark.parametrize("after", ["context", "entries"])
@pytest.mark.parametrize("limit", [None, 5])
async def test_a_log_that_changes_while_a_prompt_is_built_gives_a_valid_prompt(
    limit: int | None, after: str, change: Callable[[Any], Any]
) -> None:
    async with holdfast.open(MEMORY) as hf:
        items = [item for number in range(12) for item in make_turn(number, 2, 30, reasoning=True)]
        await HoldfastSession(hf, "s").add_items([*items, {"role": "user", "content": "Now?"}])
        session = ChangingSession(hf, "s")
        session.after = ""
        reader = RunContextWrapper(None)
        read = await session.get_items(limit=limit, wrapper=reader)
        session.after, session.change = after, change
        read = [item for item in read if limit is None or "output" not in item]
        data: Any = CallModelData(ModelInputData(read, None), Agent("a"), None)
        made: Any = await working_set_filter(session, budget=1_000)(data)
        check_prompt(made)
        assert made.input[-1] == {"role": "user", "content": "Now?"}
        assert "From elsewhere." not in str(made.input)


async def test_a_limit_that_cuts_a_reply_leaves_the_reply_whole() -> None:
    async with holdfast.open(MEMORY) as hf:
        items = [item for number in range(3) for item in make_turn(number, 2, 10, reasoning=True)]
        session = await open_session(hf, items=items)
        for limit in range(1, len(items)):
            reader = RunContextWrapper(None)
            read = await session.get_items(limit=limit, wrapper=reader)
            data: Any = CallModelData(ModelInputData(read, None), Agent("a"), None)
            made: Any = await working_set_filter(session, budget=4_000)(data)
            check_prompt(made)
            assert made.input == items
