"""Sends captured requests to a running gateway or broker."""
