"""What goes wrong with Spark. It is known without importing Spark."""


class SparkFailedError(Exception):
    """Spark could not be started, or failed. The message is one line."""
