"""The plain OpenAI client through the gateway: it sends new messages, and the session has the rest.

Needs a running `holdfast serve`, and `pip install openai`. The program does not import Holdfast: any OpenAI client works.
"""

from __future__ import annotations

import json
import os
import uuid
from typing import Any
from urllib.request import urlopen

from openai import OpenAI

GATEWAY = os.environ.get("HOLDFAST_URL", "http://127.0.0.1:8377")

# The gateway needs no key on this machine, but the client insists on one. The server has the model's key.
# Use a new user for each run: without a session id, the gateway cannot distinguish two conversations of one user with
# the same words. So a client that does not name its session should at least name its user.
USER = f"traveller-{uuid.uuid4().hex[:8]}"
client = OpenAI(base_url=f"{GATEWAY}/v1", api_key="unused")


def ask(messages: list[Any], **more: Any) -> Any:
    """Send one request. `default` is the model that the server is configured with."""
    return client.chat.completions.create(model="default", messages=messages, user=USER, **more)


def show(what: str, session: dict[str, Any]) -> None:
    """Print what the client sent, and how many messages the model received."""
    print(f"turn {session['turn']}: {what}; the model received {session['working_set']['messages']}")


def main() -> None:
    """Have a conversation of four turns, continued in three ways."""
    # Without a `session_id` the gateway creates a session and returns its id.
    opening = {"role": "user", "content": "Book me a flight to Oslo on May 20."}
    first = ask([opening])
    session_id = first.session_id
    print(f"session {session_id}")
    show("sent 1 message", first.session)

    # From now on, send the id and one new message: the model sees the whole conversation.
    wish = {"role": "user", "content": "A window seat, please."}
    second = ask([wish], extra_body={"session_id": session_id})
    show("sent 1 message", second.session)

    # Streaming works too, and the id may be a header. The last chunk has the data on the session.
    question = {"role": "user", "content": "What do you see?"}  # the offline model lists what it received
    pieces: list[str] = []
    for chunk in ask([question], stream=True, extra_headers={"X-Session-Id": session_id}):
        pieces.append(chunk.choices[0].delta.content or "")
        if chunk.choices[0].finish_reason:
            show(f"sent 1 message, read {len(pieces)} pieces", chunk.session)
    print("".join(pieces))

    # A client that knows nothing of sessions resends the whole conversation. The gateway recognises the session by it.
    replies = [one.choices[0].message for one in (first, second)]
    seen = [opening, replies[0], wish, replies[1], question, {"role": "assistant", "content": "".join(pieces)}]
    last = ask([*seen, {"role": "user", "content": "And a vegetarian meal."}])
    show(f"sent {len(seen) + 1} messages and no session id", last.session)
    print("recognised:", last.session_id == session_id)

    # The log has each message once, however it was sent.
    with urlopen(f"{GATEWAY}/v1/sessions/{session_id}/messages?user_id={USER}") as answer:
        log = json.load(answer)["data"]
    print(f"the log has {len(log)} messages:", " ".join(entry["role"] for entry in log))


if __name__ == "__main__":
    main()
