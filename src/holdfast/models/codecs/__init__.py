"""Codecs: for each API, decode and encode its requests and its replies, for clients and for upstreams. Codecs do no I/O."""
