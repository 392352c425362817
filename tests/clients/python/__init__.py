"""Consumers for tests, written with Kafka's Python clients.

Run one with `python -m tests.clients.python.NAME`.
"""
