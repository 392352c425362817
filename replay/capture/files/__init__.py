"""Finds the capture files that the user named, and the packets in them.

- ``sources``: files, patterns, directories, standard input and remote URIs become sources, then shares.
- ``streams``: opens a file and decompresses it.
- ``formats``: pcap or pcapng, known by the first bytes of a file.
- ``window``: the part of a file that is in memory.
- ``pcap``, ``pcapng`` (sans-IO): find the packets in a window.
- ``reading``: goes through a share, window by window.
- ``spans``: reads spans of files again, by their offsets.
- ``secrets``: reads key logs, and the secrets in captures.
- ``counts``: counts the contents of each file, and the parts that could not be used.
"""
