"""How models are set up: what is refused before anything is sent."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.errors import InvalidRequest
from holdfast.models import Model, OfflineModel, OpenAIModel

KEY = "sk-test-0123456789abcdef"


def test_both_models_are_models() -> None:
    models: list[Model] = [OfflineModel(), OpenAIModel("http://localhost/v1", model="gpt")]
    assert [model.name for model in models] == ["offline", "gpt"]


@pytest.mark.parametrize(
    "url", ["", "localhost:80/v1", "ftp://host", "http://", "http://me:secret-word@host/v1", "http://h:x"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        OpenAIModel(url)
    assert "secret-word" not in str(caught.value)


@pytest.mark.parametrize("key", ["sk-\nX-Evil: 1", "schlüssel", "a\x00b"])
def test_a_key_that_no_header_can_hold_is_refused_unquoted(key: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        OpenAIModel("http://localhost/v1", key)
    assert key not in str(caught.value)


def test_the_repr_has_no_key_and_no_query() -> None:
    model = OpenAIModel("https://host/v1?token=abc", KEY, model="m")
    assert repr(model) == "OpenAIModel('m', at 'https://host')"


def test_aiohttp_is_imported_by_the_first_call_only() -> None:
    code = "import sys, holdfast.models; print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
