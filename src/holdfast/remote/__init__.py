"""Use the sessions of a server like those of `holdfast.open`: the client behind `holdfast.connect`.

`connection.py` is the object that `holdfast.connect` returns, `session.py` a session, `turns.py` a turn, `state.py`, `memories.py` and
`artifacts.py` their parts. `transport.py` sends requests and retries them; `failures.py` and `objects.py` turn answers into errors and
into the public types of the library.
"""
