"""Error bodies of the providers: the messages by rule, in each provider's own words, and their JSON forms."""

from __future__ import annotations

from typing import Any

from tests.providers.chat_rules import Fault, Provider

# Message templates by rule, in OpenAI's words where it has the rule. {path} is "messages[1].role" and {dots}
# "messages.1.role".
WORDS = {
    "json": "We could not parse the JSON body of your request. The API expects a JSON payload, but what was sent "
    "was not valid JSON.",
    "nul": "The request contains a null character, which is not allowed.",
    "request_bytes": "Request body too large: {size} bytes exceed the maximum of {limit} bytes.",
    "parameter": "Unrecognized request argument supplied: {name}",
    "choices": "'n' : number must be at most {limit}",
    "array_length": "Invalid '{path}': array too long. Expected an array with maximum length {limit}, but got an "
    "array with length {length} instead.",
    "max_tokens": "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
    "'max_completion_tokens' instead.",
    "metadata_count": "Invalid 'metadata': too many properties. Expected an object with at most 16 properties, but "
    "got an object with {length} properties instead.",
    "metadata_value": "Invalid 'metadata.{key}': keys have at most 64 characters and values are strings of at most "
    "512.",
    "choice": "Invalid value for '{name}': '{name}' is only allowed when 'tools' are specified.",
    "tools_needed": "Requests with tool calls in the history must declare `tools`.",
    "empty_array": "Invalid '{path}': empty array. Expected an array with minimum length 1, but got an empty array "
    "instead.",
    "tool_name": "Invalid '{path}': string does not match pattern. Expected a string that matches the pattern "
    "'^[a-zA-Z0-9_-]+$'.",
    "tool_unique": "Tool names must be unique: {name}",
    "schema_items": "Invalid schema for function '{name}': In context={path}, array schema missing items.",
    "role": "Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and "
    "'developer'.",
    "field": "Unknown parameter: '{path}'.",
    "name": "Invalid '{path}': string does not match pattern. Expected a string that matches the pattern "
    "'^{pattern}$'.",
    "content_missing": "Missing required parameter: '{path}'.",
    "content_null": "Invalid value for 'content': expected a string, got null.",
    "content_blank": "Invalid '{path}': text must not be blank.",
    "part": "Invalid value: '{name}'. Supported values are: {allowed}.",
    "call_type": "Missing required parameter: '{path}'.",
    "arguments_type": "Invalid type for '{path}': expected a string, but got {kind} instead.",
    "arguments": "Invalid '{path}': expected a JSON object in a string.",
    "call_id": "Invalid '{path}': string does not match pattern. Expected a string that matches the pattern "
    "'^{pattern}$'.",
    "string_length": "Invalid '{path}': string too long. Expected a string with maximum length {limit}, but got a "
    "string with length {length} instead.",
    "system_count": "Only one system message is allowed.",
    "system_place": "System message must be at the beginning.",
    "user_first": "The first message must have the role user, but it has the role {role}.",
    "alternation": "Conversation roles must alternate user/assistant/user/assistant/...",
    "result_orphan": "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
    "'tool_calls'.",
    "result_unknown": "Invalid parameter: 'tool_call_id' of '{value}' not found in 'tool_calls' of previous message.",
    "result_twice": "Invalid parameter: 'tool_call_id' of '{value}' has more than one response.",
    "call_unanswered": "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'. The following tool_call_ids did not have response messages: {value}",
    "reasoning_missing": "The `reasoning_content` in the thinking mode must be passed back to the API.",
    "image_count": "Too many images in request. Max is {limit}.",
    "image_format": "You uploaded an unsupported image. Please make sure your image has of one the following formats: "
    "['png', 'jpeg', 'gif', 'webp'].",
    "image_bytes": "Invalid image: {size} bytes exceed the maximum of {limit} bytes per image.",
    "image_pixels": "Invalid image: the dimensions exceed the maximum of {limit} pixels.",
}
_COUNTS = "Not the same number of function calls and responses"
MISTRAL_WORDS = {
    "tool_name": "Function name was {name} but must be a-z, A-Z, 0-9, or contain underscores and dashes, with a "
    "maximum length of 64.",
    "call_id": "Tool call id was {value} but must be a-z, A-Z, 0-9, with a length of 9.",
    "content_blank": "Assistant message must have either content or tool_calls, but not none.",
    "content_null": "Assistant message must have either content or tool_calls, but not none.",
    "part": "Input tag '{name}' found using 'type' does not match any of the expected tags: {allowed}",
    "role": "Input tag '{role}' found using 'role' does not match any of the expected tags: 'assistant', 'system', "
    "'tool', 'user'",
    "field": "Extra inputs are not permitted",
    "parameter": "Extra inputs are not permitted",
    "order": "Unexpected role '{role}' after role '{before}'",
    "last_role": "Expected last role User or Tool (or Assistant with prefix True) for serving but got {role}",
    "result_orphan": "Unexpected role 'tool' after role '{before}'",
    "result_unknown": _COUNTS,
    "result_twice": _COUNTS,
    "call_unanswered": _COUNTS,
}
DEEPSEEK_WORDS = {
    "role": "Failed to deserialize the JSON body into the target type: messages[{i}].role: unknown variant `{role}`, "
    "expected one of `system`, `user`, `assistant`, `tool`",
    "part": "Failed to deserialize the JSON body into the target type: messages[{i}]: unknown variant `{name}`, "
    "expected `text`",
    "content_missing": "Failed to deserialize the JSON body into the target type: messages[{i}]: missing field "
    "`content`",
    "call_unanswered": "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'. (insufficient tool messages following tool_calls message)",
    "result_orphan": "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
}
GROQ_WORDS = {
    "role": "'messages.{i}' : discriminator property 'role' has invalid value",
    "field": "'messages.{i}' : for 'role:{role}' the following must be satisfied[('messages.{i}' : property "
    "'{name}' is unsupported)]",
    "parameter": "property '{name}' is unsupported",
    "content_null": "'messages.{i}' : for 'role:{role}' the following must be satisfied[('messages.{i}.content' : "
    "value must be a string)]",
    "part": "'messages.{i}' : for 'role:{role}' the following must be satisfied[('messages.{i}.content' : value "
    "must be a string)]",
    "image_count": "Too many images provided. This model supports up to {limit} images",
}
GEMINI_WORDS = {
    "json": "Invalid JSON payload received. Unable to parse the body.",
    "parameter": 'Invalid JSON payload received. Unknown name "{name}": Cannot find field.',
    "content_null": "Value is not a string: null",
    "content_blank": "* GenerateContentRequest.contents[{i}].parts: contents.parts must not be empty.\n",
    "role": "Please use a valid role: user, model.",
    "tool_name": "* GenerateContentRequest.{path}: Invalid function name. Must start with a letter or an "
    "underscore. Must be alphameric (a-z, A-Z, 0-9), underscores (_), dots (.), colons (:), or dashes (-), with a "
    "maximum length of 64.\n",
    "tool_unique": "Duplicate function declaration found: {name}",
    "schema_items": "* GenerateContentRequest.{path}.items: missing field.\n",
    "schema_keyword": "Invalid JSON payload received. Unknown name \"{name}\" at '{path}': Cannot find field.",
    "schema_enum": "* GenerateContentRequest.{path}.enum: only allowed for STRING type\n",
    "arguments": "Invalid value at 'contents[{i}].parts[0].function_call.args' "
    "(type.googleapis.com/google.protobuf.Struct)",
    "signature": "Corrupted thought signature.",
    "signature_missing": "Function call is missing a thought_signature in functionCall parts. This is required for "
    "tools to work correctly, and missing thought_signature may lead to degraded model performance. Additional "
    "data, function call `default_api:{name}` , position {place}.",
    "call_order": "Please ensure that function call turn comes immediately after a user turn or after a function "
    "response turn.",
    "user_first": "Please ensure that the conversation starts with a user turn.",
    "last_role": "Please ensure that multiturn requests end with a user role or a function response.",
    "unknown": 'Invalid JSON payload received. Unknown name "{name}": Cannot find field.',
    "unknown_at": "Invalid JSON payload received. Unknown name \"{name}\" at '{path}': Cannot find field.",
    "stops": "The number of stop sequences must be at most {limit}.",
    "contents": "* GenerateContentRequest.contents: contents is not specified\n",
    "parts_empty": "* GenerateContentRequest.{path}.parts: contents.parts must not be empty.\n",
    "part_data": "* GenerateContentRequest.{path}.data: required oneof field 'data' must have one initialized field\n",
    "name_empty": "* GenerateContentRequest.{path}.name: Name cannot be empty.\n",
    "struct": "Invalid value at '{path}' (type.googleapis.com/google.protobuf.Struct)",
    "result_orphan": "Please ensure that function response turn comes immediately after a function call turn.",
    **dict.fromkeys(
        ("result_unknown", "result_twice", "call_unanswered"),
        "Please ensure that the number of function response parts is equal to the number of function call parts of the "
        "function call turn.",
    ),
}
TEMPLATE_WORDS = {
    "alternation": "After the optional system message, conversation roles must alternate "
    "user/assistant/user/assistant/...",
    "system_count": "System message must be at the beginning.",
    "user_first": "After the optional system message, conversation roles must alternate "
    "user/assistant/user/assistant/...",
    "role": "Unexpected message role.",
    "arguments": "{problem}",
    "choice": "When using `{name}`, `tools` must be set.",
    "part": "Unsupported chat content part type: '{name}'. Supported types: {allowed}. (parameter=type, value={name})",
}
LLAMA_WORDS = {
    **TEMPLATE_WORDS,
    "content_null": "All non-assistant messages must contain 'content'",
    "call_type": "Missing tool call type",
    "arguments": "Failed to parse tool call arguments as JSON",
    "part": "unsupported content[].type",
}
BEDROCK_WORDS = {
    "tools_needed": "The toolConfig field must be defined when using toolUse and toolResult content blocks.",
    "content_blank": "The text field in the ContentBlock object at {dots} is blank. Add text to the text field, and "
    "try again.",
    "user_first": "A conversation must start with a user message. Try again with a conversation that starts with a "
    "user message.",
    "call_id": "Value '{value}' at '{dots}' failed to satisfy constraint: Member must satisfy regular expression "
    "pattern: [a-zA-Z0-9_-]+",
    "string_length": "Value at '{dots}' failed to satisfy constraint: Member must have length less than or equal to "
    "{limit}",
    "call_unanswered": "Expected toolResult blocks at {dots} for the following Ids: {value}",
    "result_twice": "The number of toolResult blocks at {dots} exceeds the number of toolUse blocks of previous turn.",
    "result_orphan": "The number of toolResult blocks at {dots} exceeds the number of toolUse blocks of previous turn.",
}
ANTHROPIC_WORDS = {
    "array_length": "{dots}: List should have at most {limit} items after validation, not {length}",
    "json": "The request body is not valid JSON: no low surrogate in string",
    "request_bytes": "Request exceeds the maximum size",
    "parameter": "{name}: Extra inputs are not permitted",
    "extra": "{dots}: Extra inputs are not permitted",
    "required": "{dots}: Field required",
    "user_id": "metadata.user_id: String should have at most 256 characters",
    "stop_blank": "stop_sequences: each stop sequence must contain non-whitespace",
    "choice": "tool_choice may only be specified while providing tools.",
    "cache_count": "A maximum of 4 blocks with cache_control may be provided.",
    "no_messages": "messages: at least one message is required",
    "tool_name": "{dots}: String should match pattern '^{pattern}$'",
    "tool_unique": "tools: Tool names must be unique.",
    "role": "messages: Unexpected role \"{role}\". Allowed roles are 'user' or 'assistant'.",
    "user_first": 'messages: first message must use the "user" role',
    "message_empty": "{dots}: all messages must have non-empty content except for the optional final assistant message",
    "text_empty": "{dots}: text content blocks must be non-empty",
    "content_blank": "{dots}: text content blocks must contain non-whitespace text",
    "tag": "{dots}: Input tag '{name}' found using 'type' does not match any of the expected tags",
    "block_role": "{dots}: `{name}` blocks can only be in `{role}` messages",
    "pattern": "{dots}: String should match pattern '^{pattern}$'",
    "name_length": "{dots}: String should have at most {limit} characters",
    "input_type": "{dots}: Input should be a valid dictionary",
    "signature": "{dots}: Invalid `{name}` in `{holder}` block",
    "call_twice": "{dots}: `tool_use` ids must be unique",
    "result_orphan": "{dots}: unexpected `tool_use_id` found in `tool_result` blocks: {value}. Each `tool_result` "
    "block must have a corresponding `tool_use` block in the previous message.",
    "result_twice": "{dots}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: "
    "{value}",
    "call_unanswered": "{dots}: `tool_use` ids were found without `tool_result` blocks immediately after: {value}. "
    "Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
    "thinking_choice": "Thinking may not be enabled when tool_choice forces tool use.",
    "thinking_budget": "{dots}: Input should be greater than or equal to 1024",
    "thinking_max_tokens": "`max_tokens` must be greater than `thinking.budget_tokens`.",
    "thinking_temperature": "`temperature` may only be set to 1 when thinking is enabled.",
    "thinking_first": "{dots}: Expected `thinking` or `redacted_thinking`, but found `{name}`. When `thinking` is "
    "enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost set of "
    "`tool_use` and `tool_result` blocks).",
    "prefill": "This model does not support assistant message prefill. The conversation must end with a user message.",
    "prefill_space": "messages: final assistant content cannot end with trailing whitespace",
    "image_count": "Too much media: 0 document pages + {length} images > {limit}",
    "image_format": "{dots}.media_type: Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'",
    "image_bytes": "{dots}: image exceeds 5 MB maximum: {size} bytes > {limit} bytes",
    "image_pixels": "{dots}.data: At least one of the image dimensions exceed max allowed size: {limit} pixels",
    "image_many_pixels": "{dots}.data: At least one of the image dimensions exceed max allowed size for many-image "
    "requests: {limit} pixels",
}
RESPONSES_WORDS = {
    "parameter": "Unknown parameter: '{name}'.",
    "moved": "Unsupported parameter: '{name}'. In the Responses API, this parameter has moved to '{place}'.",
    "choice": "Tool choice '{name}' must be specified with 'tools' parameter.",
    "output_tokens": "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got "
    "{value} instead.",
    "reasoning_alone": "Item '{value}' of type 'reasoning' was provided without its required following item.",
    "item_missing": "Item with id '{value}' not found. Items are not persisted when `store` is set to false.",
    "value": "Invalid value: '{name}'. Supported values are: {allowed}.",
    "type": "Invalid type for '{path}': expected one of a string or array, but got {kind} instead.",
    "id_prefix": "Invalid '{path}': '{value}'. Expected an ID that begins with '{prefix}'.",
    "id_characters": "Invalid '{path}': '{value}'. Expected an ID that contains letters, numbers, underscores, or "
    "dashes, but this value contained additional characters.",
    "encrypted": "The encrypted content {value} could not be verified.",
    "call_unanswered": "No tool output found for function call {value}.",
    "result_orphan": "No tool call found for function call output with call_id {value}.",
}

