"""Captures: files in, Kafka exchanges out, each step a stream into the next.

- **sources**, **streams**, **reading**: the shell. What the user named becomes *sources* (files), these
  become *shares* (what one task reads); a share is read window by window. Nothing else here opens anything.
- **formats**, **records**, **recordsearch**, **blocks** (sans-IO): pcap and pcapng. Where in a *window* the
  packets are, as columns.
- **links**, **internet**, **packets** (sans-IO): link layers, IP, TCP, as columns; no object a packet.
- **segments**: packets joined into *runs*, the rows of `SEGMENTS`. Its **counts** tell what each file holds,
  and what of it could not be used.
- **reassembly**, **framing**, **pairing**, **exchanges** (sans-IO): the runs of a connection become two
  streams of bytes with gaps, these become frames, and frames become *exchanges*.

Nothing is left out silently: each packet and each byte is used, or counted under a reason.
"""
