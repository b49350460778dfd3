"""Clients for language models. A model is any object that answers Chat Completions requests, over a network or not.

base      the protocol of a model and its request     client            base class of clients that use HTTP
deltas    models that yield deltas                    codecs            formats of requests and replies, one per API
openai    client for OpenAI-compatible upstreams      anthropic         client for Anthropic's Messages API
responses client for OpenAI's Responses API
answer    parser for OpenAI's responses               codecs            conversions between deltas, messages and APIs
http      headers, keys, URLs, the proxy
sse       parser for event streams                    failures          conversion of upstream errors to Holdfast's errors
overflow  detection of prompts that are too long      health            cool-down of failing upstreams
limited   a limit on concurrent calls                 count_endpoints   URLs and request formats of providers' token counts
counting  client for a provider's token count
collect   conversion of deltas to a completion        refusals          what refusals say about a profile
offline   the model that needs no network             codecs            requests and replies of each API
"""
