"""A coding agent: the model writes Python, the code runs in a process of its session, and files become artifacts.

Needs Linux with Landlock and seccomp, which block the network, other processes and all files except the session's. `holdfast doctor`
checks whether your system has them. docs/python.md#the-sandbox says what they do not block.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import holdfast

CONFIG = Path(__file__).with_name("holdfast.yaml")
REAL = "OPENAI_API_KEY" in os.environ
"""True if a real model writes the code. The offline model calls the tool with the code below."""

DRAFT = """
def slug(text):
    return text.lower().replace(" ", "-")

assert slug("Hello, World") == "hello-world", slug("Hello, World")
"""
FIXED = """
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
    # Each step: the request to a real model, and the code that the offline model runs instead.
    ("Write slug(text), which makes 'hello-world' of 'Hello, World', and test it.", DRAFT),
    ("Fix it if it fails, and save it as slug.py.", FIXED),
    ("What is slug('Zwei Wörter')? Use the function that you have.", "slug('Zwei Wörter')"),
    ("Now try to read /etc/passwd with Python.", "open('/etc/passwd').read()"),
]


async def main() -> None:
    """Run four turns of one session: a failure, its fix, a function that is still defined, and a refused file access."""
    async with holdfast.from_config(CONFIG) as hf:
        session = await hf.session(user_id="ada", agent="coder")
        for request, code in STEPS:
            print(f"\n== {request}")
            before = len(await session.messages())
            reply = await session.send(request if REAL else f"call python {json.dumps({'code': code})}")
            # Calls and results are in the log. An exception is a result like any other: the model reads it and continues.
            for message in (await session.messages())[before:]:
                if message["role"] == "tool":
                    show(json.loads(message["content"]))
            if REAL:
                print(reply["choices"][0]["message"]["content"])

        print("\n== The artifacts that stay")
        for artifact in await session.artifacts.list():
            kept = await session.artifacts.load(artifact.name)
            print(f"{artifact.name}, version {artifact.version}, by {artifact.author}:\n{kept.data.decode()}")


def show(result: dict[str, object]) -> None:
    """Print what the model sees of a call: its status and the last line of each output."""
    parts = [f"python: {result['status']}"]
    for field in ("result", "stdout", "exception"):
        if result.get(field):
            parts.append(f"{field} {str(result[field]).splitlines()[-1]}")
    if files := result.get("files"):
        assert isinstance(files, list)
        parts.append(f"files {', '.join(one['name'] for one in files)}")
    print("; ".join(parts))


if __name__ == "__main__":
    asyncio.run(main())
