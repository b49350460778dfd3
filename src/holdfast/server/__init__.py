"""The HTTP server: an OpenAI-compatible gateway with memory, and a REST API over the sessions.

From the socket to a route:
run           starts the server from a configuration       config_reload  rereads the configuration at SIGHUP
protocol      limits on request heads, and on clients that read slowly
app           all routes, and the middleware before them
logs          the log, with a line for each request         metrics       Prometheus metrics
access        authentication: hosts, keys, rate limits      jwks          tokens of another issuer
body_limits   limits on request bodies                      body_streams  bodies of any size, in and out
routes        declares routes; converts parameters and bodies to structs; dispatches by path
http          one request, as handlers see it               replies       responses; errors in OpenAI's format
permissions   the permissions that routes require

The gateway:
chat          runs a chat request as a turn of a session    apis          the API formats of the gateway
requester     user and session that a request names         placing     finds the session of a request
streaming     sends the reply to the client                 chat_objects  schemas of requests, replies and errors
token_counting  `POST /v1/messages/count_tokens`         passthrough   other routes and models of the upstream

The REST API has one module for each subject, with its routes and objects:
sessions, messages, context (also explanations and facts), state, voice, compactions, artifacts, search, memories, workspaces, health

The MCP server:
mcp           `POST /mcp`; tools and resources are in `holdfast.mcp_server`

The API description:
openapi       the document            schema     JSON Schema from structs
"""
