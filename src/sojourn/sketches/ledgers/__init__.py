"""Ledgers: where there is memory, what both ends of a segment need to name every lost packet.

The receiver's `receipt` says in few bits which packets arrived, the sender's `ledger` which there were.
"""
