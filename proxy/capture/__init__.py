"""Captures: pcap files of the bytes on both sides of the gateway, with or without record contents."""
