"""Finds the capture files that the user named, and the packets in them.

Only ``sources``, ``streams``, ``reading``, ``spans``, ``secrets`` and ``outputs`` open files. ``pcap`` and
``pcapng`` find the packets in a ``window``, the part of a file that is in memory.
"""
