"""What OpenAI-compatible upstreams accept, as data, and the function that makes a request fit.

OpenAI's own rules are the loosest ones. Other providers and chat templates refuse requests that OpenAI accepts, and a refused history makes
each later request of its session fail. `fit_request` therefore changes a request in the same way every time, so that prompts keep their
beginning and a provider's cache holds. `learn` reads from a refusal which rule of its profile was wrong.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from holdfast.context.dialects import CLOSING, OPENING, RECEIVED, SYSTEM_NOTE, parse_arguments
from holdfast.context.units import EMPTY

Json = dict[str, Any]
ProfileName = Literal[
    "openai", "azure", "gemini", "mistral", "deepseek", "groq", "openrouter",
    "together", "ollama", "vllm", "llama.cpp", "litellm", "bedrock", "generic",
]  # fmt: skip
NO_OUTPUT: Final = "(no output)"
"""Text that replaces a blank result of a tool."""
ENDED: Final = "This tool was used earlier in the conversation. It is not available any more."
"""Description of a tool that is declared only because the history has calls of it."""
NO_SIGNATURE: Final = "skip_thought_signature_validator"
"""Google's replacement for the thought signature of a call that another model made (ai.google.dev, "Thought signatures")."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of upstream accepts."""

    name: ProfileName
    developer: bool = False
    """The role `developer` is known. Otherwise such messages get the role `system`."""
    template: bool = True
    """Roles are those of a chat template: one system message, which is the first; then user and assistant in turns, beginning with the
    user, where a round of tools belongs to the assistant. A later system message is one of the user that says so."""
    ends_with_user: bool = False
    """A prompt must not end with a reply."""
    nine: bool = False
    """Ids of calls have nine letters and digits. Otherwise they have at most 40 letters, digits, `_` and `-`."""
    null: bool = False
    """The content of a message with calls may be null."""
    blank: bool = False
    """Texts without a visible character are accepted."""
    names: bool = True
    """Messages may have a `name`. Otherwise the text begins with it."""
    fields: frozenset[str] = frozenset()
    """The `REPLY_FIELDS` that go back to the upstream."""
    closed: bool = False
    """Fields of messages that its API does not have are refused."""
    refused: frozenset[str] = frozenset()
    """Fields of messages that the upstream refused, from `learn`."""
    required: frozenset[str] = frozenset()
    """Fields that replies with calls must have: an empty `reasoning_content` (DeepSeek), or a `thought_signature` (Gemini)."""
    declares: bool = False
    """Tools must be declared if the history has calls of them."""


REPLY_FIELDS: Final = frozenset(
    {
        *("refusal", "annotations", "audio", "function_call", "images", "reasoning_content", "reasoning"),
        *("reasoning_details", "thinking_blocks", "content_blocks", "provider_specific_fields", "extra_content"),
    }
)
"""Fields of replies that belong to the upstream that made them."""
_REASONING: Final = frozenset({"reasoning_content", "reasoning"})
_SEALED: Final = "reasoning_details"
_OF_CALLS: Final = frozenset({"extra_content", "provider_specific_fields", "thought_signature", "index"})

