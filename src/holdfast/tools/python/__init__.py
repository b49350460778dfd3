"""Run a model's Python code (tool `python`) in a sandboxed process per session.

- `tool`: the tool itself, and the notes for the model
- `kernels`: the processes of all sessions, and when they end
- `files`: saves files as artifacts, and restores them
- `folders`: creates, locks and removes work folders
- `contents`: lists and reads work folders, which are untrusted
- `results`: formats results for the model, within a size limit
- `process`: the process of one session, which is restarted if it ends
- `worker`: one operating system process, its frames, signals and output
- `child`: the program that runs in that process, without Holdfast
- `calls`: limits and results of calls
- `sandbox`: restricts the process
- `seccomp`: filters the system calls of the process
- `settings`: settings of the tool
"""
