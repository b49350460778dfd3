"""Formats of other systems, converted in both directions; one module per format.

openai      Chat Completions messages, the form used inside Holdfast      gemini     requests to Google's Gemini API
anthropic   messages and tools of Anthropic's Messages API; with it
            anthropic_requests  request bodies, in both directions       anthropic_replies  replies and streams
voice       Agora's voice records                transcripts     recorded sessions as JSON lines
exports     exported and imported sessions       artifacts       artifacts in the REST API
sessions    sessions in the REST API             memories        memories in the REST API
objects     base classes of REST objects         request_fields  names of request fields
sendable    messages given to the library        parsing         strict JSON, and times
"""
