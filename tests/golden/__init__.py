"""What others script against, as files: a change of one of them is a change of the contract.

`python -m tests.golden` writes them anew.
"""
