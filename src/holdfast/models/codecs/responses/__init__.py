"""The codec of OpenAI's Responses API.

ids       ids of responses, conversations and items, and references to compactions
notes     notes that make a response, or a compaction, findable in a log
tools     tools and `tool_choice`, as functions and back
items     items as messages of a log, and messages as items
requests  requests of clients, and requests to upstreams
decoder   events of an upstream as deltas
encoder   deltas as events and Response objects
"""
