"""Captures: turns files into Kafka exchanges, step by step. Each step reads the results of the last one.

- ``files``: the inputs that the user named become *sources* (files), then *shares*, one for each task. A
  share is read window by window. The packets in a *window* become columns.
- ``packets``: link layers, IP and TCP, as columns, with no object for each packet. Packets are joined into
  *runs*: the rows of `SEGMENTS`.
- ``tls``: decrypts encrypted streams of bytes if a key log has their secrets.
- ``kafka``: the runs of a connection become two streams of bytes with gaps. Streams become frames. A request
  frame and its response frame become an *exchange*.

Each packet and each byte is used, or is counted with the reason why it is not used.
"""
