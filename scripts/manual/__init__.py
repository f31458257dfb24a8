"""The documentation as a site: `python -m scripts.manual FOLDER` (or `make docs`) builds it from docs/, in Markdown.

The pages stay plain Markdown, readable where the code is hosted. What a site needs beside them is made here: the order
of pages (from the lists of links in docs/README.md), reference pages (from the API's description, the command line's
parser and the schemas), and files in place of inline scripts and styles, which the farm's pages may not have.
"""
