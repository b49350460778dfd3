"""List the public names, and pin them: `python -m scripts.public_names` writes docs/public-names.md and tests/public_names.txt.

python_names    names, parameters and defaults of the Python API
server_names    routes, objects, commands, sections, headers, error codes, metrics and environment variables
page            the page, and the pinned list
"""
