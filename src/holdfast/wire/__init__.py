"""Other people's shapes, both ways; one file a shape.

openai      Chat Completions' messages: the form that there is inside      gemini     a working set for Gemini
anthropic   messages and tools of the Messages API, both ways; with it
            anthropic_inbound   a request's fields, read               anthropic_request   ours, written
            anthropic_replies   replies and streams, written           anthropic_cache     marks for its prompt cache
            anthropic_others    what other providers are not sent of it
media       media parts, whoever wrote them          voice       Agora's records
exports     sessions whole: exported and imported    past        what an export says of a session's past
transcripts recorded sessions as JSON lines          memories    a memory as the API tells it
sendable    what a user of the library may give as messages
strict      JSON that two readers cannot read in two ways            times       times as people write them
"""