_OPENAI: Final = Profile(
    # platform.openai.com, "Create chat completion": all roles at any place; ids of at most 40 characters.
    name="openai",
    developer=True,
    template=False,
    null=True,
    blank=True,
    fields=frozenset({"refusal", "audio", "function_call"}),
)
_ALL: Final = (
    _OPENAI,
    # learn.microsoft.com, "Azure OpenAI REST API reference": as OpenAI.
    msgspec.structs.replace(_OPENAI, name="azure"),
    # ai.google.dev, "OpenAI compatibility" and "Thought signatures": the signature is in a call's `extra_content`.
    Profile(
        name="gemini",
        required=frozenset({"thought_signature"}),
        fields=frozenset({"extra_content"}),
    ),
    # docs.mistral.ai, "Chat completion"; errors 3230 (order of roles) and 3280 (ids) of its API; closed objects (422).
    Profile(name="mistral", ends_with_user=True, nine=True, names=False, closed=True),
    # api-docs.deepseek.com, "Thinking mode": `reasoning_content` beside calls goes back.
    Profile(
        name="deepseek",
        null=True,
        required=frozenset({"reasoning_content"}),
        fields=frozenset({"reasoning_content"}),
    ),
    # console.groq.com, "API reference": fields that it does not list are errors.
    Profile(name="groq", null=True, names=False, closed=True),
    # openrouter.ai, "Reasoning tokens": details go back as they came.
    Profile(
        name="openrouter",
        developer=True,
        template=False,
        null=True,
        fields=_REASONING | {_SEALED, "annotations", "images"},
    ),
    # docs.together.ai, "Chat overview": the templates of open models.
    Profile(name="together", fields=_REASONING),
    # github.com/ollama/ollama, docs/openai.md: content must be text or parts.
    Profile(name="ollama", fields=_REASONING),
    # docs.vllm.ai, "OpenAI-compatible server": the model's own chat template decides.
    Profile(name="vllm", fields=_REASONING),
    # github.com/ggml-org/llama.cpp, tools/server: the same.
    Profile(name="llama.cpp", fields=_REASONING),
    # docs.litellm.ai: converts for each provider; for Bedrock and Anthropic, calls in the history need their tools.
    Profile(
        name="litellm",
        declares=True,
        null=True,
        fields=_REASONING | {"thinking_blocks", "provider_specific_fields"},
    ),
    # docs.aws.amazon.com, "Converse": blank text is refused, the user begins, calls need their tools.
    Profile(name="bedrock", ends_with_user=True, declares=True, closed=True),
    # An unknown address: strict where that costs nothing.
    Profile(name="generic", fields=_REASONING),
)
PROFILES: Final[Mapping[ProfileName, Profile]] = {profile.name: profile for profile in _ALL}
_SHORT: Final = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_NINE: Final = re.compile(r"[a-zA-Z0-9]{9}")
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names of speakers that OpenAI accepts. Any other one is written before the text."""
_HOSTS: Final[Mapping[str, ProfileName]] = {
    "api.openai.com": "openai",
    "openai.azure.com": "azure",
    "cognitiveservices.azure.com": "azure",
    "services.ai.azure.com": "azure",
    "generativelanguage.googleapis.com": "gemini",
    "api.mistral.ai": "mistral",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "openrouter.ai": "openrouter",
    "api.together.xyz": "together",
    "api.together.ai": "together",
}
_OLLAMA_PORT: Final = 11434


def find_profile(base_url: str) -> Profile:
    """Return the profile of the upstream at an address; `generic` if the address is not known."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    known = next((name for end, name in _HOSTS.items() if host == end or host.endswith(f".{end}")), None)
    if known is None and host.startswith("bedrock-runtime."):
        known = "bedrock"
    return PROFILES[known or ("ollama" if parts.port == _OLLAMA_PORT else "generic")]


def describe(profile: Profile) -> str:
    """Return the name of a profile and the fields in which it differs from the one with this name, in one line."""
    usual = PROFILES[profile.name]
    changed = [
        f"{name}={', '.join(sorted(value)) if isinstance(value, frozenset) else value}"
        for name in profile.__struct_fields__
        if (value := getattr(profile, name)) != getattr(usual, name)
    ]
    return f"{profile.name}, but {'; '.join(changed)}" if changed else profile.name


def get_profile(model: object) -> Profile | None:
    """Return the profile of a model's client, or None if it has none."""
    found = getattr(model, "profile", None)
    return found if isinstance(found, Profile) else None


