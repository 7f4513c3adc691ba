"""The spool: epochs on disk until the query unit has acknowledged them."""
