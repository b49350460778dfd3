"""What chat clients do with the history that they show: each behaviour is a function from a client and a random source to a request.

A behaviour returns None if the client's history is too short for it.
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
    """Return a part with an image of its own. Its bytes need not be an image."""
    return {"type": "image_url", "image_url": {"url": f"https://example.test/{name}.png"}}


def next_words(person: Person, chance: Random) -> Data:
    """Return the next user message: the common opening or some words, sometimes with an image."""
    if not person.view and chance.random() < 0.6:
        return user(OPENINGS[0])
    word = person.word()
    if chance.random() < 0.15:
        return user([{"type": "text", "text": word}, picture(word)])
    return user(word)


def has_unanswered_calls(person: Person) -> bool:
    """Return True if the history ends with calls that need results."""
    return bool(person.view and person.view[-1].get("tool_calls"))


def results(person: Person) -> list[Data]:
    """Return results of the calls at the end."""
    calls = person.view[-1].get("tool_calls") or []
    return [{"role": "tool", "tool_call_id": call["id"], "content": f"result {person.word()}"} for call in calls]


def going_on(person: Person, chance: Random) -> list[Data]:
    """Return the client's next messages."""
    return results(person) if has_unanswered_calls(person) else [next_words(person, chance)]


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
                written.append(_rename_ids(message) if rewrites and not fixed else message)
            continue
        copy = dict(message)
        if person.drops and not fixed and images(copy):
            copy["content"] = text(copy)
        elif shapes and isinstance(copy.get("content"), str) and not fixed:
            copy["content"] = _shape(copy["content"], chance)
        written.append(copy)
    return written


def _rename_ids(message: Data) -> Data:
    """Return the same calls or result with other ids, and arguments with their keys reversed."""
    if message["role"] == "tool":
        return {**message, "tool_call_id": f"toolu_{message['tool_call_id']}"}
    calls = []
    for call in message["tool_calls"]:
        arguments = dict(reversed(json.loads(call["function"]["arguments"]).items()))
        function = {**call["function"], "arguments": json.dumps(arguments, indent=1)}
        calls.append({**call, "id": f"toolu_{call['id']}", "function": function})
    return {**message, "tool_calls": calls}


def _shape(words: str, chance: Random) -> Any:
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
    """Return how much of the history comes before the last user message: open tool rounds are resent unchanged."""
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
    """Resend the whole history with the new messages, the usual behaviour."""
    new = going_on(person, chance)
    return Ask(sent=_whole(person, chance, new), view=[*person.view, *new], **_options(person, chance))


def send_new(person: Person, chance: Random) -> Ask:
    """Send only the new messages to a named session."""
    new = going_on(person, chance)
    return Ask(sent=new, view=[*person.view, *new], **_options(person, chance, named=1))


def truncate(person: Person, chance: Random) -> Ask | None:
    """Send only the last few messages."""
    shown = _visible(person)
    if has_unanswered_calls(person) or len(shown) < 4:
        return None
    new = going_on(person, chance)
    count = chance.randint(1, len(shown) - 1)
    return Ask(sent=[*shown[-count:], *new], view=[*person.view, *new], **_options(person, chance))


def compact(person: Person, chance: Random) -> Ask | None:
    """Send a summary in place of the older part."""
    shown = _visible(person)
    if has_unanswered_calls(person) or len(shown) < 6:
        return None
    new, count = going_on(person, chance), chance.randint(3, len(shown) - 2)
    summary = {"role": chance.choice(["user", "assistant"]), "content": f"Summary so far: {person.word()}"}
    return Ask(sent=[summary, *shown[-count:], *new], view=[*person.view, *new], **_options(person, chance))


def head_and_tail(person: Person, chance: Random) -> Ask | None:
    """Send the beginning and the end, with or without a note between them."""
    shown = _visible(person)
    if has_unanswered_calls(person) or len(shown) < 8:
        return None
    new, head = going_on(person, chance), chance.randint(3, len(shown) - 5)
    tail = chance.randint(3, len(shown) - head - 2)
    note = [{"role": "user", "content": f"[messages left out: {person.word()}]"}] if chance.random() < 0.5 else []
    sent = [*shown[:head], *note, *shown[-tail:], *new]
    return Ask(sent=sent, view=[*person.view, *new], **_options(person, chance))


def edit_user(person: Person, chance: Random) -> Ask | None:
    """Change an earlier user message and drop what came after it."""
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
    """Change an earlier message and keep everything after it."""
    if has_unanswered_calls(person):
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
    """Change an assistant message, and send the next message after it."""
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
    """Send the history up to the last or an earlier user message, to get another reply."""
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
    """Continue an earlier branch."""
    if not person.branches:
        return None
    at = chance.randrange(len(person.branches))
    person.view, person.branches[at] = person.branches[at], list(person.view)
    return resend_all(person, chance)


def switch_off(person: Person, chance: Random) -> Ask:
    """Start a new session with the whole history, without session matching."""
    ask = resend_all(person, chance)
    ask.named, ask.match = False, "off"
    return ask


def say_it_is_whole(person: Person, chance: Random) -> Ask:
    """`session_mode: transcript`."""
    ask = (truncate(person, chance) if chance.random() < 0.5 else None) or resend_all(person, chance)
    ask.mode = "transcript"
    return ask


def model_breaks(person: Person, chance: Random) -> Ask:
    """The model fails before its first word, or after some."""
    ask = (send_new if chance.random() < 0.4 and person.session_id else resend_all)(person, chance)
    ask.breaks = chance.randint(0, 4)
    return ask


def hang_up(person: Person, chance: Random) -> Ask:
    """The client disconnects before the answer, or during it."""
    ask = (send_new if chance.random() < 0.4 and person.session_id else resend_all)(person, chance)
    ask.stream, ask.hang_up = True, chance.randint(1, 5)
    return ask


def try_again(person: Person, chance: Random) -> Ask | None:
    """Send the same request again after a failure: the history ends with unanswered messages."""
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