# OpenAI API, error codes as seen in public reports; rules without an entry have no code.
_OPENAI_CODES = {
    "array_length": "array_above_max_length",
    "empty_array": "empty_array",
    "string_length": "string_above_max_length",
    "max_tokens": "unsupported_parameter",
    "moved": "unsupported_parameter",
    "field": "unknown_parameter",
    "encrypted": "invalid_encrypted_content",
    **dict.fromkeys(("tool_name", "name", "part", "value", "role", "id_prefix", "id_characters"), "invalid_value"),
    **dict.fromkeys(("arguments_type", "type"), "invalid_type"),
    **dict.fromkeys(("call_type", "content_missing"), "missing_required_parameter"),
}
# Mistral API, error codes as seen in public reports.
_MISTRAL_CODES = {
    "tool_name": ("invalid_function_call", "3280"),
    "call_id": ("invalid_function_call", "3280"),
    "content_blank": ("invalid_request_assistant_message", "3240"),
    **dict.fromkeys(("order", "last_role", "result_orphan"), ("invalid_request_message_order", "3230")),
    **dict.fromkeys(("result_unknown", "result_twice", "call_unanswered"), ("invalid_request_message_order", "3230")),
}
_MISTRAL_VALIDATION = {"field": "extra_forbidden", "parameter": "extra_forbidden", "part": "union_tag_invalid"}


