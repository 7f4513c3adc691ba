"""Files that viewers upload, and the reports that are made of them."""
