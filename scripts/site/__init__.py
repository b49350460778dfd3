"""The documentation as a site: `python -m scripts.site html`.

staging   the pages of docs/, and those beside README.md, where Sphinx reads them
rest, commands, python_api   pages that are made from the code      markdown  what they are written with
links     of Markdown pages, and whether they lead somewhere
extension what Sphinx has to know of this project
"""
