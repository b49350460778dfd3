"""The modules that the first model call needs are loaded before the server answers a request."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys
from holdfast.config import ServerSettings, load
from holdfast.server import run
from holdfast.tokens import CL100K, O200K

async def startup(self, *arguments, **more):
    print("aiohttp" in sys.modules, CL100K.is_loaded, O200K.is_loaded)
    self.should_exit = True

run._Server.startup = startup
found = load("llms: {default: {base_url: 'http://127.0.0.1:9/v1', model: gpt-4o, api_key: unused}}", env={})
run.serve(ServerSettings(found, None, "127.0.0.1", 0, "sqlite://:memory:"))
"""


def test_first_call_loads_nothing_large() -> None:
    """Regression: it blocked all clients for 0.3 s, and the first count of another tokenizer for 1 to 2 s."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True"] * 3, done.stderr
