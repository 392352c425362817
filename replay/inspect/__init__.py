"""``fetchgate replay inspect``: counts what is in captures, without Spark."""
