"""``fetchgate replay inspect``: what captures hold."""
