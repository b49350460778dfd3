"""Cases that the adapter of every framework passes, with real agents, tools and a scripted model.

A test file of a framework implements `Conversation`, and inherits the tests of `AdapterCases`. docs/frameworks.md has the results.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import re
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import pytest

import holdfast
from holdfast.errors import WrongEventLoop

MEMORY = "sqlite://:memory:"
TURNS = 40
BUDGET = 1_000
IMAGE = b"\x89PNG\r\n\x1a\n" + os.urandom(2_000_000)
KILLED: Final = "HOLDFAST_TEST_KILLED_AT"
"""Environment variable: number of the order at which the tool kills the process."""


class Sent(NamedTuple):
    """A message of a prompt or of a history, with what messages of every framework have."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    text: str = ""
    """All texts, and the content of results."""
    calls: tuple[str, ...] = ()
    """Ids of the tool calls."""
    arguments: str = ""
    """Arguments of the calls."""
    results: tuple[str, ...] = ()
    """Ids of the calls that the message answers."""
    signatures: tuple[str, ...] = ()
    """Signatures of reasoning."""
    images: tuple[bytes, ...] = ()


class Conversation(ABC):
    """An agent of a framework in one session, with the tool `find` and a scripted model.

    For the question `Where is order 7?` the model signs a thought with `sig7`, and calls the tool with the id `call_7`. After the result it
    answers. It also answers questions without a number.

    Args:
        hf: an open `Holdfast`, or a portal; None: the framework's own memory, in the process.
        session: id of the session.
        budget: tokens of the working set.
    """

    def __init__(self, hf: Any, session: str = "s", budget: int = BUDGET) -> None:
        self.hf, self.session, self.budget = hf, session, budget
        self.prompts: list[list[Sent]] = []
        """The prompts of all calls of the model."""

    @abstractmethod
    async def ask(self, text: str, image: bytes | None = None) -> None:
        """Ask the agent a question, and wait until it has answered."""

    @abstractmethod
    async def read(self) -> list[Sent]:
        """Return all messages of the session."""

    async def add(self, texts: Sequence[str]) -> None:
        """Add messages of the user in one call, without the agent."""
        raise NotImplementedError

    async def pop(self) -> list[Sent]:
        """Remove one message, and return it."""
        raise NotImplementedError


def ask_for(number: int) -> str:
    return f"Where is order {number}?"


def parse_number(question: str) -> int | None:
    """Return the last number in a question. Frameworks may join the question with an earlier one that was not answered."""
    numbers = re.findall(r"\d+", question)
    return int(numbers[-1]) if numbers else None


def find(order: int) -> str:
    """Find an order."""
    if str(order) == os.environ.get(KILLED):
        os.kill(os.getpid(), signal.SIGKILL)
    return f"Order {order} is on its way, parcel {order * 17}. " * 8


def answer(number: int | str) -> str:
    """Return the model's answer after the result of a call."""
    return f"Order {str(number).removeprefix('call_')} is on its way."


def make_turn(number: int) -> list[Sent]:
    """Return the four messages of a turn."""
    return [
        Sent("user", ask_for(number)),
        Sent("assistant", calls=(f"call_{number}",), arguments=f'{{"order":{number}}}', signatures=(f"sig{number}",)),
        Sent("tool", find(number), results=(f"call_{number}",)),
        Sent("assistant", answer(number)),
    ]


def make_turns(numbers: range) -> list[Sent]:
    """Return the messages of several turns."""
    return [message for number in numbers for message in make_turn(number)]


def count_tokens(prompt: Sequence[Sent]) -> int:
    """Return the tokens of a prompt's texts and arguments, counted with o200k."""
    texts = [f"{message.text}{message.arguments}" for message in prompt]
    return holdfast.fit([{"role": "user", "content": text} for text in texts], budget=2**31).conversation_tokens


def check_prompt(prompt: Sequence[Sent]) -> None:
    """Check that each call is followed by its result, each result follows its call, and each call has its own signature."""
    waiting: list[str] = []
    for message in prompt:
        if message.role in ("user", "assistant") and not message.results:
            assert not waiting, f"no result of {waiting} before {message}"
        for result in message.results:
            waiting.remove(result)
        waiting += message.calls
        expected = [f"sig{call.removeprefix('call_')}" for call in message.calls]
        assert not message.signatures or list(message.signatures) == expected
    assert not waiting, f"no result of {waiting} at the end"


