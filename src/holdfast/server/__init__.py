"""The HTTP door: an OpenAI-compatible gateway with memory, and a REST API over the sessions.

http      what every endpoint is made of: one call, one reply, errors in OpenAI's shape
chat      the gateway: `POST /v1/chat/completions`
sessions  sessions, messages, working sets, history      meta  health, models, metrics, the API's description
app       the table of all routes                        run   from a configuration to a listening server
"""
