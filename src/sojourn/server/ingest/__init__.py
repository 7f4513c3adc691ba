"""What nodes say to the query unit, whichever way it comes."""