def _format_path(path: tuple[str | int, ...]) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def format_error(provider: Provider, fault: Fault) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the error body that the provider sends for a fault."""
    template = provider.words.get(fault.rule) or WORDS[fault.rule]
    path, index = _format_path(fault.path), next((step for step in fault.path if isinstance(step, int)), 0)
    dots = ".".join(map(str, fault.path))
    message = template.format(**{"i": index, "path": path, "dots": dots, **fault.values})
    status, form = provider.statuses.get(fault.rule, 400), provider.error_form
    error: dict[str, Any] = {"message": message, "type": "invalid_request_error"}
    if form == "mistral":
        return _format_mistral(fault, message)
    if form == "anthropic":
        error["type"] = "request_too_large" if status == 413 else "invalid_request_error"
        return status, {"type": "error", "error": {"type": error["type"], "message": message}}
    if form == "gemini":
        return status, {"error": {"code": status, "message": message, "status": "INVALID_ARGUMENT"}}
    if form == "vllm":
        return status, {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}
    if form == "llama.cpp":
        kind = "server_error" if status >= 500 else "invalid_request_error"
        return status, {"error": {"code": status, "message": message, "type": kind}}
    if form == "litellm":
        text = message if message.startswith("litellm.") else f"litellm.BadRequestError: BedrockException - {message}"
        return status, {"error": {"message": text, "type": None, "param": None, "code": str(status)}}
    if form == "openrouter":
        metadata = {"raw": message, "provider_name": "OpenAI"}
        return status, {"error": {"message": "Provider returned error", "code": status, "metadata": metadata}}
    if form == "groq":
        return status, {"error": error}
    code = "invalid_request_error" if form == "deepseek" else _OPENAI_CODES.get(fault.rule)
    param = None if form == "deepseek" else path or None
    return status, {"error": {**error, "param": param, "code": code}}


def _format_mistral(fault: Fault, message: str) -> tuple[int, dict[str, Any]]:
    if fault.rule in (*_MISTRAL_VALIDATION, "role", "content_null"):
        role = [fault.values["role"]] if len(fault.path) > 2 and "role" in fault.values else []
        kind = _MISTRAL_VALIDATION.get(fault.rule, "value_error")
        where = ["body", *fault.path[:2], *role, *fault.path[2:]]
        return 422, {"detail": [{"type": kind, "loc": where, "msg": message, "input": fault.values.get("value")}]}
    kind, code = _MISTRAL_CODES.get(fault.rule, ("invalid_request_error", None))
    return 400, {"object": "error", "message": message, "type": kind, "param": None, "code": code}
