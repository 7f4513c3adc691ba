"""Pseudonyms of names and addresses, made and undone with a secret that nodes and operators share."""
