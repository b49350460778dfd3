"""What an agent is told, and what it says itself: its templates, with what the session's state and artifacts have.

A text that names nothing costs nothing here. One that does costs one read of just those keys that sessions share, and of just
those artifacts; what is the session's own is at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.agents import Agent, Voice
from holdfast.artifacts.content import text_in
from holdfast.domain.messages import Message
from holdfast.domain.session import Session, SessionRef
from holdfast.domain.state import TEMP
from holdfast.domain.templates import ARTIFACT, Template, parsed
from holdfast.engine.engine import Engine
from holdfast.errors import ArtifactNotFound, InvalidRequest
from holdfast.limits import INSTRUCTED_ARTIFACT_BYTES
from holdfast.stores.sessions import NewSession

_BETWEEN: Final = "\n\n"
"""Between the parts of an instruction."""


async def instructed(
    engine: Engine, session: Session, voice: Voice, temp: Mapping[str, Any] | None = None
) -> tuple[Message, ...]:
    """Return the system messages of the agent's model, then what the agent is told.

    That is `global_instruction` of those above it and its own, then its `instruction`, in one system message.

    Args:
        engine: of the store.
        session: as it stands.
        voice: whose it is.
        temp: what the turn has under `temp:` keys; None: it is none, and all of these may be missing.

    Returns:
        The messages; empty if there are none.

    Raises:
        MissingState: it needs state, or an artifact, that is not there; says which, and whose instruction it is.
        InvalidRequest: an artifact that it names is no text, or too long for an instruction.
    """
    parts = voice.instructions
    if not parts:
        return voice.llm.system_messages
    templates = [parsed(part.text) for part in parts]
    values = await _values(engine, session.ref, session.state, templates, temp or {})
    if temp is None:
        values = {key: "" for one in templates for key in one.keys if key.startswith(TEMP)} | values
    told = [
        template.rendered(values, agent=part.agent, what=part.what)
        for part, template in zip(parts, templates, strict=True)
    ]
    text = _BETWEEN.join(one for one in told if one)
    told_agent = (Message(role="system", content=text),) if text else ()
    return (*voice.llm.system_messages, *told_agent)


async def worded(
    engine: Engine, session: Session | NewSession, text: str, agent: Agent, temp: Mapping[str, Any] | None = None
) -> str:
    """What an agent says itself: a greeting, a failure message. What it names may be missing, as if each had a `?`.

    Nobody could mend it in the moment in which it is said, and a greeting without a name is better than none.

    Args:
        engine: of the store.
        session: in which; of one that is about to be made, what its state brings to shared scopes counts too.
        text: the template.
        agent: whose it is.
        temp: what the turn has under `temp:` keys.
    """
    template = parsed(text)
    values = await _values(engine, session.ref, session.state, [template], temp or {}, strict=False)
    return template.rendered(values, agent=agent.name, strict=False)


async def _values(
    engine: Engine,
    ref: SessionRef,
    state: Mapping[str, Any],
    templates: Sequence[Template],
    temp: Mapping[str, Any],
    *,
    strict: bool = True,
) -> dict[str, Any]:
    """What stands under the names of some templates, by name; nothing under those that are missing."""
    keys = {key: None for one in templates for key in one.keys}
    values = {key: temp.get(key) if key.startswith(TEMP) else state.get(key) for key in keys}
    values |= await engine.scopes.named(ref.user_id, [key for key in keys if values[key] is None])
    for name in dict.fromkeys(name for one in templates for name in one.artifacts):
        values[ARTIFACT + name] = await _artifact(engine, ref, name, strict=strict)
    return {key: _kept(engine, ref, key, value) for key, value in values.items() if value is not None}


def _kept(engine: Engine, ref: SessionRef, key: str, value: Any) -> Any:
    """A value without secrets: what is stored has been looked at, `temp:` keys and artifacts have not."""
    if engine.guard is None or not key.startswith((TEMP, ARTIFACT)):
        return value
    sweep = engine.guard.sweep()
    told = sweep.value(value, key, sent=False)
    engine.guard.note(sweep.findings, ref.id)
    return told


async def _artifact(engine: Engine, ref: SessionRef, name: str, *, strict: bool) -> str | None:
    """The text of an artifact; None where there is none. Raises as `_text_of`, if `strict`."""
    try:
        return await _text_of(engine, ref, name)
    except ArtifactNotFound:
        return None
    except InvalidRequest:
        if strict:
            raise
        return None


async def _text_of(engine: Engine, ref: SessionRef, name: str) -> str:
    """The text of an artifact. Raises `ArtifactNotFound`; `InvalidRequest` where it is none, or too long."""
    artifact = await engine.artifacts.get(ref, name)
    if artifact.size > INSTRUCTED_ARTIFACT_BYTES:
        most = f"an instruction takes artifacts of at most {INSTRUCTED_ARTIFACT_BYTES:,}"
        raise InvalidRequest(f"artifact {name!r} has {artifact.size:,} bytes; {most}", param="artifact")
    loaded = await engine.artifacts.load(ref, name, artifact.version)
    text = text_in(loaded.data, artifact.mime_type)
    if text is None:
        message = f"artifact {name!r} is {artifact.mime_type}: an instruction takes the text of a text artifact"
        raise InvalidRequest(message, param="artifact")
    return text
