"""The report: one HTML file with charts and tables that needs nothing but a browser."""