def fit_request(body: Mapping[str, Any], profile: Profile) -> Json:
    """Return a Chat Completions request that the upstream of `profile` accepts.

    No text is lost. The same request always becomes the same bytes, and a longer conversation begins like the shorter one.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        return dict(body)
    fitted: Json = {**body, "messages": [message for message, _ in fit_messages(messages, profile, body.get("model"))]}
    called = list(dict.fromkeys(name for message in messages for name in _iter_called(message)))
    if profile.declares and called and not body.get("tools"):
        fitted["tools"] = [_declare(name) for name in called]
    return fitted


def fit_messages(
    messages: Sequence[Mapping[str, Any]], profile: Profile, model: Any = None
) -> list[tuple[Json, list[int]]]:
    """Return the messages that are sent for `messages`, each with the indexes of the messages that it is made of.

    Args:
        messages: Messages in Chat Completions format.
        profile: What the upstream accepts.
        model: Name of the model at the upstream. Encrypted reasoning of OpenAI goes to no other vendor's models.
    """
    fitted: list[tuple[Json, list[int]]] = []
    current = _find_round(messages)
    leading = True
    for at, given in enumerate(messages):
        message = _fit_message(given, profile, model, signed=at >= current)
        if message["role"] == "system" and profile.template and not leading:
            message = {**message, "role": "user", "content": _prepend(SYSTEM_NOTE.format(tag=""), message["content"])}
        leading = leading and message["role"] == "system"
        before = fitted[-1][0]["role"] if fitted else "system"
        if profile.template and (added := _find_missing(before, message["role"])) is not None:
            fitted.append((added, []))
        if profile.template and fitted and _can_merge(fitted[-1][0], message):
            fitted[-1] = (_merge(fitted[-1][0], message), [*fitted[-1][1], at])
        else:
            fitted.append((message, [at]))
    if profile.ends_with_user and fitted and fitted[-1][0]["role"] == "assistant":
        fitted.append(({"role": "user", "content": CLOSING}, []))
    return fitted


def _find_round(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the index at which the current round of tools begins: after the user's last message."""
    return next((at for at in range(len(messages) - 1, -1, -1) if messages[at].get("role") == "user"), -1) + 1


def _find_missing(before: str, role: str) -> Json | None:
    """Return the message that must stand between two roles where user and assistant take turns; None if there is none."""
    if role == "assistant" and before == "system":
        return {"role": "user", "content": OPENING}
    if role == "user" and before == "tool":
        return {"role": "assistant", "content": RECEIVED}
    return None


def _fit_message(given: Mapping[str, Any], profile: Profile, model: Any, *, signed: bool) -> Json:
    role, content = given["role"], _fit_refusal(given, profile)
    plain = len(given) == 2 and type(content) is str and role != "developer"
    if plain and (profile.blank or (content and not content.isspace())):
        return dict(given)  # nearly every message of a long prompt
    if role == "developer" and not profile.developer:
        role = "system"
    message = {
        name: value
        for name, value in {**given, "role": role}.items()
        if _is_accepted(name, value, role, profile, model)
    }
    calls = given.get("tool_calls")
    if calls:
        message["tool_calls"] = [_fit_call(call, profile, sign=signed and at == 0) for at, call in enumerate(calls)]
        if "reasoning_content" in profile.required:
            message["reasoning_content"] = message.get("reasoning_content") or ""
    if role == "tool":
        message["tool_call_id"] = _fit_id(given["tool_call_id"], profile)
    if isinstance(content, list) and not profile.blank:
        content = [part for part in content if not _is_blank([part])]
    if content is not None or calls:
        message["content"] = content if content is not None or profile.null else ""
    if not profile.blank and not calls and _is_blank(content):
        message["content"] = NO_OUTPUT if role == "tool" else EMPTY
    if "name" in message and not (profile.names and _NAME.fullmatch(str(message["name"]))):
        message["content"] = _prepend(f"{message.pop('name')}: ", message.get("content"))
    return message


def _fit_refusal(message: Mapping[str, Any], profile: Profile) -> Any:
    """Return the content of a message, with a refusal as text if the upstream does not know refusals."""
    content = message.get("content")
    if message["role"] != "assistant" or "refusal" in profile.fields:
        return content
    if isinstance(content, list):
        return [{"type": "text", "text": part["refusal"]} if part["type"] == "refusal" else part for part in content]
    return content or message.get("refusal", content)


def _is_accepted(field: str, value: Any, role: str, profile: Profile, model: Any) -> bool:
    """Return True if a message may have this field. `name` is handled by `_fit_message`."""
    if field in ("role", "content", "tool_calls", "tool_call_id", "name"):
        return True
    if field in profile.refused or (field == _SEALED and _has_foreign_details(value, model)):
        return False
    return field in profile.fields if role == "assistant" and field in REPLY_FIELDS else not profile.closed


def _has_foreign_details(details: Any, model: Any) -> bool:
    formats = [one.get("format") for one in details if isinstance(one, Mapping)] if isinstance(details, list) else []
    return "openai-responses-v1" in formats and not str(model).startswith("openai/")


