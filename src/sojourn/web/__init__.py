"""What people look at: charts, the report of one file, and the pages of a query unit."""
