"""Capture files: pcap and pcapng, plain or compressed, from a disk, a pipe or stdin."""
