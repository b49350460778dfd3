"""What chat clients do with the history that they show: each a function from a client and a source of chance to a request.

A behaviour that a client's history is too short for answers None.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests.service.simulator.reference import images, text, visible
from tests.service.simulator.world import Ask, Person

Data = dict[str, Any]
Behaviour = Callable[[Person, Random], Ask | None]
OPENINGS = ("hi", "Hello!")
"""What most conversations begin with, and what the model answers to that."""
SYSTEMS = (None, "Be kind.", "Be brief.")


def user(content: Any) -> Data:
    return {"role": "user", "content": content}


def picture(name: str) -> Data:
    """A part with an image of its own. Its bytes need not be one."""
    return {"type": "image_url", "image_url": {"url": f"https://example.test/{name}.png"}}


def next_words(person: Person, chance: Random) -> Data:
    """The next message of a user: the common opening, some words, some with an image."""
    if not person.view and chance.random() < 0.6:
        return user(OPENINGS[0])
    word = person.word()
    if chance.random() < 0.15:
        return user([{"type": "text", "text": word}, picture(word)])
    return user(word)


def unanswered(person: Person) -> bool:
    """Whether the history ends with calls that want results."""
    return bool(person.view and person.view[-1].get("tool_calls"))


def results(person: Person) -> list[Data]:
    """Results of the calls at the end."""
    calls = person.view[-1].get("tool_calls") or []
    return [{"role": "tool", "tool_call_id": call["id"], "content": f"result {person.word()}"} for call in calls]


def going_on(person: Person, chance: Random) -> list[Data]:
    """What the client has to say now."""
    return results(person) if unanswered(person) else [next_words(person, chance)]


# -- how a history is written down ------------------------------------------------


def as_clients_write(person: Person, view: list[Data], chance: Random, *, from_: int = 0) -> list[Data]:
    """The history as one client or another keeps it: tool messages or none, other ids, other shapes of the same words.

    Args:
        person: whose it is.
        view: the history, or a part of it.
        chance: decides.
        from_: messages from there on are left as they are: what is open, and what is new.
    """
    keeps_tools, rewrites, shapes = (chance.random() < share for share in (0.5, 0.5, 0.3))
    written: list[Data] = []
    for at, message in enumerate(view):
        fixed = at >= from_
        if not visible(message):
            if keeps_tools or fixed:
                written.append(_renamed(message) if rewrites and not fixed else message)
            continue
        copy = dict(message)
        if person.drops and not fixed and images(copy):
            copy["content"] = text(copy)
        elif shapes and isinstance(copy.get("content"), str) and not fixed:
            copy["content"] = _shaped(copy["content"], chance)
        written.append(copy)
    return written


def _renamed(message: Data) -> Data:
    """The same calls or result under other ids, arguments with their keys turned round."""
    if message["role"] == "tool":
        return {**message, "tool_call_id": f"toolu_{message['tool_call_id']}"}
    calls = []
    for call in message["tool_calls"]:
        arguments = dict(reversed(json.loads(call["function"]["arguments"]).items()))
        function = {**call["function"], "arguments": json.dumps(arguments, indent=1)}
        calls.append({**call, "id": f"toolu_{call['id']}", "function": function})
    return {**message, "tool_calls": calls}


def _shaped(words: str, chance: Random) -> Any:
    at = chance.randrange(len(words) + 1)
    shapes: list[Any] = [
        f"{words} \n",
        [{"type": "text", "text": words}],
        [part for part in ({"type": "text", "text": words[:at]}, {"type": "text", "text": words[at:]}) if part["text"]],
    ]
    return chance.choice(shapes)


def _visible(person: Person) -> list[Data]:
    return [message for message in person.view if visible(message)]


def _settled(person: Person) -> int:
    """How much of the history is behind the last user message: open rounds of tools are resent as they are."""
    return next((at for at in range(len(person.view) - 1, -1, -1) if person.view[at]["role"] == "user"), 0)


def _options(person: Person, chance: Random, *, named: float = 0.5) -> dict[str, Any]:
    return {
        "named": chance.random() < named,
        "stream": chance.random() < 0.3,
        "system": chance.choice(SYSTEMS) if chance.random() < 0.3 else SYSTEMS[0],
    }


def _whole(person: Person, chance: Random, new: list[Data]) -> list[Data]:
    return [*as_clients_write(person, person.view, chance, from_=_settled(person)), *new]


# -- behaviours -----------------------------------------------------------------------


def resend_all(person: Person, chance: Random) -> Ask:
    """The usual one: the whole history and what is new."""
    new = going_on(person, chance)
    return Ask(sent=_whole(person, chance, new), view=[*person.view, *new], **_options(person, chance))


def send_new(person: Person, chance: Random) -> Ask:
    """What is new alone, to a session that it names."""
    new = going_on(person, chance)
    return Ask(sent=new, view=[*person.view, *new], **_options(person, chance, named=1))


def truncate(person: Person, chance: Random) -> Ask | None:
    """The last few messages only."""
    shown = _visible(person)
    if unanswered(person) or len(shown) < 4:
        return None
    new = going_on(person, chance)
    count = chance.randint(1, len(shown) - 1)
    return Ask(sent=[*shown[-count:], *new], view=[*person.view, *new], **_options(person, chance))


def compact(person: Person, chance: Random) -> Ask | None:
    """A summary in place of the older part."""
    shown = _visible(person)
    if unanswered(person) or len(shown) < 6:
        return None
    new, count = going_on(person, chance), chance.randint(3, len(shown) - 2)
    summary = {"role": chance.choice(["user", "assistant"]), "content": f"Summary so far: {person.word()}"}
    return Ask(sent=[summary, *shown[-count:], *new], view=[*person.view, *new], **_options(person, chance))


def head_and_tail(person: Person, chance: Random) -> Ask | None:
    """The beginning and the end, with or without a note between them."""
    shown = _visible(person)
    if unanswered(person) or len(shown) < 8:
        return None
    new, head = going_on(person, chance), chance.randint(3, len(shown) - 5)
    tail = chance.randint(3, len(shown) - head - 2)
    note = [{"role": "user", "content": f"[messages left out: {person.word()}]"}] if chance.random() < 0.5 else []
    sent = [*shown[:head], *note, *shown[-tail:], *new]
    return Ask(sent=sent, view=[*person.view, *new], **_options(person, chance))


def edit_user(person: Person, chance: Random) -> Ask | None:
    """An earlier message of the user's said otherwise; what came behind it is gone."""
    places = [at for at, message in enumerate(person.view) if message["role"] == "user"]
    if not places:
        return None
    at = chance.choice(places)
    person.branches.append(list(person.view))
    kept, new = person.view[:at], [user(f"{person.word()}, edited")]
    return Ask(
        sent=[*as_clients_write(person, kept, chance, from_=at), *new], view=[*kept, *new], **_options(person, chance)
    )


