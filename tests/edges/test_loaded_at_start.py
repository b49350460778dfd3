"""The modules that the first model call needs are loaded before the server answers a request."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys
from holdfast.config.loader import load_settings
from holdfast.server import run
from holdfast.tokens import CL100K, O200K

async def startup(self, *arguments, **more):
    print("aiohttp" in sys.modules, CL100K.is_loaded, O200K.is_loaded)
    self.should_exit = True

run._Server.startup = startup
env = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": "unused"}
run.serve(load_settings({"model": "gpt-4o", "port": 0, "store": "sqlite://:memory:"}, env))
"""


def test_first_call_loads_nothing_large() -> None:
    """Regression: it blocked all clients for 0.3 s, and the first count of another tokenizer for 1 to 2 s."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True"] * 3, done.stderr
