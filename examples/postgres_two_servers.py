"""Two servers on one PostgreSQL: each of them can answer every session, and nothing is lost when one is killed.

Needs `pip install '.[postgres]'` in a clone and `HOLDFAST_STORE=postgresql://…`. The program starts both servers itself; in production,
put a load balancer in front of them. It needs no sticky sessions. (Only the tool `python` keeps something in one server's memory.)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen
from uuid import uuid4

SESSION = f"order-{uuid4().hex[:8]}"


class Server:
    """`holdfast serve` in its own process. Both servers take the store and the model's key from the environment."""

    def __init__(self, name: str) -> None:
        self.name = name
        command = [sys.executable, "-m", "holdfast", "serve", "--port", "0"]  # 0: any free port
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()  # "Holdfast listens on http://127.0.0.1:…"
        if not line:
            raise SystemExit(f"server {name} does not start; `holdfast doctor` says why")
        self.url = line.split()[-1]
        print(f"server {name} listens")

    def kill(self) -> None:
        """End the server as a power cut would, without a signal that it can handle."""
        self.process.kill()
        self.process.wait()


def ask(server: Server, path: str, body: dict[str, Any] | None = None, key: str = "") -> Any:
    """Send one request, with an `Idempotency-Key` if there is one."""
    headers = {"content-type": "application/json", **({"Idempotency-Key": key} if key else {})}
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(server.url + path, data=data, headers=headers), timeout=120) as answer:
        return json.load(answer)


def say(text: str, *servers: Server) -> tuple[str, Any]:
    """Run one turn on the first server that answers. The key is the same for all of them, so that no turn runs twice."""
    key = uuid4().hex
    for server in servers:
        try:
            body = {"session_id": SESSION, "messages": [{"role": "user", "content": text}]}
            return server.name, ask(server, "/v1/chat/completions", body, key)
        except (URLError, ConnectionError):
            print(f"  server {server.name} is gone, asking the next one")
    raise SystemExit("no server answers")


def show(name: str, reply: Any) -> None:
    """Print which server answered, and how many messages its model received."""
    session = reply["session"]
    print(f"turn {session['turn']} at {name}: the model received {session['working_set']['messages']} messages")


def main() -> None:
    """Run turns on both servers, many at the same time; kill one server, and check the log."""
    if not os.environ.get("HOLDFAST_STORE", "").startswith("postgresql://"):
        raise SystemExit("set HOLDFAST_STORE=postgresql://user:password@host/database")
    with ExitStack() as stack:
        servers = [Server(name) for name in "AB"]
        for server in servers:
            stack.callback(server.kill)
        one, other = servers

        said = ["Where is my order 7461?", "It was a kettle.", "A red one."]
        for number, text in enumerate(said):
            show(*say(text, servers[number % 2]))

        # Ten at the same time, half of them on each server. Turns of one session wait for each other across all servers.
        crowd = [f"Question {number}" for number in range(10)]
        with ThreadPoolExecutor(len(crowd)) as pool:
            turns = list(pool.map(lambda at: say(crowd[at], servers[at % 2])[1]["session"]["turn"], range(len(crowd))))
        print("ten turns at once, in the order of the session:", sorted(turns))

        one.kill()
        print("server A is killed")
        show(*say("Are you still there?", one, other))

        log = ask(other, f"/v1/sessions/{SESSION}/messages?limit=1000")["data"]
        mine = [entry["content"] for entry in log if entry["role"] == "user"]
        wanted = [*said, *crowd, "Are you still there?"]
        print("every message is in the log once:", sorted(mine) == sorted(wanted))
        print("each is followed by its reply:", [entry["role"] for entry in log] == ["user", "assistant"] * len(wanted))
        print(f"session {SESSION}: {len(log)} messages")


if __name__ == "__main__":
    main()
