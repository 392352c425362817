"""Golden files: expected outputs on which users' scripts depend. A changed file is a change for users.

`python -m tests.golden` writes the files again.
"""