def edit_in_place(person: Person, chance: Random) -> Ask | None:
    """An earlier message said otherwise, and all that came behind it left as it was."""
    if unanswered(person):
        return None
    shown = _visible(person)
    if len(shown) < 4:
        return None
    at, new = chance.randrange(len(shown) - 1), going_on(person, chance)
    changed = {"role": shown[at]["role"], "content": f"{person.word()}, changed"}
    person.branches.append(list(person.view))
    view = [*shown[:at], changed, *shown[at + 1 :], *new]
    return Ask(sent=view, view=view, **_options(person, chance))


def edit_assistant(person: Person, chance: Random) -> Ask | None:
    """Words put into the assistant's mouth, and the next message behind them."""
    places = [at for at, one in enumerate(person.view) if one["role"] == "assistant" and visible(one)]
    if not places:
        return None
    at = chance.choice(places)
    person.branches.append(list(person.view))
    changed = {"role": "assistant", "content": f"{person.word()}, put in"}
    kept, new = [*person.view[:at], changed], [user(person.word())]
    return Ask(
        sent=[*as_clients_write(person, kept, chance, from_=at), *new], view=[*kept, *new], **_options(person, chance)
    )


def regenerate(person: Person, chance: Random) -> Ask | None:
    """The history up to the user's last message, or an earlier one: another reply is wanted."""
    places = [at for at, message in enumerate(person.view) if message["role"] == "user"]
    if not places or person.view[-1]["role"] == "user":
        return None
    at = places[-1] if chance.random() < 0.7 else chance.choice(places)
    person.branches.append(list(person.view))
    kept = person.view[: at + 1]
    mode = "transcript" if chance.random() < 0.3 else "auto"
    return Ask(
        sent=as_clients_write(person, kept, chance, from_=at), view=list(kept), mode=mode, **_options(person, chance)
    )


def go_back(person: Person, chance: Random) -> Ask | None:
    """Another branch taken up again."""
    if not person.branches:
        return None
    at = chance.randrange(len(person.branches))
    person.view, person.branches[at] = person.branches[at], list(person.view)
    return resend_all(person, chance)


def switch_off(person: Person, chance: Random) -> Ask:
    """No matching: a new session with all that is sent."""
    ask = resend_all(person, chance)
    ask.named, ask.match = False, "off"
    return ask


def say_it_is_whole(person: Person, chance: Random) -> Ask:
    """`session_mode: transcript`."""
    ask = (truncate(person, chance) if chance.random() < 0.5 else None) or resend_all(person, chance)
    ask.mode = "transcript"
    return ask


def model_breaks(person: Person, chance: Random) -> Ask:
    """The model goes away before its first word, or behind some."""
    ask = (send_new if chance.random() < 0.4 and person.session_id else resend_all)(person, chance)
    ask.breaks = chance.randint(0, 4)
    return ask


def hang_up(person: Person, chance: Random) -> Ask:
    """The client goes away: before the answer, or in the middle of it."""
    ask = (send_new if chance.random() < 0.4 and person.session_id else resend_all)(person, chance)
    ask.stream, ask.hang_up = True, chance.randint(1, 5)
    return ask


def try_again(person: Person, chance: Random) -> Ask | None:
    """The same request once more, after one that failed: the history ends with what has no answer."""
    if not person.view or person.view[-1]["role"] == "assistant":
        return None
    sent = as_clients_write(person, person.view, chance, from_=_settled(person))
    return Ask(sent=sent, view=list(person.view), **_options(person, chance))


BEHAVIOURS: dict[str, Behaviour] = {
    behaviour.__name__: behaviour
    for behaviour in (
        resend_all,
        send_new,
        truncate,
        compact,
        head_and_tail,
        edit_user,
        edit_in_place,
        edit_assistant,
        regenerate,
        go_back,
        switch_off,
        say_it_is_whole,
        model_breaks,
        hang_up,
        try_again,
    )
}
