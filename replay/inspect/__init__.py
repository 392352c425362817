"""``fetchgate replay inspect``: counts the contents of captures, without Spark."""