def _fit_call(call: Mapping[str, Any], profile: Profile, *, sign: bool) -> Json:
    fitted = {name: value for name, value in call.items() if name not in _OF_CALLS or name in profile.fields}
    fitted["id"] = _fit_id(call["id"], profile)
    if isinstance(function := call.get("function"), Mapping):
        own = {name: value for name, value in function.items() if name not in _OF_CALLS}
        fitted["function"] = {**own, "arguments": _fit_arguments(function.get("arguments"))}
    if sign and "thought_signature" in profile.required and "thought_signature" not in str(fitted.get("extra_content")):
        fitted["extra_content"] = {"google": {"thought_signature": NO_SIGNATURE}}
    return fitted


def _fit_arguments(text: Any) -> Any:
    """Return arguments as the text of a JSON object. Text that is one stays as it is, to the byte."""
    if not isinstance(text, str):
        return text
    made = parse_arguments(text)
    if made.get("arguments") == text or not text.strip():
        return msgspec.json.encode(made).decode()
    return text


def _fit_id(call_id: str, profile: Profile) -> str:
    if (_NINE if profile.nine else _SHORT).fullmatch(call_id):
        return call_id
    digest = hashlib.blake2b(call_id.encode(errors="replace")).hexdigest()
    return digest[:9] if profile.nine else f"call_{digest[:32]}"


def _is_blank(content: Any) -> bool:
    if isinstance(content, list):
        return all(part.get("type") == "text" and not part.get("text", "").strip() for part in content)
    return content is None or (isinstance(content, str) and not content.strip())


def _prepend(label: str, content: Any) -> Any:
    return [{"type": "text", "text": label}, *content] if isinstance(content, list) else label + (content or "")


def _can_merge(one: Json, other: Json) -> bool:
    """Return True for neighbours of one role. Nothing is added after calls, since their results follow them."""
    return one["role"] == other["role"] != "tool" and not one.get("tool_calls")


def _merge(one: Json, other: Json) -> Json:
    """Return one message with the contents and fields of both. If the names differ, each text begins with its name."""
    texts = [one["content"], other["content"]]
    merged = {**one, **other}
    if one.get("name") != other.get("name"):
        merged.pop("name")
        texts = [_prepend(f"{m['name']}: ", m["content"]) if "name" in m else m["content"] for m in (one, other)]
    texts = [text for text in texts if text] or [""]
    if all(isinstance(text, str) for text in texts):
        return {**merged, "content": "\n\n".join(texts)}
    parts = [[{"type": "text", "text": text}] if isinstance(text, str) else text for text in texts]
    return {**merged, "content": [part for content in parts for part in content]}


def _iter_called(message: Mapping[str, Any]) -> Iterable[str]:
    for call in message.get("tool_calls") or ():
        if isinstance(function := call.get("function"), Mapping):
            yield function["name"]


def _declare(name: str) -> Json:
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": ENDED, "parameters": parameters}}


# -- learning --------------------------------------------------------------------

_STATUS: Final = frozenset({400, 404, 415, 422, 500})
_WORD: Final = re.compile(r"[A-Za-z0-9_-]+")


def learn(
    profile: Profile, sent: Mapping[str, Any], error: Mapping[str, Any] | None, status: int | None
) -> Profile | None:
    """Return the profile with what a refusal says about it; None if the refusal names nothing that was sent.

    Only names count, no wording: a field of the messages, the role `developer`, a call's id, or a field that replies with calls lacked.

    Args:
        profile: The profile with which the request was made.
        sent: The refused request.
        error: The error object of the upstream.
        status: HTTP status of the refusal.
    """
    if status not in _STATUS or not error:
        return None
    named = set(_WORD.findall(msgspec.json.encode(error).decode()))
    messages = sent.get("messages") or ()
    used = {name for message in messages for name in message} - {"role", "content", "tool_calls", "tool_call_id"}
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    if refused := used & named:
        return msgspec.structs.replace(
            profile,
            refused=profile.refused | refused,
            required=profile.required - refused,
            names=profile.names and "name" not in refused,
        )
    if "developer" in named and any(message["role"] == "developer" for message in messages):
        return msgspec.structs.replace(profile, developer=False)
    if not profile.nine and "9" in named and named & {call["id"] for call in calls}:
        return msgspec.structs.replace(profile, nine=True)
    known = profile.required | profile.refused  # what was refused once is never tried again, so learning ends
    if wanted := ({"reasoning_content", "thought_signature"} & named) - known if calls else None:
        fields = profile.fields | wanted | {"extra_content"}
        return msgspec.structs.replace(profile, required=profile.required | wanted, fields=fields)
    return None
