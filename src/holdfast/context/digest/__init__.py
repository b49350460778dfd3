"""Condense evicted messages to their facts, without a model.

- `block`: adds the digest to a window, and decides how many tokens it gets.
- `pool`: stores the facts of evicted messages and writes the digest.
- `facts`: reads the facts of a unit.
- `speech`: reads messages of users and assistants, and recognises sentences that are not worth keeping.
- `texts`: parses texts: sentences, tables and listings of source files.
- `weights`: computes how much each fact is worth by itself.
- `page`: chooses facts, and writes as many of them as fit.
"""
