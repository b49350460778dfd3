"""Conversions between Holdfast's own data and the formats of other systems; one module per format.

openai              Chat Completions messages
voice               Agora's voice records
transcripts         recorded sessions as JSON lines
exports             exported and imported sessions
sessions            sessions in the REST API
artifacts           artifacts in the REST API
memories            memories in the REST API
objects             base classes of REST objects
request_fields      names of request fields
sendable            messages given to the library
strict_json         strict JSON, and times
"""
