"""The HTTP door: an OpenAI-compatible gateway with memory, and a REST API over the sessions.

From the socket to a route:
run        from a configuration to a listening server      reloading  the configuration read again, at SIGHUP
protocol   how long a request's head may be, and lie unread              backlog    what a client has not read yet
app        the table of all routes, and the middleware before them
observe    a request's id, and its line in the log          logs       the log        metrics    what Prometheus is told
hosts      whom the server talks to at all                 access     who asks: keys, rates, the door
jwks       tokens of somebody else's                       permissions   what each route asks of whoever calls it
intake     how bodies come in, and how much of them        streams    bodies of any size, in and out
http       what every endpoint is made of: one call, one reply           refused    what gets no further
fields     what routes read of a request                   replies    what goes out; errors in OpenAI's shape

The gateway:
chat       a request for a reply becomes a turn            doors      each API that it may come in
addressing which session it is meant for                   relay      the reply on its way to whoever asked
counting   `POST /v1/messages/count_tokens`

REST, a file a subject:
sessions, moving, state, voice, compactions, artifacts, search, index, memories, dreams, workspaces, meta

The API's description:
openapi    the document                                    operations what every route takes and answers
schemas, *_schemas, shapes   the objects, and the words they are described with        page   the same to read
"""
