"""Errors of Spark, in a module that does not import Spark."""


class SparkFailedError(Exception):
    """Spark could not be started, or failed. The message is one line."""