def check_next_turn(messages: Sequence[Sent], number: int) -> None:
    """Check the turn after an interrupted one. Strands adds a result for an open call to the question."""
    turn = make_turn(number)
    assert turn[0].text in messages[0].text
    assert list(messages[1:]) == turn[1:]


def run_in_thread(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine in an event loop of its own, and return its result, or the exception that it raised. It must end in 20 seconds."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(asyncio.run(call()))
        except BaseException as exc:  # noqa: BLE001 - the caller looks at it
            results.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert results, "it hangs"
    return results[0]


def find_cause(exc: BaseException | None, wanted: type[BaseException]) -> BaseException | None:
    """Return the exception of a type that an exception is, or that led to it."""
    while exc is not None and not isinstance(exc, wanted):
        exc = exc.__cause__ or exc.__context__
    return exc


def run_turns(kind: type[Conversation], url: str) -> None:
    """Ask for orders 0 to 39, as a program of its own."""

    async def run() -> None:
        async with holdfast.open(url) as hf:
            conversation = kind(hf)
            for number in range(TURNS):
                await conversation.ask(ask_for(number))

    asyncio.run(run())


class AdapterCases:
    """Tests of an adapter. Subclasses set `kind`, and in `inapplicable` the reasons why a framework cannot have a case."""

    kind: ClassVar[type[Conversation]]
    inapplicable: ClassVar[dict[str, str]] = {}
    is_bounded: ClassVar[bool] = True
    """False if the adapter stores messages, and does not choose what the model gets."""

    @pytest.fixture(autouse=True)
    def _skip_inapplicable(self, request: pytest.FixtureRequest) -> None:
        if reason := self.inapplicable.get(request.node.originalname):
            pytest.skip(reason)

    async def test_forty_turns_send_bounded_prompts_without_orphans(
        self, record_property: Callable[[str, object], None]
    ) -> None:
        tokens = []
        async with holdfast.open(MEMORY) as hf:
            for conversation in (self.kind(hf), self.kind(None)):
                for number in range(TURNS):
                    await conversation.ask(ask_for(number))
                stored = await conversation.read()
                assert [one for one in stored if one.role != "system"] == make_turns(range(TURNS))
                assert len(conversation.prompts) == 2 * TURNS
                for prompt in conversation.prompts:
                    check_prompt(prompt)
                tokens.append([count_tokens(prompt) for prompt in conversation.prompts])
        bounded, whole = tokens
        if self.is_bounded:
            assert max(bounded) < BUDGET + 300
            assert bounded[-1] * 4 < whole[-1]
        else:
            assert bounded == whole
        figures = [f"{one:,}" for one in (bounded[-1], whole[-1], sum(bounded), sum(whole))]
        record_property("figures", "last prompt {} instead of {} tokens, all prompts {} instead of {}".format(*figures))

    async def test_another_event_loop_is_refused_and_does_not_hang(self) -> None:
        async with holdfast.open(MEMORY) as hf:
            conversation = self.kind(hf)
            await conversation.ask(ask_for(1))
            raised = await asyncio.to_thread(run_in_thread, lambda: self.kind(hf).ask(ask_for(2)))
            error = find_cause(raised, WrongEventLoop)
            assert error is not None, repr(raised)
            assert "holdfast.Portal" in str(error)
            await conversation.ask(ask_for(3))
            assert await conversation.read() == [*make_turn(1), *make_turn(3)]

    async def test_a_portal_serves_several_event_loops_at_once(self, tmp_path: Path) -> None:
        portal = holdfast.Portal(f"sqlite:///{tmp_path}/chat.db").start()
        try:

            async def run(session: str) -> list[Sent]:
                conversation = self.kind(portal, session)
                for number in range(4):
                    await conversation.ask(ask_for(number))
                return await conversation.read()

            names = ("a", "b", "c")
            loops = [asyncio.to_thread(run_in_thread, functools.partial(run, name)) for name in names]
            for stored in await asyncio.gather(*loops):
                assert stored == make_turns(range(4))
        finally:
            await asyncio.to_thread(portal.close)

    async def test_a_cancelled_turn_leaves_whole_messages_and_the_agent_goes_on(self, tmp_path: Path) -> None:
        async with holdfast.open(f"sqlite:///{tmp_path}/chat.db") as hf:
            cancelled = 0
            for waits in (1, 2, 3, 4, 6, 8, 11, 15, 20, 30, 45, 60, 90, 130, 200):
                conversation = self.kind(hf, f"s{waits}")
                asking = asyncio.create_task(conversation.ask(ask_for(1)))
                for _ in range(waits):
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                cancelled += asking.cancelled()
                left = await conversation.read()
                assert left == make_turn(1)[: len(left)], waits
                again = self.kind(hf, f"s{waits}")
                await again.ask(ask_for(2))
                for prompt in again.prompts:
                    check_prompt(prompt)
                check_next_turn((await again.read())[-4:], 2)
            assert cancelled > 5

    async def test_ten_concurrent_runs_in_ten_sessions_do_not_mix(self) -> None:
        async with holdfast.open(MEMORY) as hf:
            conversations = [self.kind(hf, f"s{number}") for number in range(10)]
            await asyncio.gather(*(one.ask(ask_for(at)) for at, one in enumerate(conversations)))
            for at, one in enumerate(conversations):
                assert await one.read() == make_turn(at)

    async def test_ten_concurrent_adds_are_all_kept(self) -> None:
        async with holdfast.open(MEMORY) as hf:
            batches = [[f"First {at}.", f"Second {at}."] for at in range(10)]
            await asyncio.gather(*(self.kind(hf).add(batch) for batch in batches))
            texts = [one.text for one in await self.kind(hf).read()]
            assert sorted(texts[at : at + 2] for at in range(0, 20, 2)) == batches

    async def test_ten_concurrent_pops_return_different_messages(self) -> None:
        async with holdfast.open(MEMORY) as hf:
            texts = [f"Message {at}." for at in range(12)]
            await self.kind(hf).add(texts)
            popped = await asyncio.gather(*(self.kind(hf).pop() for _ in range(10)))
            left = [one.text for one in await self.kind(hf).read()]
            assert len(left) == 2
            assert sorted([one.text for batch in popped for one in batch] + left) == sorted(texts)

    async def test_a_2_mb_image_is_kept_and_not_counted_by_its_bytes(self) -> None:
        async with holdfast.open(MEMORY) as hf:
            conversation = self.kind(hf, budget=8_000)
            await conversation.ask("What is this?", IMAGE)
            await conversation.ask("And where is it from?")
            for messages in (*conversation.prompts, await conversation.read()):
                assert [image for one in messages for image in one.images] == [IMAGE]
                assert "What is this?" in next(one.text for one in messages if one.images)

    async def test_signatures_come_back_exactly_after_other_turns(self) -> None:
        async with holdfast.open(MEMORY) as hf:
            conversation = self.kind(hf)
            for number in range(10):
                await conversation.ask(ask_for(number))
            stored = await conversation.read()
            assert [name for one in stored for name in one.signatures] == [f"sig{number}" for number in range(10)]
            for at, prompt in enumerate(conversation.prompts[1::2]):
                assert f"sig{at}" in [name for one in prompt for name in one.signatures]
            short = self.kind(hf, budget=100_000)
            await short.ask(ask_for(10))
            signed = [name for one in short.prompts[-1] for name in one.signatures]
            assert signed == [f"sig{number}" for number in range(11)]

    async def test_a_killed_loop_goes_on(self, tmp_path: Path) -> None:
        url, kind = f"sqlite:///{tmp_path}/chat.db", self.kind
        program = (
            f"from tests.adapters.{Path(inspect.getfile(kind)).stem} import {kind.__name__} as kind;"
            "from tests.adapters.cases import run_turns;"
            f"run_turns(kind, {url!r})"
        )
        command, environment = [sys.executable, "-c", program], {**os.environ, KILLED: "25"}
        ended = await asyncio.to_thread(subprocess.run, command, env=environment, check=False, timeout=120)
        assert ended.returncode == -signal.SIGKILL
        async with holdfast.open(url) as hf:
            conversation = kind(hf)
            before = await conversation.read()
            whole = make_turns(range(25))
            assert before == [*whole, *make_turn(25)[: len(before) - len(whole)]]
            for number in range(26, TURNS):
                await conversation.ask(ask_for(number))
            for prompt in conversation.prompts:
                check_prompt(prompt)
            after = await conversation.read()
            turns = make_turns(range(27, TURNS))
            assert after[: len(whole)] == whole
            check_next_turn(after[-len(turns) - 4 : -len(turns)], 26)
            assert after[-len(turns) :] == turns
