"""Use the sessions of a server like those of `holdfast.open`: the client that `holdfast.connect` returns.

`connection.py` has the object that `holdfast.connect` returns, `session.py` a session, and `turns.py` a turn. `state.py`, `memories.py`,
`records.py` and `artifacts.py` have their parts. `transport.py` sends requests, retries them, and converts error responses to exceptions.
`objects.py` converts other responses to the public types of the library. Most methods have the parameters of the
library's methods, by `holdfast.signatures`.
"""
