"""Anthropic's Messages API.

blocks              content of messages, in both directions
cache               marks for the provider's prompt cache
requests            fields of requests, in both directions
tools               tools, in both directions, and those that Anthropic's models know by their type
foreign             conversations for upstreams with another API
betas               beta features: which fields are served, passed on or refused
context_management  wishes of a request for a smaller prompt: edits and compaction
events              events of streams: those of a whole message, and the message that they describe
errors              errors in the format of the API
reply_decoder       replies of a model to deltas
reply_encoder       deltas to replies for a client
"""
