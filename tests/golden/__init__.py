"""Golden files of outputs that scripts depend on. A change of one is a change of the contract.

`python -m tests.golden` writes them again.
"""
