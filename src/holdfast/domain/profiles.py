"""Rules of upstreams as data: one table for all providers.

OpenAI's own rules are the loosest ones. Other providers and chat templates refuse requests that OpenAI accepts, and a refused history makes
each later request of its session fail. `holdfast.context.fitting` makes a prompt fit a profile, `holdfast.media.outgoing` describes the
media that a profile does not have, and `holdfast.models.refusals` reads from a refusal which rule of its profile was wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from holdfast.domain.medium import KINDS, Kind
from holdfast.hosts import is_loopback

ProfileName = Literal[
    "openai", "azure", "gemini", "mistral", "deepseek", "groq", "openrouter",
    "together", "ollama", "vllm", "llama.cpp", "litellm", "bedrock", "generic",
]  # fmt: skip
MEGABYTE: Final = 1024 * 1024
MEDIA_LIMITS: Final = ("max_images", "max_image_bytes", "max_media_bytes")
MEDIA_FIELDS: Final = ("inputs", *MEDIA_LIMITS)
"""Fields of a profile that say which media a model takes."""
KINDS_TAKEN: Final[frozenset[Kind]] = frozenset(KINDS.values())
"""The kinds of media of a profile whose `inputs` is None."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Rules of one kind of upstream."""

    name: ProfileName | Literal["anthropic", "custom"]
    is_native: bool = False
    """Its API is not Chat Completions. Roles are as with a `template`, but the codec of the API merges neighbours and converts fields."""
    chosen_by: Literal["default", "base_url", "profile"] = "default"
    """The key of the llm that chose it. `default`: the address is not known."""
    developer: bool = False
    """The role `developer` is known. Otherwise such messages get the role `system`."""
    template: bool = True
    """Roles are those of a chat template: one system message, which is the first; then user and assistant in turns, beginning with the
    user, where a round of tools belongs to the assistant. A later system message is one of the user that says so. Content that has only
    texts is one string."""
    system: bool = True
    """The role `system` is known. Otherwise the user's first message begins with the system prompt."""
    calls: Literal["several", "single", "none"] = "several"
    """Number of calls that a reply may have. If none, calls and results become words."""
    answers_results: bool = True
    """With roles of a template, a reply must stand between results of tools and a message of the user."""
    ends_with_user: bool = False
    """A prompt must not end with a reply."""
    nine: bool = False
    """Ids of calls have nine letters and digits, as Mistral's chat templates want. Otherwise they have letters, digits, `_` and `-`."""
    id_length: int = 40
    """Maximum characters of an id of a call."""
    distinct_ids: bool = False
    """Each id of a call occurs once in a prompt."""
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
    cache_key: bool | None = None
    """`prompt_cache_key` is part of each request (True), or refused (False). None: it is sent only if a client did."""
    refused: frozenset[str] = frozenset()
    """Fields of messages that the upstream refused."""
    required: frozenset[str] = frozenset()
    """Fields that replies with calls must have: an empty `reasoning_content` (DeepSeek), or a `thought_signature` (Gemini)."""
    media_in_results: bool = False
    """Results of tools may contain media. Otherwise these are in a message of the user after the results."""
    declares: bool = False
    """Tools must be declared if the history has calls of them."""
    inputs: frozenset[str] | None = None
    """Kinds of content, as in `Llm.inputs`. None: all."""
    max_images: int | None = None
    """Images of one prompt. None, here and below: no limit is known."""
    max_image_bytes: int | None = None
    """Bytes of one image as it is sent, in base64."""
    max_media_bytes: int | None = None
    """Bytes of all media together as they are sent, in base64."""

    @property
    def before_the_end(self) -> Profile:
        """The same without the rules for the end of a prompt: its last role, and signed calls in the current round."""
        required = self.required - {"thought_signature"}
        return msgspec.structs.replace(self, ends_with_user=False, required=required)


