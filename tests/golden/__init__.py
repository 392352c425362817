"""Golden files: expected outputs on which users' scripts depend. A changed file is a change for users.

`python -m tests.golden` writes the files again. Those of a feature are in the folder of its tests.
"""
