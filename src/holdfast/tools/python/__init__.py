"""Run a model's Python code (tool `python`) in a sandboxed process per session.

- `tool`: the tool itself, and the notes for the model
- `kernels`: which session has which process, and when it ends
- `files`: save files as artifacts, and restore them
- `folders`: create, lock and remove work folders
- `contents`: list and read untrusted work folders
- `results`: results for the model, within their size limit
- `process`: the process of a session, across restarts
- `worker`: one operating system process: frames, signals, output
- `child`: the program in that process; it has no Holdfast
- `calls`: limits and results of calls
- `sandbox`: restricts the process
- `seccomp`: filters its system calls
- `settings`: limits of the tool
"""
