"""Frames in, packets with flow and packet ids out: links, tunnels, network, transport, identity."""
