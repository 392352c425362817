"""Captures: what they hold, what sessions would have saved, and driving them again.

Nothing is here yet; `fetchgate replay` follows the gateway.
"""
