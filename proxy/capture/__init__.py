"""Captures: the bytes on both sides of the gateway in pcap files, with or without record contents."""
