"""Build the documentation as a site: `python -m scripts.site html`.

source_folder   copies the pages of docs/ and those next to README.md to the folder that Sphinx reads
links           finds and checks links in Markdown pages
"""
