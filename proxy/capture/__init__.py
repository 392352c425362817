"""Both sides of the gateway written as pcap files, with or without the contents of records."""
