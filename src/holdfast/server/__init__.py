"""The HTTP door: an OpenAI-compatible gateway with memory, and a REST API over the sessions.

protocol  how long a request's head may be            intake    how bodies come in, and how much of them
strict    JSON that two readers cannot read in two ways
http      what every endpoint is made of: one call, one reply, errors in OpenAI's shape
access    who asks: keys, rates, the door               permissions   what each route asks of whoever calls it
jwks      tokens of somebody else's
chat      the gateway: `POST /v1/chat/completions`
sessions  sessions, messages, working sets, history      meta  health, models, metrics, the API's description
moving    sessions that move or go: exports, imports, forks, deletions
schemas, openapi, page   the API's description, and the same to read
app       the table of all routes                        run   from a configuration to a listening server
"""
