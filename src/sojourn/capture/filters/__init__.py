"""Packet filters in libpcap's language, for files and for interfaces."""
