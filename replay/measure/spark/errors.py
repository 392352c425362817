"""Errors of Spark, in a module that does not import Spark."""


class NoSparkError(Exception):
    """Spark is not installed. The message is one line: why it is needed, and what to install."""


class SparkFailedError(Exception):
    """Spark could not be started, or failed. The message is one line."""
