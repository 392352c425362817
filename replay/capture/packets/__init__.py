"""Turns captured packets into TCP segments, in columns.

``segments.read`` and ``read_references`` open the files of a share, and ``with_payload`` follows references.
Everything else here is sans-IO.
"""
