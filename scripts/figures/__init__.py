"""The pictures of the documentation, each made by a function from a run or from a page's own table.

``python -m scripts.figures`` makes them again (``… NAME …`` only these). Every picture is written twice, for readers
with a light and with a dark scheme, as SVG that is the same for the same data.
"""
