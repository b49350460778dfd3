"""The HTTP server: an OpenAI-compatible gateway with memory, and a REST API over the sessions.

From the socket to a route:
run        from a configuration to a listening server      reloading  the configuration read again, at SIGHUP
protocol   how long a request's head may be, and how long an answer may wait to be read
app        all routes, and the middleware before them
logs       the log, and a line in it for each request      metrics    what Prometheus reads
access     who asks: hosts, keys, rates                    jwks       tokens of another issuer
intake     how bodies come in, and how much of them        streams    bodies of any size, in and out
routes     how a route is declared, how its parameters and its body become structs, the endpoint of a path
http       one request, as handlers see it                 replies    what goes out; errors in OpenAI's shape
permissions   what a caller may do

The gateway:
chat       a request for a reply becomes a turn            doors      each API that it may come in
requester  whose request it is, and its own fields         session_locator   which session it is meant for
relay      the reply on its way to the client              chat_objects   requests, replies and errors, described
counting   `POST /v1/messages/count_tokens`

REST, a file for each subject with its routes and their objects:
sessions, messages, context (explanations and facts too), state, voice, compactions, artifacts, search, memories, workspaces, meta

The API's description:
openapi    the document            schema     JSON Schema from structs            page       the same to read
"""