REPLY_FIELDS: Final = frozenset(
    {
        *("refusal", "annotations", "audio", "function_call", "images", "reasoning_content", "reasoning"),
        *("reasoning_details", "thinking_blocks", "content_blocks", "provider_specific_fields", "extra_content"),
    }
)
"""Fields of replies that belong to the upstream that made them."""
_REASONING: Final = frozenset({"reasoning_content", "reasoning"})
_PICTURES: Final = frozenset({"text", "image"})

_OPENAI: Final = Profile(
    # platform.openai.com, "Create chat completion": all roles at any place; ids of at most 40 characters; `prompt_cache_key`.
    name="openai",
    developer=True,
    template=False,
    null=True,
    blank=True,
    fields=frozenset({"refusal", "audio", "function_call"}),
    cache_key=True,
    # "Images and vision": 500 images and 50 MB a request. A limit of requests includes text, so media get seven eighths of it.
    max_images=500,
    max_media_bytes=43 * MEGABYTE,
)
ANTHROPIC: Final = Profile(
    # docs.claude.com, "Handling stop reasons" and "Extended thinking": the user begins and ends; consecutive replies are one turn, which
    # begins with its signed reasoning; ids are unique. Bedrock, "ToolUseBlock": ids of at most 64 characters.
    # "Vision" and "Errors": 100 images of 5 MB, and 32 MB a request. All providers of Claude have these limits.
    name="anthropic",
    is_native=True,
    answers_results=False,
    ends_with_user=True,
    id_length=64,
    distinct_ids=True,
    max_images=100,
    max_image_bytes=5 * MEGABYTE,
    max_media_bytes=28 * MEGABYTE,
)
GEMINI: Final = Profile(
    # ai.google.dev, "Function calling": turns alternate, and Gemini 3 ignores other parts in the turn of the results.
    name="gemini",
    is_native=True,
    ends_with_user=True,
    id_length=64,
    distinct_ids=True,
)
_ALL: Final = (
    _OPENAI,
    # learn.microsoft.com, "Azure OpenAI REST API reference": as OpenAI. "Quotas and limits": 50 images.
    msgspec.structs.replace(_OPENAI, name="azure", max_images=50),
    # A receiver of voice records (`vendor: custom`) gets messages as they are in the log.
    msgspec.structs.replace(_OPENAI, name="custom", media_in_results=True, cache_key=None),
    # ai.google.dev, "OpenAI compatibility" and "Thought signatures": the signature is in a call's `extra_content`. "Image
    # understanding": 3,600 images; 20 MB of inline data.
    Profile(
        name="gemini",
        required=frozenset({"thought_signature"}),
        fields=frozenset({"extra_content"}),
        max_images=3_600,
        max_media_bytes=17 * MEGABYTE,
    ),
    # docs.mistral.ai, "Chat completion"; errors 3230 (order of roles) and 3280 (ids) of its API; closed objects (422).
    # "Vision": 8 images.
    Profile(name="mistral", ends_with_user=True, nine=True, names=False, closed=True, cache_key=False, max_images=8),
    # api-docs.deepseek.com, "Thinking mode": `reasoning_content` beside calls goes back. "Create chat completion": text only.
    Profile(
        name="deepseek",
        null=True,
        required=frozenset({"reasoning_content"}),
        fields=frozenset({"reasoning_content"}),
        inputs=frozenset({"text"}),
    ),
    # console.groq.com, "API reference": fields that it does not list are errors. "Images and vision": 5 images, 4 MB of base64.
    Profile(
        name="groq",
        null=True,
        names=False,
        closed=True,
        cache_key=False,
        inputs=_PICTURES,
        max_images=5,
        max_media_bytes=4 * MEGABYTE,
    ),
    # openrouter.ai, "Reasoning tokens": details go back as they came.
    Profile(
        name="openrouter",
        developer=True,
        template=False,
        null=True,
        fields=_REASONING | {"reasoning_details", "annotations", "images"},
    ),
    # docs.together.ai, "Chat overview": the templates of open models.
    Profile(name="together", nine=True, fields=_REASONING),
    # github.com/ollama/ollama, docs/openai.md: content must be text or parts, which are texts and images.
    Profile(name="ollama", nine=True, fields=_REASONING, inputs=_PICTURES),
    # docs.vllm.ai, "OpenAI-compatible server": the model's own chat template decides. "Multimodal inputs": no files.
    Profile(name="vllm", nine=True, fields=_REASONING, inputs=_PICTURES | {"audio", "video"}),
    # github.com/ggml-org/llama.cpp, tools/server: the same, without videos.
    Profile(name="llama.cpp", nine=True, fields=_REASONING, inputs=_PICTURES | {"audio"}),
    # docs.litellm.ai: converts for each provider; for Bedrock and Anthropic, calls in the history need their tools, and ids are unique.
    Profile(
        name="litellm",
        declares=True,
        distinct_ids=True,
        null=True,
        fields=_REASONING | {"thinking_blocks", "provider_specific_fields"},
    ),
    # docs.aws.amazon.com, "Converse": blank text is refused, the user begins, calls need their tools. "ImageBlock": 20
    # images of 3.75 MB each.
    Profile(
        name="bedrock",
        distinct_ids=True,
        ends_with_user=True,
        declares=True,
        closed=True,
        cache_key=False,
        max_images=20,
        max_image_bytes=5 * MEGABYTE,
    ),
    # An unknown address: strict where that costs nothing.
    Profile(name="generic", nine=True, fields=_REASONING),
)
PROFILES: Final[Mapping[str, Profile]] = {profile.name: profile for profile in (*_ALL, ANTHROPIC)}
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
_GEMMA: Final = re.compile(r"gemma-?[123](?!\d)")
"""Models without a system prompt, according to their chat templates and the errors of Google's API."""


