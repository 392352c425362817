"""Consumers written with the Python clients: run as `python -m tests.clients.python.NAME`."""
