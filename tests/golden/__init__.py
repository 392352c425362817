"""Golden files of outputs that scripts depend on. Changing such a file changes the contract with users.

`python -m tests.golden` writes the files again.
"""