def find_profile(base_url: str, dialect: str = "openai") -> Profile:
    """Return the profile of the upstream at an address. An address that is not known has the profile `generic`, or that of its dialect."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    known = next((name for end, name in _HOSTS.items() if host == end or host.endswith(f".{end}")), None)
    if known is None and host.startswith("bedrock-runtime."):
        known = "bedrock"
    if known is None and dialect == "anthropic":
        return ANTHROPIC
    if parts.port == _OLLAMA_PORT:
        known = known or "ollama"
    found = msgspec.structs.replace(PROFILES[known], chosen_by="base_url") if known else PROFILES["generic"]
    # Servers on one's own machine, such as LiteLLM's proxy or vLLM, ignore fields that they do not know.
    return msgspec.structs.replace(found, cache_key=True) if is_loopback(host) else found


def get_profile(model: object) -> Profile | None:
    """Return the profile of a model's client, or None if it has none."""
    found = getattr(model, "profile", None)
    return found if isinstance(found, Profile) else None


def for_model(
    profile: Profile, model: str, *, inputs: Collection[str] | None = None, cache_key: bool | None = None
) -> Profile:
    """Return the profile for one model of an upstream.

    Args:
        profile: What the upstream accepts.
        model: Name of the model at the upstream.
        inputs: Kinds of content in the configuration. None: those of the profile.
        cache_key: Value of the configuration. None: that of the profile.
    """
    if _GEMMA.search(model.lower()):
        profile = msgspec.structs.replace(profile, system=False)
    if "claude" in model.lower():
        names = ("distinct_ids", *(MEDIA_LIMITS if profile.max_images is None else ()))
        profile = msgspec.structs.replace(profile, **{name: getattr(ANTHROPIC, name) for name in names})
    if cache_key is not None:
        profile = msgspec.structs.replace(profile, cache_key=cache_key)
    return profile if inputs is None else msgspec.structs.replace(profile, inputs=frozenset(inputs))


def list_changes(profile: Profile, usual: Profile) -> str:
    """Return the fields in which a profile differs from `usual`, in one line, for people."""
    changed = []
    for name in profile.__struct_fields__:
        value, before = getattr(profile, name), getattr(usual, name)
        if name == "inputs" and value != before:
            changed.append(f"takes no {', '.join(sorted((KINDS_TAKEN if before is None else before) - value))}")
        elif value != before:
            changed.append(f"{name}={', '.join(sorted(value)) if isinstance(value, frozenset) else value}")
    return "; ".join(changed)
