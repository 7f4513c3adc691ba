"""Golden answers: what the commands answer over real and generated data, kept to compare a later version with.

A case is what a user types; its answer is the JSON that the command prints, without times of the run. From the top of
the checkout, with its own Python:

    python -m tests.golden list                         the names of the cases
    python -m tests.golden record DIR [PATTERN …]       run the cases, write an answer to DIR for each
    python -m tests.golden compare DIR [PATTERN …]      run them again; print what differs, exit 1 if anything does
    python -m tests.golden store                        renew the answers that `test_golden.py` compares with

A pattern chooses cases as a shell does ('measure/*', '*/exact/*'). Integers are compared exactly, other numbers to
12 significant digits (``--digits``). A renamed option is an edit of `cases.py`; a renamed JSON field is a line in
`RENAMED` of `answers.py`, and answers recorded before stay comparable.
"""
