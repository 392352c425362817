"""Capture files: sources, windows of bytes, pcap and pcapng records."""
