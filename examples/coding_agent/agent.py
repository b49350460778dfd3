"""A coding agent: the model writes Python, it runs in a process of the session's own, and files become artifacts.

Needs Linux with Landlock and seccomp, which keep the code from network, other processes and files but its own; `holdfast doctor`
tells whether your system has them, and docs/python.md what they do not keep it from.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import holdfast

CONFIG = Path(__file__).with_name("holdfast.yaml")
REAL = "OPENAI_API_KEY" in os.environ
"""Whether a real model writes the code. The offline one calls the tool with the code below."""

DRAFT = """
def slug(text):
    return text.lower().replace(" ", "-")

assert slug("Hello, World") == "hello-world", slug("Hello, World")
"""
MENDED = """
source = '''import re

def slug(text):
    return "-".join(re.findall("[^ ,.]+", text.lower()))
'''
exec(source)
assert slug("Hello, World") == "hello-world", slug("Hello, World")
with open("slug.py", "w") as file:
    print(source, end="", file=file)
"""
STEPS = [
    # Each step: what a real model is asked, and what the offline one runs instead.
    ("Write slug(text), which makes 'hello-world' of 'Hello, World', and test it.", DRAFT),
    ("Mend it if it fails, and save it as slug.py.", MENDED),
    ("What is slug('Zwei Wörter')? Use the function that you have.", "slug('Zwei Wörter')"),
    ("Now try to read /etc/passwd with Python.", "open('/etc/passwd').read()"),
]


async def main() -> None:
    """Four turns of one session: a failure, its repair, a variable that is still there, and what is refused."""
    async with holdfast.from_config(CONFIG) as hf:
        session = await hf.session(user_id="ada", agent="coder")
        for request, code in STEPS:
            print(f"\n== {request}")
            before = len(await session.messages())
            reply = await session.send(request if REAL else f"call python {json.dumps({'code': code})}")
            # Calls and results are in the log: an exception is a result like any other, the model reads it and goes on.
            for message in (await session.messages())[before:]:
                if message["role"] == "tool":
                    show(json.loads(message["content"]))
            if REAL:
                print(reply["choices"][0]["message"]["content"])

        print("\n== What is kept of it")
        for artifact in await session.artifacts.list():
            kept = await session.artifacts.load(artifact.name)
            print(f"{artifact.name}, version {artifact.version}, by {artifact.author}:\n{kept.data.decode()}")


def show(result: dict[str, object]) -> None:
    """What the model is told of a call: its status, and the end of what came of it."""
    told = [f"python: {result['status']}"]
    for field in ("result", "stdout", "exception"):
        if result.get(field):
            told.append(f"{field} {str(result[field]).splitlines()[-1]}")
    if files := result.get("files"):
        assert isinstance(files, list)
        told.append(f"files {', '.join(one['name'] for one in files)}")
    print("; ".join(told))


if __name__ == "__main__":
    asyncio.run(main())
